// The update of all parameters from their gradients: one pass over the flat arrays.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "engine/param_store.h"
#include "kernels/optimizer.h"

namespace convoy {

/// Parameters that share a rate factor and a decay; Parameter::group is the index.
struct OptimizerGroup {
  std::string name;
  double lr_factor = 1;
  double weight_decay = 0;
};

/// SGD, Adam, AdamW, RMSprop and Adadelta as PyTorch has them (formulas: UpdateRule, kernels/optimizer.h). Parameters
/// without a gradient are skipped, decay included. States lie in the ParamStore; where its arrays are on a device the
/// update runs there.
class Optimizer {
 public:
  struct Options {
    UpdateKind kind = UpdateKind::kSgd;
    double momentum = 0.9;  ///< of sgd and rmsprop
    bool nesterov = false;
    double beta1 = 0.9, beta2 = 0.999;  ///< of adam and adamw
    double alpha = 0.9;                 ///< share that old squares keep, of rmsprop and adadelta
    double eps = 1e-8;
    double max_norm = 0;  ///< gradients are scaled down to this norm where theirs is larger; 0: never
  };
  /// The store is allocated. Throws Error for a group that does not exist, or where the store has another optimizer's
  /// states.
  Optimizer(ParamStore& parameters, std::vector<OptimizerGroup> groups, const Options& options);
  ~Optimizer();

  /// One update with the given base rate.
  void step(double lr);
  /// Updates since the states began.
  int64_t steps_taken() const { return steps_taken_; }
  /// Takes up a run: the states have been loaded into the ParamStore.
  void resume(int64_t steps_taken) { steps_taken_ = steps_taken; }
  const std::vector<OptimizerGroup>& groups() const { return groups_; }

 private:
  struct OnDevice;
  void find_runs();
  void step_on_device(Device& device, const UpdateRule& rule);

  ParamStore& parameters_;
  std::vector<OptimizerGroup> groups_;
  Options options_;
  std::vector<UpdateRun> runs_;
  std::unique_ptr<OnDevice> on_device_;
  int64_t steps_taken_ = 0;
};

/// The kind of this name: sgd, adam, adamw, rmsprop or adadelta. Throws Error.
UpdateKind update_kind(const std::string& name);

}  // namespace convoy
