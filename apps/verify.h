// Comparing a network with reference figures: outputs, loss, gradients, running statistics, one SGD step.
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/context.h"

namespace convoy {

/// One group of figures and how it was judged.
struct VerifyLine {
  std::string group;  ///< "eval out0", "train gradients", ...
  bool passed = false;
  std::string summary;  ///< worst figure, its limit, and where
};

struct VerifyResult {
  std::string file;
  std::vector<VerifyLine> lines;
  nlohmann::json figures;  ///< every raw figure with its reference, error and limit
  int64_t failed() const;
};

/// Runs the three passes of a reference file (eval, frozen, train with one SGD step) by the default plan of `options`.
/// Rules (relative to the worst float32 error of the reference, rel32_max):
///   outputs, loss, running statistics, SGD step   within 10 * max(rel32_max, 1e-6)
///   frozen gradients                              the same; at most max(2, 2 %) of the parameters beyond, those within
///   1e-2 train gradients                               |difference| < 10*rel32_max*l2 + 2e-2*l2 + 1e-6*global l2 each,
///   and the
///                                                 cosine over all samples above 0.999
/// Throws Error when the file cannot be used or the network does not have the file's parameters.
VerifyResult verify(const std::string& golden_path, const ContextOptions& options);

}  // namespace convoy
