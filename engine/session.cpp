#include "engine/session.h"

#include <omp.h>

#include <chrono>
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

Session::Session(Graph& graph, Schedule schedule, const Lanes& lanes)
    : graph_(graph), schedule_(std::move(schedule)), lanes_(lanes) {
  CONVOY_CHECK(lanes.count >= 0, "a session has no {} lanes", lanes.count);
  CONVOY_CHECK(lanes.count == 1 || graph.global_batch().shared(),
               "several lanes need a graph that says what global batch they are part of");
  plan_ = graph.context().plans().get(graph, schedule_, graph.context(), lanes.count > 1);
  const bool stores = std::any_of(plan_->launches.begin(), plan_->launches.end(),
                                  [](const Launch& launch) { return launch.op == "store_gradient"; });
  const bool sums = !plan_->launches.empty() && plan_->launches.back().kind == Launch::Kind::kFinishSums;
  if (stores) graph.parameters().require_gradients(sums ? &graph.context().communicator() : nullptr);
  if (Device* device = graph.context().device())
    on_device_ = std::make_unique<SessionDevice>(*device, graph, schedule_, *plan_, lanes.count);
}

Session::Session(Graph& graph, std::vector<Value> targets, const Lanes& lanes)
    : Session(
          graph,
          [&] {
            for (const Value& effect : graph.gradient_effects()) targets.push_back(effect);
            fuse(graph, make_schedule(graph, targets, true));
            return make_schedule(graph, targets, true);
          }(),
          lanes) {}

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

// The arena of lane 0, that of lane 1, ..., then what is kept of each lane; one arena for all where they take turns.
char* Session::place_of(const PlanBuffer& buffer, int lane) const {
  const size_t arenas = plan_->sequential ? 1 : static_cast<size_t>(memory_lanes()), l = static_cast<size_t>(lane);
  if (buffer.kept) return arena_ + arenas * plan_->arena_bytes + l * plan_->kept_bytes + buffer.offset;
  return arena_ + (plan_->sequential ? 0 : l * plan_->arena_bytes) + buffer.offset;
}

