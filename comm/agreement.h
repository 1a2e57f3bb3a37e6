// Whether all ranks run the same thing.
#pragma once
#include <string>

#include "engine/communicator.h"

namespace convoy {

/// Compares a text over all ranks: a configuration, the version of the program, a plan. Where it differs, throws the
/// same Error on every rank: which ranks have another `what` than most, and the first line that differs. Collective.
void check_same_on_all_ranks(Communicator& communicator, const std::string& what, const std::string& text);

}  // namespace convoy
