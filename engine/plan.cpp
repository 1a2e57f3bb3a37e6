#include "engine/plan.h"

#include <fmt/format.h>

#include "engine/context.h"
#include "engine/param_store.h"

namespace convoy {

namespace {

std::string describe(const PlanValue& v) {
  std::string text = v.info.shape.str();
  if (v.info.dtype != DType::kF32) text += dtype_name(v.info.dtype);
  if (v.geometry.layout == Layout::kBlocked) text += fmt::format("b{}", v.geometry.block);
  if (v.geometry.layout == Layout::kNhwc) text += "nhwc";
  if (!v.geometry.dense()) text += fmt::format("/{}+{}", v.geometry.pitch, v.channel_offset);
  if (v.place == PlanValue::Place::kGradient) text += "@grad";
  return text;
}

void prepare_kernels(Plan& plan, const Graph& graph, const Schedule& schedule, const Context& context) {
  for (Launch& launch : plan.launches) {
    if (launch.schedule_index < 0) continue;
    const Node& node = graph.node(schedule.nodes[static_cast<size_t>(launch.schedule_index)]);
    std::vector<View> in, out;
    for (const int v : launch.in) in.push_back(plan.values[static_cast<size_t>(v)].geometry);
    for (const int v : launch.out) out.push_back(plan.values[static_cast<size_t>(v)].geometry);
    try {
      if (launch.kind != Launch::Kind::kExchange) {
        launch.kernel = prepare(*node.op, {.node = node, .in = in, .out = out, .context = context});
        continue;
      }
      size_t first_in = 0, first_out = 0;
      for (ExchangePart& part : launch.parts) {
        const Node& member = graph.node(schedule.nodes[static_cast<size_t>(part.schedule_index)]);
        launch.kernel = prepare(*member.op, {.node = member,
                                             .in = std::span(in).subspan(first_in, part.inputs),
                                             .out = std::span(out).subspan(first_out, part.outputs),
                                             .context = context});
        part.message = launch.kernel.message;
        first_in += part.inputs;
        first_out += part.outputs;
      }
    } catch (const std::exception& e) {
      fail("{}: operator '{}' cannot be prepared: {}", node.name, node.op->name, e.what());
    }
  }
}

}  // namespace

Plan compile(const Graph& graph, const Schedule& schedule, const Context& context, const PlanOptions& options) {
  Plan plan;
  plan.hash = schedule.hash;
  choose_layouts(plan, graph, schedule, context);
  plan.sequential = graph.global_batch().statistics == GlobalBatch::Statistics::kLane && graph.global_batch().shared();
  if (plan.sequential) order_phases(plan);
  // Exact sums take several exchanges each; they are a test instrument and stay apart.
  if (!context.options().exact_ranks) merge_messages(plan);
  make_views(plan, graph, schedule, options);
  share_in_place(plan, graph, schedule);
  prepare_kernels(plan, graph, schedule, context);
  assign_buckets(plan, graph.parameters(), options);
  if (context.communicator().size() > 1 && !context.options().exact_ranks) exchange_buckets(plan);
  pack_memory(plan, options);
  return plan;
}

double Plan::total_flops() const {
  double sum = 0;
  for (const Launch& l : launches) sum += l.cost.flops;
  return sum;
}

std::string Plan::dump(bool with_implementations) const {
  std::string text;
  size_t copied = 0;
  for (size_t l = 0; l < launches.size(); ++l) {
    const Launch& launch = launches[l];
    text += fmt::format("{:4} {:<24} {}", l, launch.op, launch.name);
    if (!launch.attrs.empty()) text += " [" + launch.attrs + "]";
    text += " :";
    for (const int v : launch.in) text += " " + describe(values[static_cast<size_t>(v)]);
    text += " ->";
    for (const int v : launch.out) text += v < 0 ? " -" : " " + describe(values[static_cast<size_t>(v)]);
    if (with_implementations) text += " | " + launch.kernel.implementation;
    text += fmt::format(" | {:.3f} MFLOP {:.3f} MB", launch.cost.flops / 1e6, launch.cost.bytes / 1e6);
    if (launch.copied_bytes) text += fmt::format(" copies {} B", launch.copied_bytes);
    text += '\n';
    copied += launch.copied_bytes;
  }
  if (with_implementations)
    text += fmt::format("arena {} B in {} buffers, most alive at once {} B; ", arena_bytes, buffers.size(),
                        lower_bound_bytes);
  text += fmt::format("copied by reorders, concats and slices {} B\n", copied);
  for (size_t b = 0; b < buckets.size(); ++b)
    text += fmt::format("bucket {}: {} gradients, {} B, complete after launch {}\n", b, buckets[b].parameters.size(),
                        buckets[b].bytes, buckets[b].ready_after);
  return text;
}

size_t Plan::message_floats(const Launch& launch) {
  size_t floats = 0;
  for (const ExchangePart& part : launch.parts) floats += part.message.floats;
  return floats;
}

std::string Plan::exchanges() const {
  std::string text;
  for (const Launch& launch : launches) switch (launch.kind) {
      case Launch::Kind::kKernel:
        break;
      case Launch::Kind::kExchange:
        text += fmt::format("{} {}: {} floats\n", launch.op, launch.name, message_floats(launch));
        break;
      case Launch::Kind::kStartSum:
        text += fmt::format("gradients {}: {} bytes\n", launch.name, buckets[static_cast<size_t>(launch.bucket)].bytes);
        break;
      case Launch::Kind::kFinishSums:
        text += "gradients complete\n";
    }
  return text;
}

}  // namespace convoy
