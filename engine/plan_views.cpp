// View and in-place passes: values that need no memory of their own.
#include <algorithm>

#include "engine/plan.h"

namespace convoy {

namespace {

const OpDef* op_of(const Launch& launch) {
  return launch.schedule_index < 0 ? nullptr : &find_op(launch.op);
}

/// Reorders read and write slices, nodes say so themselves.
bool takes_slices(const Launch& launch) {
  const OpDef* op = op_of(launch);
  return !op || op->takes_slices;
}

std::vector<std::vector<int>> readers_of(const Plan& plan) {
  std::vector<std::vector<int>> readers(plan.values.size());
  for (size_t l = 0; l < plan.launches.size(); ++l)
    for (const int v : plan.launches[l].in) readers[static_cast<size_t>(v)].push_back(static_cast<int>(l));
  return readers;
}

/// Gives every arena value a buffer of its own.
void own_buffers(Plan& plan) {
  for (PlanValue& v : plan.values) {
    if (v.place != PlanValue::Place::kArena || v.buffer >= 0) continue;
    v.buffer = static_cast<int>(plan.buffers.size());
    plan.buffers.push_back({.bytes = dense_bytes(v.geometry)});
  }
}

void make_slice(PlanValue& part, const PlanValue& whole, int64_t first) {
  part.buffer = whole.buffer;
  part.channel_offset = whole.channel_offset + first;
  part.geometry.pitch = whole.geometry.pitch;
}

/// Whether two dense tensors of one type put their elements, in row-major order, at the same places.
bool same_places(const View& a, const View& b) {
  if (a.layout != b.layout) return false;
  if (a.layout == Layout::kNchw) return a.count() == b.count();
  return a.n == b.n && a.c == b.c && a.h == b.h && a.w == b.w;
}

}  // namespace

void make_views(Plan& plan, const Graph& graph, const Schedule& schedule, const PlanOptions& options) {
  own_buffers(plan);
  const auto readers = readers_of(plan);
  const auto value = [&](int i) -> PlanValue& { return plan.values[static_cast<size_t>(i)]; };
  const auto all_take_slices = [&](int v) {
    return std::all_of(readers[static_cast<size_t>(v)].begin(), readers[static_cast<size_t>(v)].end(),
                       [&](int l) { return takes_slices(plan.launches[static_cast<size_t>(l)]); });
  };
  for (Launch& launch : plan.launches) {
    if (launch.op == "concat") {
      const PlanValue& whole = value(launch.out[0]);
      int64_t first = 0;
      for (const int p : launch.in) {
        PlanValue& part = value(p);
        const bool aligned = first % whole.geometry.block == 0;
        const bool unshared = part.place == PlanValue::Place::kArena && part.channel_offset == 0 &&
                              part.geometry.dense() && part.buffer != whole.buffer &&
                              std::count(launch.in.begin(), launch.in.end(), p) == 1;
        const bool same_lanes = part.shared == whole.shared;
        const bool concat_once =
            std::count_if(readers[static_cast<size_t>(p)].begin(), readers[static_cast<size_t>(p)].end(),
                          [&](int l) { return plan.launches[static_cast<size_t>(l)].op == "concat"; }) == 1;
        if (aligned && unshared && same_lanes && concat_once && !part.is_target && part.producer >= 0 &&
            all_take_slices(p) && takes_slices(plan.launches[static_cast<size_t>(part.producer)]))
          make_slice(part, whole, first);
        else
          launch.copied_bytes += dense_bytes(part.geometry);
        first += part.geometry.c;
      }
    } else if (launch.op == "slice_channels") {
      const PlanValue& whole = value(launch.in[0]);
      PlanValue& part = value(launch.out[0]);
      const int64_t first =
          graph.node(schedule.nodes[static_cast<size_t>(launch.schedule_index)]).attrs.integer("first");
      // A slice that ends inside a block would have another channel's values where its pad lanes are to hold zeros.
      const bool whole_blocks =
          part.geometry.c % whole.geometry.block == 0 || first + part.geometry.c == whole.geometry.c;
      const bool aligned = first % whole.geometry.block == 0 && whole_blocks;
      if (aligned && whole.place == PlanValue::Place::kArena && !part.is_target && all_take_slices(launch.out[0]))
        make_slice(part, whole, first);
      else
        launch.copied_bytes += dense_bytes(part.geometry);
    } else if (launch.op == "store_gradient") {
      PlanValue& gradient = value(launch.in[0]);
      if (gradient.place != PlanValue::Place::kArena || gradient.is_target || gradient.producer < 0 ||
          gradient.geometry.layout != Layout::kNchw || (options.several_lanes && !gradient.shared))
        continue;
      gradient.place = PlanValue::Place::kGradient;
      gradient.slot = graph.node(schedule.nodes[static_cast<size_t>(launch.schedule_index)]).attrs.integer("slot");
      gradient.buffer = -1;
    }
  }
}

void share_in_place(Plan& plan, const Graph&, const Schedule&) {
  std::vector<std::vector<int>> tenants(plan.buffers.size());
  std::vector<int> last_read(plan.values.size(), -1);
  for (size_t v = 0; v < plan.values.size(); ++v)
    if (plan.values[v].buffer >= 0) tenants[static_cast<size_t>(plan.values[v].buffer)].push_back(static_cast<int>(v));
  for (size_t l = 0; l < plan.launches.size(); ++l)
    for (const int v : plan.launches[l].in) last_read[static_cast<size_t>(v)] = static_cast<int>(l);
  // Backwards, so that a chain of in-place launches ends up in its last output's memory.
  for (int l = static_cast<int>(plan.launches.size()) - 1; l >= 0; --l) {
    const Launch& launch = plan.launches[static_cast<size_t>(l)];
    const OpDef* op = op_of(launch);
    if (!op || op->in_place.empty() || launch.out.empty()) continue;
    const PlanValue& out = plan.values[static_cast<size_t>(launch.out[0])];
    if (!out.geometry.dense() || out.place == PlanValue::Place::kLeaf) continue;
    for (const int i : op->in_place) {
      if (i >= static_cast<int>(launch.in.size())) continue;
      const int v = launch.in[static_cast<size_t>(i)];
      PlanValue& in = plan.values[static_cast<size_t>(v)];
      if (in.place != PlanValue::Place::kArena || in.is_target || in.producer < 0 || in.shared != out.shared ||
          last_read[static_cast<size_t>(v)] != l)
        continue;
      if (std::count(launch.in.begin(), launch.in.end(), v) != 1) continue;
      if (tenants[static_cast<size_t>(in.buffer)].size() != 1 || !in.geometry.dense()) continue;
      if (in.geometry.dtype != out.geometry.dtype || !same_places(in.geometry, out.geometry)) continue;
      in.place = out.place;
      in.buffer = out.buffer;
      in.slot = out.slot;
      if (out.buffer >= 0) tenants[static_cast<size_t>(out.buffer)].push_back(v);
      break;
    }
  }
}

}  // namespace convoy
