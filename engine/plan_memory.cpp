// Bucket and memory passes: which gradients travel together, and where every buffer lies in the arena.
#include <algorithm>
#include <numeric>

#include "engine/param_store.h"
#include "engine/plan.h"

namespace convoy {

namespace {
constexpr size_t kAlignment = 64;
}  // namespace

void assign_buckets(Plan& plan, const ParamStore& parameters, const PlanOptions& options) {
  for (size_t l = 0; l < plan.launches.size(); ++l) {
    const Launch& launch = plan.launches[l];
    if (launch.op != "store_gradient") continue;
    const int64_t slot = std::stoll(launch.attrs.substr(launch.attrs.find("slot=") + 5));
    const size_t limit = plan.buckets.size() <= 1 ? options.first_bucket_bytes : options.bucket_bytes;
    if (plan.buckets.empty() || plan.buckets.back().bytes >= limit) plan.buckets.emplace_back();
    GradientBucket& bucket = plan.buckets.back();
    bucket.parameters.push_back(slot);
    bucket.bytes +=
        static_cast<size_t>(parameters.parameters()[static_cast<size_t>(slot)].shape.count()) * sizeof(float);
    bucket.ready_after = static_cast<int>(l);
  }
}

void pack_memory(Plan& plan, const PlanOptions& options) {
  plan.guard_bytes = options.guard_bytes;
  const auto aligned = [&](size_t bytes) {
    return (bytes + options.guard_bytes + kAlignment - 1) / kAlignment * kAlignment;
  };
  const int end = static_cast<int>(plan.launches.size());
  for (PlanBuffer& b : plan.buffers) b.first = end, b.last = -1;
  const auto touch = [&](int buffer, int launch) {
    PlanBuffer& b = plan.buffers[static_cast<size_t>(buffer)];
    b.first = std::min(b.first, launch);
    b.last = std::max(b.last, launch);
  };
  std::vector<bool> read(plan.values.size(), false);
  for (const Launch& launch : plan.launches)
    for (const int v : launch.in) read[static_cast<size_t>(v)] = true;
  for (int l = 0; l < end; ++l) {
    Launch& launch = plan.launches[static_cast<size_t>(l)];
    for (size_t o = 0; o < launch.out.size(); ++o) {
      PlanValue& value = plan.values[static_cast<size_t>(launch.out[o])];
      if (o > 0 && launch.schedule_index >= 0 && find_op(launch.op).optional_outputs &&
          !read[static_cast<size_t>(launch.out[o])] && !value.is_target) {
        launch.out[o] = -1;
        continue;
      }
      value.last_use = l;
      if (value.buffer >= 0) touch(value.buffer, l);
    }
    for (const int v : launch.in) {
      PlanValue& value = plan.values[static_cast<size_t>(v)];
      value.last_use = l;
      if (value.buffer >= 0) touch(value.buffer, l);
    }
    if (launch.kernel.workspace_bytes > 0) {
      launch.workspace = static_cast<int>(plan.buffers.size());
      plan.buffers.push_back({.bytes = launch.kernel.workspace_bytes, .first = l, .last = l});
    }
  }
  for (const int t : plan.targets)
    if (t >= 0 && plan.values[static_cast<size_t>(t)].buffer >= 0)
      touch(plan.values[static_cast<size_t>(t)].buffer, end);

  // Lanes that run one after the other use the same memory: what they make for an exchange or for the caller has a
  // place for each, and what all of them read stays until the last is done.
  if (plan.sequential) {
    int last_of_lanes = 0;
    for (int l = 0; l < end; ++l)
      if (plan.launches[static_cast<size_t>(l)].phase == Launch::Phase::kLanes) last_of_lanes = l;
    for (const Launch& launch : plan.launches)
      for (const int v : launch.in) {
        const PlanValue& value = plan.values[static_cast<size_t>(v)];
        if (value.buffer < 0 || value.producer < 0) continue;
        PlanBuffer& buffer = plan.buffers[static_cast<size_t>(value.buffer)];
        const Launch::Phase made = plan.launches[static_cast<size_t>(value.producer)].phase;
        if (!value.shared && (made != launch.phase || made == Launch::Phase::kBefore)) buffer.kept = true;
        if (value.shared && made == Launch::Phase::kBefore && launch.phase == Launch::Phase::kLanes)
          buffer.last = std::max(buffer.last, last_of_lanes);
      }
    for (const int t : plan.targets)
      if (t >= 0 && !plan.values[static_cast<size_t>(t)].shared && plan.values[static_cast<size_t>(t)].buffer >= 0)
        plan.buffers[static_cast<size_t>(plan.values[static_cast<size_t>(t)].buffer)].kept = true;
    for (PlanBuffer& buffer : plan.buffers)
      if (buffer.kept) {
        buffer.offset = plan.kept_bytes;
        plan.kept_bytes += aligned(buffer.bytes);
      }
  }

  // Largest first, each at the lowest offset where it meets no buffer that is alive at the same time.
  std::vector<int> order;
  for (size_t b = 0; b < plan.buffers.size(); ++b)
    if (plan.buffers[b].last >= 0 && plan.buffers[b].bytes > 0 && !plan.buffers[b].kept)
      order.push_back(static_cast<int>(b));
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    return plan.buffers[static_cast<size_t>(a)].bytes > plan.buffers[static_cast<size_t>(b)].bytes;
  });
  std::vector<int> placed;  // sorted by offset
  for (const int id : order) {
    PlanBuffer& b = plan.buffers[static_cast<size_t>(id)];
    size_t offset = 0;
    for (const int other_id : placed) {
      const PlanBuffer& other = plan.buffers[static_cast<size_t>(other_id)];
      if (other.last < b.first || b.last < other.first) continue;
      if (offset + aligned(b.bytes) <= other.offset) break;
      offset = std::max(offset, other.offset + aligned(other.bytes));
    }
    b.offset = offset;
    plan.arena_bytes = std::max(plan.arena_bytes, offset + aligned(b.bytes));
    placed.insert(std::upper_bound(placed.begin(), placed.end(), id,
                                   [&](int x, int y) {
                                     return plan.buffers[static_cast<size_t>(x)].offset <
                                            plan.buffers[static_cast<size_t>(y)].offset;
                                   }),
                  id);
  }
  for (int l = 0; l <= end; ++l) {
    size_t alive = 0;
    for (const int id : order) {
      const PlanBuffer& b = plan.buffers[static_cast<size_t>(id)];
      if (b.first <= l && l <= b.last) alive += aligned(b.bytes);
    }
    plan.lower_bound_bytes = std::max(plan.lower_bound_bytes, alive);
  }
}

}  // namespace convoy
