// Plans by structural hash, so that the same step is planned once.
#pragma once
#include <list>
#include <memory>
#include <unordered_map>

#include "engine/plan.h"

namespace convoy {

/// Least-recently-used cache. The bound is a number of plans; a plan holds no tensor memory, only prepared kernels.
class PlanCache {
 public:
  explicit PlanCache(size_t capacity = 64) : capacity_(capacity) {}

  /// The plan of this schedule, compiled at its first use (apart for sessions of several lanes).
  std::shared_ptr<const Plan> get(const Graph& graph, const Schedule& schedule, const Context& context,
                                  bool several_lanes = false);
  size_t size() const { return order_.size(); }
  int64_t misses() const { return misses_; }

 private:
  using Entry = std::pair<uint64_t, std::shared_ptr<const Plan>>;
  size_t capacity_;
  int64_t misses_ = 0;
  std::list<Entry> order_;  // most recent first
  std::unordered_map<uint64_t, std::list<Entry>::iterator> index_;
};

}  // namespace convoy
