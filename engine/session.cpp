#include "engine/session.h"

#include <omp.h>

#include <cmath>
#include <cstring>

#include "engine/param_store.h"
#include "engine/plan_cache.h"
#include "kernels/isa.h"
#include "kernels/reorder.h"

namespace convoy {

namespace {
constexpr unsigned char kPoison = 0xff;  // four of them are a NaN
}

Session::Session(Graph& graph, Schedule schedule) : graph_(graph), schedule_(std::move(schedule)) {
  plan_ = graph.context().plans().get(graph, schedule_, graph.context());
  for (const Launch& launch : plan_->launches)
    if (launch.op == "store_gradient") graph.parameters().require_gradients();
}

Session::Session(Graph& graph, std::vector<Value> targets)
    : Session(graph, [&] {
        for (const Value& effect : graph.gradient_effects()) targets.push_back(effect);
        fuse(graph, make_schedule(graph, targets, true));
        return make_schedule(graph, targets, true);
      }()) {}

Session::~Session() {
  graph_.context().leave_arena(this);
}

void Session::bind(const std::string& input, const void* data) {
  CONVOY_CHECK(data, "graph input '{}' was bound to no memory", input);
  for (const PlanLeaf& leaf : plan_->leaves)
    if (leaf.kind == PlanLeaf::Kind::kInput && leaf.name == input) {
      if (inputs_[input] != data) placed_ = false;
      inputs_[input] = data;
      return;
    }
  CONVOY_CHECK(graph_.find_input(input), "the graph has no input '{}'", input);
}

View Session::located(int index) const {
  const PlanValue& value = plan_->values[static_cast<size_t>(index)];
  View view = value.geometry;
  switch (value.place) {
    case PlanValue::Place::kArena:
      view.data = arena_ + plan_->buffers[static_cast<size_t>(value.buffer)].offset +
                  static_cast<size_t>(value.channel_offset * view.h * view.w) * dtype_size(view.dtype);
      break;
    case PlanValue::Place::kGradient:
      view.data = graph_.parameters().gradient(value.slot);
      break;
    case PlanValue::Place::kLeaf: {
      const PlanLeaf& leaf = plan_->leaves[static_cast<size_t>(value.leaf)];
      switch (leaf.kind) {
        case PlanLeaf::Kind::kInput: {
          const auto it = inputs_.find(leaf.name);
          CONVOY_CHECK(it != inputs_.end(), "graph input '{}' was not bound", leaf.name);
          view.data = const_cast<void*>(it->second);
          break;
        }
        case PlanLeaf::Kind::kConstant:
          view.data = graph_.node(schedule_.nodes[static_cast<size_t>(leaf.schedule_index)])
                          .computed[static_cast<size_t>(leaf.output)]
                          .view()
                          .data;
          break;
        case PlanLeaf::Kind::kParameter:
          view.data = graph_.parameters().value(leaf.slot);
          break;
        case PlanLeaf::Kind::kBuffer:
          view.data = graph_.parameters().buffers()[static_cast<size_t>(leaf.slot)].value.view().data;
          break;
      }
    }
  }
  return view;
}

void Session::place() {
  bound_.clear();
  for (const Launch& launch : plan_->launches) {
    Bound bound;
    for (const int v : launch.in) bound.in.push_back(located(v));
    for (const int v : launch.out) bound.out.push_back(v < 0 ? View{} : located(v));
    if (launch.workspace >= 0) bound.workspace = arena_ + plan_->buffers[static_cast<size_t>(launch.workspace)].offset;
    bound_.push_back(std::move(bound));
  }
  placed_ = true;
}

// A plan may have been made for another graph of the same structure, so module paths come from this one.
std::string Session::name_of(const Launch& launch) const {
  return launch.schedule_index < 0 ? launch.name
                                   : graph_.node(schedule_.nodes[static_cast<size_t>(launch.schedule_index)]).name;
}

void Session::run(const StepState& step) {
  Context& context = graph_.context();
  auto* arena = static_cast<char*>(context.claim_arena(plan_->arena_bytes, this));
  if (!placed_ || arena != arena_) {
    arena_ = arena;
    place();
  }
  Profiler& profiler = context.profiler();
  omp_set_num_threads(context.threads());
  for (size_t l = 0; l < plan_->launches.size(); ++l) {
    const Launch& launch = plan_->launches[l];
    const Bound& bound = bound_[l];
    const double start = profiler.enabled() ? profiler.now_us() : 0;
    if (context.options().check_values) poison_new_buffers(static_cast<int>(l));
    try {
      launch.kernel.run({.in = bound.in, .out = bound.out, .workspace = bound.workspace, .step = step});
    } catch (const std::exception& e) {
      fail("step {}, {} ({}): {}", step.global_step, name_of(launch), launch.op, e.what());
    }
    if (profiler.enabled())
      profiler.add({.name = name_of(launch) + " " + launch.op,
                    .category = launch.op,
                    .start_us = start,
                    .duration_us = profiler.now_us() - start});
    if (context.options().check_values) {
      check_guards(static_cast<int>(l));
      check_finite(launch, bound);
    }
  }
}

void Session::poison_new_buffers(int l) {
  for (const PlanBuffer& b : plan_->buffers)
    if (b.first == l && b.last >= l) std::memset(arena_ + b.offset, kPoison, b.bytes + plan_->guard_bytes);
}

void Session::check_guards(int l) const {
  for (const PlanBuffer& b : plan_->buffers) {
    if (b.first > l || b.last < l) continue;
    const auto* guard = reinterpret_cast<const unsigned char*>(arena_) + b.offset + b.bytes;
    for (size_t i = 0; i < plan_->guard_bytes; ++i)
      CONVOY_CHECK(guard[i] == kPoison, "{} ({}) wrote {} bytes behind a buffer of {} bytes",
                   name_of(plan_->launches[static_cast<size_t>(l)]), plan_->launches[static_cast<size_t>(l)].op, i + 1,
                   b.bytes);
  }
}

void Session::check_finite(const Launch& launch, const Bound& bound) const {
  for (const View& v : bound.out) {
    if (!v.data || v.dtype != DType::kF32) continue;
    for (int64_t n = 0; n < v.n; ++n) {
      const float* image = v.f32() + n * v.image_stride();
      for (int64_t i = 0; i < v.blocks() * v.block * v.pixels(); ++i)
        CONVOY_CHECK(std::isfinite(image[i]), "{} ({}): {} at element {} of image {} of its output", name_of(launch),
                     launch.op, image[i], i, n);
    }
  }
}

Tensor Session::fetch(size_t i) const {
  CONVOY_CHECK(i < plan_->targets.size() && plan_->targets[i] >= 0, "target {} has no value to fetch", i);
  CONVOY_CHECK(graph_.context().holds_arena(this), "target {} is gone: another session of this context has run since",
               i);
  const int index = plan_->targets[i];
  const PlanValue& value = plan_->values[static_cast<size_t>(index)];
  Tensor result = Tensor::empty(value.info.dtype, value.info.shape);
  const View from = located(index);
  if (from.layout == Layout::kNchw)
    std::memcpy(result.view().data, from.data,
                static_cast<size_t>(value.info.shape.count()) * dtype_size(value.info.dtype));
  else
    CONVOY_CPU(reorder, from, result.view());
  return result;
}

std::vector<Tensor> evaluate(const std::vector<Value>& values, const StepState& step) {
  CONVOY_CHECK(!values.empty(), "nothing to evaluate");
  Graph& graph = *values[0].graph;
  const auto kept = [&](Value v) -> Tensor* {
    std::vector<Tensor>& computed = graph.node(v.node).computed;
    return computed.empty() ? nullptr : &computed[static_cast<size_t>(v.output)];  // an effect has no value
  };
  std::vector<Value> missing;
  for (const Value& v : values) {
    const Tensor* tensor = kept(v);
    if (!(tensor ? tensor->defined() : graph.node(v.node).effect_done)) missing.push_back(v);
  }
  if (!missing.empty()) {
    fuse(graph, make_schedule(graph, missing, true));
    Session session(graph, make_schedule(graph, missing, true));
    session.run(step);
    for (size_t i = 0; i < missing.size(); ++i)
      if (Tensor* tensor = kept(missing[i]); tensor && !tensor->defined()) *tensor = session.fetch(i);
    for (const NodeId id : session.schedule_.nodes)
      if (graph.node(id).op->effect) graph.node(id).effect_done = true;
  }
  std::vector<Tensor> results;
  for (const Value& v : values) {
    const Tensor* tensor = kept(v);
    results.push_back(tensor ? *tensor : Tensor{});
  }
  return results;
}

Tensor evaluate(Value v, const StepState& step) {
  return evaluate(std::vector<Value>{v}, step)[0];
}

}  // namespace convoy
