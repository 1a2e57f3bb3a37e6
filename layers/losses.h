// Losses over the outputs of a segmentation network.
#pragma once
#include <string>
#include <vector>

#include "engine/ops.h"

namespace convoy {

/// A named result of a network. "out0" is the prediction.
struct NamedValue {
  std::string name;
  Value value;
};

struct LossOptions {
  bool aux = false;  ///< further outputs are auxiliary: weighted by aux_weight instead of 1
  double aux_weight = 0.4;
  int64_t ignore = -1;
};

/// Mean softmax cross entropy over labelled pixels of the prediction, plus the weighted ones of the further outputs.
/// Outputs (N,C,H,W) as large as target (N,H,W). A batch without labelled pixels has loss 0. With a global batch
/// (Graph::set_global_batch) the mean is over its pixels and the value this lane's part of it: the losses of all lanes
/// and ranks add up to that of the global batch, and so do their gradients.
Value mixed_softmax_cross_entropy(const std::vector<NamedValue>& outputs, Value target, const LossOptions& options);

}  // namespace convoy
