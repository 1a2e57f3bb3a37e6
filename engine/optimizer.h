// The update of all parameters from their gradients: one pass over the flat arrays.
#pragma once
#include <string>
#include <vector>

#include "engine/param_store.h"

namespace convoy {

/// Parameters that share a rate factor and a decay; Parameter::group is the index.
struct OptimizerGroup {
  std::string name;
  double lr_factor = 1;
  double weight_decay = 0;
};

/// SGD with momentum as PyTorch has it (dampening 0): g += decay*p; v = momentum*v + g (v = g at the first step);
/// p -= lr*(nesterov ? g + momentum*v : v). Parameters without a gradient are skipped, decay included.
class SgdOptimizer {
 public:
  struct Options {
    double momentum = 0.9;
    bool nesterov = false;
  };
  SgdOptimizer(ParamStore& parameters, std::vector<OptimizerGroup> groups, const Options& options);

  /// One update with the given base rate. `steps_taken` counts updates since the velocities began.
  void step(double lr);
  int64_t steps_taken() const { return steps_taken_; }
  /// Takes up a run: the velocities have been loaded into the ParamStore.
  void resume(int64_t steps_taken) { steps_taken_ = steps_taken; }
  const std::vector<OptimizerGroup>& groups() const { return groups_; }

 private:
  /// Neighbours in the flat arrays that are updated alike.
  struct Run {
    int64_t offset, count;
    int group;
  };
  void find_runs();

  ParamStore& parameters_;
  std::vector<OptimizerGroup> groups_;
  Options options_;
  std::vector<Run> runs_;
  int64_t steps_taken_ = 0;
};

}  // namespace convoy
