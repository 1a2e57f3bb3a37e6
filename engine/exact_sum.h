// Sums that do not depend on their order: numbers become integers of one common scale, and integer addition is
// associative. Any division of the addends over ranks, and any order, gives the same bits.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "engine/communicator.h"

namespace convoy {

/// result[i] = sum of part[i] over the parts of all ranks. At most `most_parts` parts take part in all. The scale
/// follows from the largest magnitude over all parts (one all-reduce); a number keeps 62 - log2(most_parts) bits below
/// that. Collective, two exchanges. Where any number is not finite, all results are NaN. Every part has result.size()
/// numbers.
void exact_sum(Communicator& communicator, std::span<const std::vector<double>> parts, int64_t most_parts,
               std::span<double> result, const std::string& name);

}  // namespace convoy