// On a rank without images only what lanes share has a place.
View Session::located(int index, int lane) const {
  const PlanValue& value = plan_->values[static_cast<size_t>(index)];
  View view = value.geometry;
  if (value.shared) lane = 0;
  switch (value.place) {
    case PlanValue::Place::kArena:
      view.data = place_of(plan_->buffers[static_cast<size_t>(value.buffer)], lane) +
                  channel_offset_bytes(view, value.channel_offset);
      break;
    case PlanValue::Place::kGradient:
      view.data = on_device_ ? on_device_->gradient(value.slot) : graph_.parameters().gradient(value.slot);
      break;
    case PlanValue::Place::kLeaf: {
      const PlanLeaf& leaf = plan_->leaves[static_cast<size_t>(value.leaf)];
      if (on_device_) {
        view.data = on_device_->leaf(leaf, lane);
        break;
      }
      switch (leaf.kind) {
        case PlanLeaf::Kind::kInput: {
          if (lanes_.count == 0 && !value.shared) return {};
          const auto it = inputs_.find(leaf.name);
          CONVOY_CHECK(it != inputs_.end(), "graph input '{}' was not bound", leaf.name);
          view.data = static_cast<char*>(const_cast<void*>(it->second)) + static_cast<size_t>(lane) * dense_bytes(view);
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
  bound_.assign(static_cast<size_t>(memory_lanes()), {});
  for (int lane = 0; lane < memory_lanes(); ++lane)
    for (const Launch& launch : plan_->launches) {
      Bound bound;
      for (const int v : launch.in) bound.in.push_back(located(v, lane));
      for (const int v : launch.out) bound.out.push_back(v < 0 ? View{} : located(v, lane));
      if (launch.workspace >= 0)
        bound.workspace = place_of(plan_->buffers[static_cast<size_t>(launch.workspace)], lane);
      bound_[static_cast<size_t>(lane)].push_back(std::move(bound));
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
  const auto memory = static_cast<size_t>(memory_lanes());
  const size_t bytes = plan_->arena_bytes * (plan_->sequential ? 1 : memory) + plan_->kept_bytes * memory;
  auto* arena = static_cast<char*>(context.claim_arena(bytes, this));
  const GiveUpOnError give_up(on_device_ ? on_device_->ranks() : nullptr);
  if (on_device_) on_device_->begin(inputs_);
  if (!placed_ || arena != arena_) {
    arena_ = arena;
    place();
  }
  omp_set_num_threads(context.threads());
  exchange_seconds_ = 0;
  // A rank without images stores no gradients; what it adds to the sums is zero.
  if (lanes_.count == 0)
    for (const GradientBucket& bucket : plan_->buckets) {
      const std::vector<std::span<float>> segments = segments_of(bucket);
      if (on_device_) on_device_->zero_gradients(segments);
      for (const std::span<float> segment : segments) std::fill(segment.begin(), segment.end(), 0.0f);
    }

  const std::vector<Launch>& launches = plan_->launches;
  size_t l = 0;
  for (; l < launches.size() && launches[l].phase == Launch::Phase::kBefore; ++l) run_launch(l, step, 0, lanes_.count);
  if (plan_->sequential) {
    const size_t first = l;
    for (int lane = 0; lane < memory_lanes(); ++lane)
      for (l = first; l < launches.size() && launches[l].phase == Launch::Phase::kLanes; ++l)
        run_launch(l, step, lane, std::min(lane + 1, lanes_.count));
  }
  for (; l < launches.size(); ++l) run_launch(l, step, 0, lanes_.count);
  if (!on_device_) return;
  try {
    on_device_->end(
        fmt::format("step {} on the device", step.global_step + 1),
        [this](size_t launch, int lane) { return bound_[static_cast<size_t>(lane)][launch].in; },
        [this](const Launch& launch) { return name_of(launch); });
  } catch (const std::exception& e) {
    fail("step {}, {}", step.global_step, e.what());
  }
}

/// Lanes [first, last); what is done once for all of them is done with the last.
void Session::run_launch(size_t l, const StepState& step, int first, int last) {
  const Launch& launch = plan_->launches[l];
  const bool once = launch.shared || launch.kind != Launch::Kind::kKernel;
  if (once && last < lanes_.count) return;
  const bool check = graph_.context().options().check_values;
  const int first_memory = once ? 0 : first, last_memory = once ? memory_lanes() : last;
  if (check)
    for (int lane = first_memory; lane < last_memory; ++lane) poison_new_buffers(static_cast<int>(l), lane);
  if (launch.kind != Launch::Kind::kKernel)
    exchange(l, step);
  else if (launch.shared)
    run_kernel(l, step, 0);
  else
    for (int lane = first; lane < last; ++lane) run_kernel(l, step, lane);
  if (check && launch.kind == Launch::Kind::kKernel)
    for (int lane = first_memory; lane < last_memory; ++lane) check_guards(static_cast<int>(l), lane);
}

void Session::run_kernel(size_t l, const StepState& step, int lane) {
  Context& context = graph_.context();
  Profiler& profiler = context.profiler();
  const Launch& launch = plan_->launches[l];
  const Bound& bound = bound_[static_cast<size_t>(lane)][l];
  StepState state = step;
  state.first_slot += lane * lanes_.images;
  state.lane = lane;
  const double start = profiler.enabled() ? profiler.now_us() : 0;
  try {
    KernelArgs args{.in = bound.in, .out = bound.out, .workspace = bound.workspace, .step = state};
    if (on_device_) {
      args.on_device = true;
      args.stream = on_device_->device().compute();
      args.fault = on_device_->fault(l, lane);
    }
    launch.kernel.run(args);
    // The debug interpreter waits, so that a fault of the kernel is seen here and named.
    if (on_device_ && context.options().check_values) on_device_->device().synchronize();
  } catch (const std::exception& e) {
    fail("step {}, {} ({}): {}", step.global_step, name_of(launch), launch.op, e.what());
  }
  if (profiler.enabled())
    profiler.add({.name = name_of(launch) + " " + launch.op,
                  .category = launch.op,
                  .start_us = start,
                  .duration_us = profiler.now_us() - start});
  if (context.options().check_values) check_finite(launch, bound);
}

void Session::exchange(size_t l, const StepState& step) {
  using Clock = std::chrono::steady_clock;
  Context& context = graph_.context();
  Communicator& communicator = context.communicator();
  Profiler& profiler = context.profiler();
  const Launch& launch = plan_->launches[l];
  const auto start = Clock::now();
  const double start_us = profiler.enabled() ? profiler.now_us() : 0;
  const std::string name = fmt::format("{} {} of step {}", launch.op, launch.name, step.global_step + 1);
  switch (launch.kind) {
    case Launch::Kind::kStartSum: {
      const auto segments = segments_of(plan_->buckets[static_cast<size_t>(launch.bucket)]);
      if (on_device_ && on_device_->ranks()) {
        on_device_->ranks()->start_sum(on_device_->on_device(segments), on_device_->device().compute(), name);
        break;
      }
      if (on_device_) on_device_->fetch_gradients(segments);
      communicator.start_sum(segments, name);
      break;
    }
    case Launch::Kind::kFinishSums:
      if (on_device_ && on_device_->ranks()) {
        on_device_->ranks()->finish_sums(on_device_->device().compute());
        break;
      }
      communicator.finish_sums();
      if (on_device_)
        for (const GradientBucket& bucket : plan_->buckets) on_device_->send_gradients(segments_of(bucket));
      break;
    default: {
      std::vector<std::vector<View>> in(launch.in.size());
      for (size_t i = 0; i < launch.in.size(); ++i) {
        const int lanes = plan_->values[static_cast<size_t>(launch.in[i])].shared ? 1 : lanes_.count;
        for (int lane = 0; lane < lanes; ++lane) in[i].push_back(bound_[static_cast<size_t>(lane)][l].in[i]);
      }
      std::span<const View> out = bound_[0][l].out;
      if (on_device_ && on_device_->ranks() && !launch.kernel.exchange) {
        on_device_->exchange(launch, in, out, name);
        break;
      }
      StagedExchange staged;
      if (on_device_) {
        staged = on_device_->stage(in, out);
        in = staged.in, out = staged.out;
      }
      if (launch.kernel.exchange)
        launch.kernel.exchange({.in = in, .out = out, .communicator = communicator, .name = name});
      else
        exchange_messages(launch, in, out, name);
      if (on_device_) on_device_->send(staged, bound_[0][l].out);
    }
  }
  exchange_seconds_ += std::chrono::duration<double>(Clock::now() - start).count();
  if (profiler.enabled())
    profiler.add(
        {.name = name, .category = "exchange", .start_us = start_us, .duration_us = profiler.now_us() - start_us});
}

void Session::exchange_messages(const Launch& launch, std::span<const std::vector<View>> in, std::span<const View> out,
                                const std::string& name) {
  Communicator& communicator = graph_.context().communicator();
  const size_t floats = Plan::message_floats(launch);
  message_.resize(floats);
  size_t at = 0, first = 0;
  for (const ExchangePart& part : launch.parts) {
    part.message.pack(in.subspan(first, part.inputs), message_.data() + at);
    at += part.message.floats;
    first += part.inputs;
  }
  const bool gathered = launch.parts[0].message.kind == Message::Kind::kGather;
  if (gathered) {
    messages_.resize(floats * static_cast<size_t>(communicator.size()));
    communicator.all_gather(message_.data(), floats * sizeof(float), messages_.data(), name);
  } else {
    communicator.all_reduce(message_, ReduceOp::kSum, name);
  }
  const float* all = gathered ? messages_.data() : message_.data();
  at = first = 0;
  for (const ExchangePart& part : launch.parts) {
    part.message.unpack(all + at, floats, gathered ? communicator.size() : 1, out.subspan(first, part.outputs));
    at += part.message.floats;
    first += part.outputs;
  }
}

// In order of memory, neighbours joined; the gaps that align parameters are zero on every rank.
std::vector<std::span<float>> Session::segments_of(const GradientBucket& bucket) const {
  const ParamStore& store = graph_.parameters();
  std::vector<int64_t> order = bucket.parameters;
  std::sort(order.begin(), order.end());
  std::vector<std::span<float>> segments;
  int64_t end = -1;
  for (const int64_t p : order) {
    const Parameter& parameter = store.parameters()[static_cast<size_t>(p)];
    const bool last = p + 1 == static_cast<int64_t>(store.parameters().size());
    const int64_t next = last ? store.total() : store.parameters()[static_cast<size_t>(p) + 1].offset;
    if (parameter.offset == end)
      segments.back() = {segments.back().data(), segments.back().size() + static_cast<size_t>(next - parameter.offset)};
    else
      segments.emplace_back(store.gradient_memory(p), static_cast<size_t>(next - parameter.offset));
    end = next;
  }
  return segments;
}

void Session::poison_new_buffers(int l, int lane) {
  for (const PlanBuffer& b : plan_->buffers)
    if (b.first == l && b.last >= l) {
      const size_t bytes = b.bytes + plan_->guard_bytes;
      if (on_device_)
        on_device_->device().runtime().fill(place_of(b, lane), kPoison, bytes, on_device_->device().compute());
      else
        std::memset(place_of(b, lane), kPoison, bytes);
    }
}

void Session::check_guards(int l, int lane) const {
  for (const PlanBuffer& b : plan_->buffers) {
    if (b.first > l || b.last < l) continue;
    const auto* guard = reinterpret_cast<const unsigned char*>(place_of(b, lane)) + b.bytes;
    std::vector<unsigned char> copy(on_device_ ? plan_->guard_bytes : 0);
    if (on_device_) {
      on_device_->device().download(copy.data(), guard, copy.size());
      guard = copy.data();
    }
    for (size_t i = 0; i < plan_->guard_bytes; ++i)
      CONVOY_CHECK(guard[i] == kPoison, "{} ({}) wrote {} bytes behind a buffer of {} bytes",
                   name_of(plan_->launches[static_cast<size_t>(l)]), plan_->launches[static_cast<size_t>(l)].op, i + 1,
                   b.bytes);
  }
}

void Session::check_finite(const Launch& launch, const Bound& bound) const {
  for (View v : bound.out) {
    if (!v.data || v.dtype != DType::kF32) continue;
    HostCopy copy;
    if (on_device_) {
      copy = on_device_->device().download(v);
      v = copy.view;
    }
    // Rows of elements side by side: whole images, or an nhwc image's pixels, between which other channels may lie.
    const int64_t lanes = v.blocks() * v.block, rows = v.layout == Layout::kNhwc ? v.pixels() : 1;
    const int64_t length = v.layout == Layout::kNhwc ? lanes : lanes * v.pixels();
    for (int64_t n = 0; n < v.n; ++n)
      for (int64_t row = 0; row < rows; ++row) {
        const float* values = v.f32() + n * v.image_stride() + row * v.pitch;
        for (int64_t i = 0; i < length; ++i)
          CONVOY_CHECK(std::isfinite(values[i]), "{} ({}): {} at element {} of image {} of its output", name_of(launch),
                       launch.op, values[i], row * length + i, n);
      }
  }
}

Tensor Session::fetch(size_t i, int lane) const {
  CONVOY_CHECK(i < plan_->targets.size() && plan_->targets[i] >= 0, "target {} has no value to fetch", i);
  CONVOY_CHECK(graph_.context().holds_arena(this), "target {} is gone: another session of this context has run since",
               i);
  const int index = plan_->targets[i];
  CONVOY_CHECK(lane < lanes_.count || plan_->values[static_cast<size_t>(index)].shared,
               "target {} of lane {} does not exist: this session has {} lanes", i, lane, lanes_.count);
  const PlanValue& value = plan_->values[static_cast<size_t>(index)];
  const View from = located(index, lane);
  if (on_device_) return on_device_->fetch(from, value.info);
  Tensor result = Tensor::empty(value.info.dtype, value.info.shape);
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
    Session session(graph, make_schedule(graph, missing, true), Lanes{});
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
