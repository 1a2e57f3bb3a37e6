// Order statistics over the values of all lanes of all ranks.
#pragma once
#include <functional>
#include <span>
#include <string>

#include "engine/op.h"

namespace convoy {

/// The k-th candidate (values in [0,1]; others are none) in ascending or descending order.
struct KthCandidate {
  float value = 0;
  int64_t before = 0;  ///< candidates that come strictly before that value
};

/// `lanes`: this rank's, of `count` values each. 1 <= k <= candidates of all ranks. Collective: two sums of integers,
/// so every rank gets the same, and any division of the values over lanes and ranks gives the same.
KthCandidate kth_candidate(Communicator& communicator, std::span<const View> lanes, int64_t count, bool descending,
                           int64_t k, const std::string& name);

/// What a selection does, given the lanes' views per input (as in ExchangeArgs).
using SelectionBody = std::function<void(const ExchangeArgs&)>;
/// The kernel of a selection: an exchange where the operator is a collective, else a run for the one lane there is.
Kernel selection_kernel(const PrepareArgs& args, SelectionBody body);

}  // namespace convoy
