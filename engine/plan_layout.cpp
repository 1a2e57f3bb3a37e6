// Layout pass: walks the schedule, gives every value its layout and puts reorders where a node wants another one.
#include <algorithm>
#include <map>

#include "engine/context.h"
#include "engine/plan.h"
#include "kernels/isa.h"
#include "kernels/reorder.h"

namespace convoy {

namespace {

bool is_image(const TensorInfo& info) {
  return info.dtype == DType::kF32 && info.shape.rank() == 4;
}

View geometry_of(const TensorInfo& info, Layout layout) {
  if (layout == Layout::kNchw) return plain_view(nullptr, info.dtype, info.shape);
  View v = layout == Layout::kNhwc ? nhwc_view(nullptr, info.shape)
                                   : blocked_view(nullptr, info.shape, cpu::channel_block());
  v.dtype = info.dtype;
  return v;
}

class LayoutPass {
 public:
  LayoutPass(Plan& plan, const Graph& graph, const Schedule& schedule, const Context& context)
      : plan_(plan), graph_(graph), schedule_(schedule), context_(context) {}

  void run() {
    for (size_t i = 0; i < schedule_.nodes.size(); ++i) {
      const NodeId id = schedule_.nodes[i];
      for (int32_t o = 0; o < static_cast<int32_t>(graph_.node(id).outputs.size()); ++o)
        if (const Value v{const_cast<Graph*>(&graph_), id, o}; is_leaf(graph_, v)) add_leaf(v, static_cast<int>(i));
      if (schedule_.runs[i]) add_launch(id, static_cast<int>(i));
    }
    for (const Value& target : schedule_.targets) {
      const auto it = current_.find(target);
      plan_.targets.push_back(it == current_.end() ? -1 : it->second);  // an effect has no value
      if (it != current_.end()) plan_.values[static_cast<size_t>(it->second)].is_target = true;
    }
  }

 private:
  int add_value(PlanValue value) {
    plan_.values.push_back(std::move(value));
    return static_cast<int>(plan_.values.size()) - 1;
  }

  void add_leaf(Value v, int schedule_index) {
    const Node& node = graph_.node(v.node);
    PlanLeaf leaf{.slot = node.slot, .schedule_index = schedule_index, .output = v.output};
    leaf.kind = node.op->name == "input"       ? PlanLeaf::Kind::kInput
                : node.op->name == "parameter" ? PlanLeaf::Kind::kParameter
                : node.op->name == "buffer"    ? PlanLeaf::Kind::kBuffer
                                               : PlanLeaf::Kind::kConstant;
    if (leaf.kind == PlanLeaf::Kind::kInput) leaf.name = node.name;
    const TensorInfo& info = node.outputs[static_cast<size_t>(v.output)];
    leaf.value = add_value({.name = node.op->name + " " + node.name,
                            .info = info,
                            .geometry = geometry_of(info, Layout::kNchw),
                            .place = PlanValue::Place::kLeaf,
                            .leaf = static_cast<int>(plan_.leaves.size()),
                            .shared = leaf.kind != PlanLeaf::Kind::kInput || !node.attrs.entries().empty()});
    plan_.leaves.push_back(leaf);
    current_[v] = leaf.value;
  }

  DeviceKind device() const { return context_.options().device; }

  /// Operators say "blocked" for the layout of images, whatever that is on the device.
  void take_image_layout(std::vector<Layout>& layouts) const {
    if (device() != DeviceKind::kCpu) std::replace(layouts.begin(), layouts.end(), Layout::kBlocked, Layout::kNhwc);
  }

