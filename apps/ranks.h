// What the ranks of a run do together between the steps: start from the same things, agree to stop, end with one
// message. Unless said otherwise a function is collective: every rank calls it at the same place.
#pragma once
#include <functional>
#include <string>

#include "apps/training_step.h"
#include "engine/communicator.h"
#include "engine/param_store.h"
#include "io/config.h"

namespace convoy {

/// Runs this rank's part of the work. An exception in it ends all ranks: they leave with one message, which names the
/// rank and the host that it came from and is thrown as Error on each. With one rank exceptions pass through. Not
/// collective.
void run_rank(Communicator& communicator, const std::function<void()>& part);

/// Ends all ranks with a message that all of them have come to, and throws it as Error.
[[noreturn]] void fail_together(Communicator& communicator, const std::string& message);

/// Rank 0's text on every rank.
std::string broadcast_text(Communicator& communicator, std::string text, const std::string& name);

/// The bits that any rank gives.
uint32_t any_rank(Communicator& communicator, uint32_t flags, const std::string& name);

/// check_same_on_all_ranks (comm/agreement.h), after which all ranks end with its message.
void check_same(Communicator& communicator, const std::string& what, const std::string& text);

/// Checks that all ranks run the same program, by the same instruction set, with the same configuration.
void check_same_start(Communicator& communicator, const Config& config);

/// Checks that all ranks hold the same weights, optimizer states and running statistics, bit for bit.
void check_same_state(Communicator& communicator, ParamStore& store, int64_t step);

/// Gives every rank rank 0's running statistics, for batch norms whose ranks keep their own.
void share_statistics(Communicator& communicator, ParamStore& store);

/// How a global batch is divided: "3+2+2"; for many ranks "3 on each of 5 ranks, 2 on each of 11 ranks". Not
/// collective.
std::string division_text(const BatchPlan& plan, int64_t global_batch, int ranks);

}  // namespace convoy
