#include "engine/optimizer.h"

#include "kernels/isa.h"
#include "kernels/optimizer.h"

namespace convoy {

SgdOptimizer::SgdOptimizer(ParamStore& parameters, std::vector<OptimizerGroup> groups, const Options& options)
    : parameters_(parameters), groups_(std::move(groups)), options_(options) {
  CONVOY_CHECK(!groups_.empty(), "the optimizer needs at least one group");
  for (const Parameter& p : parameters_.parameters())
    CONVOY_CHECK(p.group >= 0 && p.group < static_cast<int>(groups_.size()),
                 "parameter '{}' is in group {}, the optimizer has {}", p.name, p.group, groups_.size());
}

void SgdOptimizer::find_runs() {
  const auto& all = parameters_.parameters();
  for (size_t i = 0; i < all.size(); ++i) {
    if (!all[i].has_gradient) continue;
    const int64_t end = i + 1 < all.size() ? all[i + 1].offset : parameters_.total();
    if (!runs_.empty() && runs_.back().group == all[i].group &&
        runs_.back().offset + runs_.back().count == all[i].offset)
      runs_.back().count = end - runs_.back().offset;
    else
      runs_.push_back({all[i].offset, end - all[i].offset, all[i].group});
  }
}

void SgdOptimizer::step(double lr) {
  parameters_.require_gradients();
  parameters_.require_velocities();
  if (runs_.empty()) find_runs();
  for (const Run& run : runs_) {
    const OptimizerGroup& group = groups_[static_cast<size_t>(run.group)];
    CONVOY_CPU(sgd_momentum, parameters_.values().f32() + run.offset, parameters_.gradients().f32() + run.offset,
               parameters_.velocities().f32() + run.offset, run.count, static_cast<float>(lr * group.lr_factor),
               static_cast<float>(options_.momentum), static_cast<float>(group.weight_decay), options_.nesterov,
               steps_taken_ == 0);
  }
  ++steps_taken_;
}

}  // namespace convoy
