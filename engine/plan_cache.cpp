#include "engine/plan_cache.h"

#include <algorithm>

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
  PlanOptions options{.several_lanes = several_lanes};
  if (context.options().check_values) options.guard_bytes = 64;
  options.bucket_bytes = context.options().bucket_bytes;
  options.first_bucket_bytes = std::min(options.first_bucket_bytes, options.bucket_bytes);
  auto plan = std::make_shared<const Plan>(compile(graph, schedule, context, options));
  order_.emplace_front(key, plan);
  index_[key] = order_.begin();
  if (order_.size() > capacity_) {
    index_.erase(order_.back().first);
    order_.pop_back();
  }
  return plan;
}

}  // namespace convoy
