#include "engine/plan_cache.h"

#include "engine/context.h"
#include "engine/rng.h"

namespace convoy {

std::shared_ptr<const Plan> PlanCache::get(const Graph& graph, const Schedule& schedule, const Context& context,
                                           bool several_lanes) {
  const uint64_t key = mix(schedule.hash, several_lanes);
  if (const auto it = index_.find(key); it != index_.end()) {
    order_.splice(order_.begin(), order_, it->second);
    return it->second->second;
  }
  ++misses_;
  auto plan = std::make_shared<const Plan>(
      compile(graph, schedule, context,
              {.guard_bytes = context.options().check_values ? size_t{64} : 0, .several_lanes = several_lanes}));
  order_.emplace_front(key, plan);
  index_[key] = order_.begin();
  if (order_.size() > capacity_) {
    index_.erase(order_.back().first);
    order_.pop_back();
  }
  return plan;
}

}  // namespace convoy