  int in_layout(int value, Layout wanted) {
    if (plan_.values[static_cast<size_t>(value)].geometry.layout == wanted) return value;
    const auto key = std::pair(value, wanted);
    if (const auto it = reordered_.find(key); it != reordered_.end()) return it->second;
    const PlanValue& from = plan_.values[static_cast<size_t>(value)];
    const int to = add_value(
        {.name = from.name, .info = from.info, .geometry = geometry_of(from.info, wanted), .shared = from.shared});
    Launch launch{.op = "reorder", .name = plan_.values[static_cast<size_t>(value)].name, .in = {value}, .out = {to}};
    launch.shared = plan_.values[static_cast<size_t>(to)].shared;
    launch.kernel = device() == DeviceKind::kCpu
                        ? Kernel{.run = [](const KernelArgs& a) { CONVOY_CPU(reorder, a.in[0], a.out[0]); }}
                        : Kernel{.run = [](const KernelArgs& a) { CONVOY_CUDA(a, reorder, a.in[0], a.out[0]); }};
    launch.kernel.implementation = "reorder";
    launch.copied_bytes = dense_bytes(plan_.values[static_cast<size_t>(to)].geometry);
    launch.cost.bytes = 2.0 * static_cast<double>(launch.copied_bytes);
    push(std::move(launch));
    reordered_[key] = to;
    return to;
  }

  void push(Launch launch) {
    for (const int v : launch.out)
      if (v >= 0) plan_.values[static_cast<size_t>(v)].producer = static_cast<int>(plan_.launches.size());
    plan_.launches.push_back(std::move(launch));
  }

  void add_launch(NodeId id, int schedule_index) {
    const Node& node = graph_.node(id);
    CONVOY_CHECK(has_kernel(*node.op, device()), "{}: operator '{}' has no kernel for device {}", node.name,
                 node.op->name, device_name(device()));
    LayoutChoice choice{.node = node, .device = device(), .in = {}, .out = {}};
    for (const Value& v : node.inputs) {
      const Layout layout = plan_.values[static_cast<size_t>(current_.at(v))].geometry.layout;
      choice.in.push_back(layout == Layout::kNhwc ? Layout::kBlocked : layout);
    }
    for (const TensorInfo& o : node.outputs) choice.out.push_back(is_image(o) ? Layout::kBlocked : Layout::kNchw);
    if (node.op->layout) {
      node.op->layout(choice);
    } else {
      for (size_t i = 0; i < choice.in.size(); ++i)
        choice.in[i] = is_image({node.inputs[i].dtype(), node.inputs[i].shape()}) ? Layout::kBlocked : Layout::kNchw;
    }
    take_image_layout(choice.in);
    take_image_layout(choice.out);
    Launch launch{.op = node.op->name,
                  .name = node.name,
                  .attrs = node.attrs.str(),
                  .cost = cost_of(node),
                  .schedule_index = schedule_index};
    for (size_t i = 0; i < node.inputs.size(); ++i)
      launch.in.push_back(in_layout(current_.at(node.inputs[i]), choice.in[i]));
    launch.kind = node.op->collective ? Launch::Kind::kExchange : Launch::Kind::kKernel;
    launch.shared = std::all_of(launch.in.begin(), launch.in.end(),
                                [&](int v) { return plan_.values[static_cast<size_t>(v)].shared; });
    for (size_t o = 0; o < node.outputs.size(); ++o) {
      const int value = add_value({.name = node.name,
                                   .info = node.outputs[o],
                                   .geometry = geometry_of(node.outputs[o], choice.out[o]),
                                   .shared = launch.shared || node.op->collective});
      launch.out.push_back(value);
      current_[{const_cast<Graph*>(&graph_), id, static_cast<int32_t>(o)}] = value;
    }
    if (node.op->name == "store_gradient") {
      const TensorInfo info = plan_.values[static_cast<size_t>(launch.in[0])].info;
      launch.out.push_back(add_value({.name = node.name,
                                      .info = info,
                                      .geometry = geometry_of(info, Layout::kNchw),
                                      .place = PlanValue::Place::kGradient,
                                      .slot = node.attrs.integer("slot"),
                                      .shared = true}));
    }
    if (node.op->collective)
      launch.parts = {{.schedule_index = schedule_index,
                       .name = node.name,
                       .inputs = launch.in.size(),
                       .outputs = launch.out.size()}};
    push(std::move(launch));
  }

  Plan& plan_;
  const Graph& graph_;
  const Schedule& schedule_;
  const Context& context_;
  std::map<Value, int> current_;
  std::map<std::pair<int, Layout>, int> reordered_;
};

}  // namespace

void choose_layouts(Plan& plan, const Graph& graph, const Schedule& schedule, const Context& context) {
  LayoutPass(plan, graph, schedule, context).run();
}

}  // namespace convoy
