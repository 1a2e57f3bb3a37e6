// Pointwise operators and channel gates.
#include "kernels/elementwise.h"

#include "engine/ops.h"
#include "engine/ops/common.h"
#include "engine/ops/registry.h"

namespace convoy {

namespace {

std::vector<TensorInfo> infer_one(const Node& node) {
  require_shape(node, 0, node.inputs[0].shape());
  return {info_of(node.inputs[0])};
}

std::vector<TensorInfo> infer_pair(const Node& node) {
  require_shape(node, 1, node.inputs[0].shape());
  return infer_one(node);
}

std::vector<TensorInfo> infer_scale_by(const Node& node) {
  CONVOY_CHECK(node.inputs[1].shape().count() == 1, "the factor must be a scalar, it is {}",
               node.inputs[1].shape().str());
  require_shape(node, 1, node.inputs[1].shape());
  return infer_one(node);
}

std::vector<TensorInfo> infer_mul_channel(const Node& node) {
  const Shape& x = require_image(node, 0);
  require_shape(node, 1, {x[0], x[1], 1, 1});
  return {info_of(node.inputs[0])};
}

// Inputs (dy, x).
std::vector<TensorInfo> infer_gate_grad(const Node& node) {
  const Shape& x = require_image(node, 1);
  return {{DType::kF32, {x[0], x[1], 1, 1}}};
}

std::vector<TensorInfo> infer_dot(const Node& node) {
  infer_pair(node);
  return {{DType::kF32, {}}};
}

Activation act_of(const Node& node) {
  return static_cast<Activation>(node.attrs.integer("act"));
}

void grad_add(GradContext& g) {
  g.set(0, g.d_output());
  g.set(1, g.d_output());
}
void grad_mul(GradContext& g) {
  if (g.needs(0)) g.set(0, mul(g.d_output(), g.input(1)));
  if (g.needs(1)) g.set(1, mul(g.d_output(), g.input(0)));
}
void grad_scale(GradContext& g) {
  g.set(0, scale(g.d_output(), g.node().attrs.real("factor")));
}
void grad_scale_by(GradContext& g) {
  if (g.needs(0)) g.set(0, scale_by(g.d_output(), g.input(1)));
  if (g.needs(1)) g.set(1, dot(g.d_output(), g.input(0)));
}
void grad_activation(GradContext& g) {
  g.set(0, g.graph.append("activation_backward", {g.d_output(), g.output()}, g.node().attrs));
}
void grad_mul_channel(GradContext& g) {
  if (g.needs(1)) g.set(1, g.graph.append("mul_channel_backward_gate", {g.d_output(), g.input(0)}));
  if (g.needs(0)) g.set(0, mul_channel(g.d_output(), g.input(1)));
}
void grad_dot(GradContext& g) {
  if (g.needs(0)) g.set(0, scale_by(g.input(1), g.d_output()));
  if (g.needs(1)) g.set(1, scale_by(g.input(0), g.d_output()));
}

Kernel prepare_add(const PrepareArgs&) {
  return {.run = [](const KernelArgs& a) { CONVOY_KERNEL(a, add, a.in[0], a.in[1], a.out[0]); },
          .implementation = "elementwise"};
}
Kernel prepare_mul(const PrepareArgs&) {
  return {.run = [](const KernelArgs& a) { CONVOY_KERNEL(a, mul, a.in[0], a.in[1], a.out[0]); },
          .implementation = "elementwise"};
}
Kernel prepare_scale(const PrepareArgs& args) {
  const auto factor = static_cast<float>(args.node.attrs.real("factor"));
  return {.run = [=](const KernelArgs& a) { CONVOY_KERNEL(a, scale, a.in[0], factor, a.out[0]); },
          .implementation = "elementwise"};
}
Kernel prepare_scale_by(const PrepareArgs&) {
  return {.run = [](const KernelArgs& a) { CONVOY_KERNEL(a, scale_by_scalar, a.in[0], a.in[1].f32(), a.out[0]); },
          .implementation = "elementwise"};
}
Kernel prepare_activation(const PrepareArgs& args) {
  const Activation act = act_of(args.node);
  return {.run = [=](const KernelArgs& a) { CONVOY_KERNEL(a, activation, a.in[0], act, a.out[0]); },
          .implementation = "elementwise"};
}
Kernel prepare_activation_backward(const PrepareArgs& args) {
  const Activation act = act_of(args.node);
  return {.run = [=](const KernelArgs& a) { CONVOY_KERNEL(a, activation_backward, a.in[0], a.in[1], act, a.out[0]); },
          .implementation = "elementwise"};
}
Kernel prepare_mul_channel(const PrepareArgs&) {
  return {.run = [](const KernelArgs& a) { CONVOY_KERNEL(a, mul_channel, a.in[0], a.in[1], a.out[0]); },
          .implementation = "gate"};
}
Kernel prepare_gate_grad(const PrepareArgs&) {
  return {.run = [](const KernelArgs& a) { CONVOY_CPU(mul_channel_backward_gate, a.in[0], a.in[1], a.out[0]); },
          .implementation = "gate"};
}
Kernel prepare_gate_grad_cuda(const PrepareArgs& args) {
  return {.run =
              [](const KernelArgs& a) {
                CONVOY_CUDA(a, mul_channel_backward_gate, a.in[0], a.in[1], a.out[0], static_cast<float*>(a.workspace));
              },
          .workspace_bytes = emulated::gate_cuda_workspace_bytes(args.in[1]),
          .implementation = "gate"};
}
Kernel prepare_dot(const PrepareArgs&) {
  return {.run = [](const KernelArgs& a) { CONVOY_CPU(dot, a.in[0], a.in[1], a.out[0].f32()); },
          .implementation = "serial"};
}
Kernel prepare_dot_cuda(const PrepareArgs&) {
  return {.run =
              [](const KernelArgs& a) {
                CONVOY_CUDA(a, dot, a.in[0], a.in[1], a.out[0].f32(), static_cast<double*>(a.workspace));
              },
          .workspace_bytes = emulated::dot_cuda_workspace_bytes(),
          .implementation = "two-stage"};
}

// A scalar factor stays where it is, the rest follows the first input.
void layout_scale_by(LayoutChoice& c) {
  c.out[0] = c.in[0];
}

}  // namespace

Value add(Value a, Value b) {
  return a.graph->append("add", {a, b});
}
Value mul(Value a, Value b) {
  return a.graph->append("mul", {a, b});
}
Value scale(Value x, double factor) {
  return x.graph->append("scale", {x}, {{"factor", factor}});
}
Value scale_by(Value x, Value factor) {
  return x.graph->append("scale_by", {x, factor});
}
Value activation(Value x, Activation kind) {
  return x.graph->append("activation", {x}, {{"act", static_cast<int64_t>(kind)}});
}
Value mul_channel(Value x, Value gate) {
  return x.graph->append("mul_channel", {x, gate});
}
Value dot(Value a, Value b) {
  return a.graph->append("dot", {a, b});
}

std::vector<OpDef> elementwise_ops() {
  return {
      {.name = "add",
       .infer = infer_pair,
       .grad = grad_add,
       .layout = layout_follow_first,
       .prepare_cpu = prepare_add,
       .prepare_cuda = prepare_add,
       .in_place = {0, 1}},
      {.name = "mul",
       .infer = infer_pair,
       .grad = grad_mul,
       .layout = layout_follow_first,
       .prepare_cpu = prepare_mul,
       .prepare_cuda = prepare_mul,
       .in_place = {0, 1}},
      {.name = "scale",
       .infer = infer_one,
       .grad = grad_scale,
       .layout = layout_follow_first,
       .prepare_cpu = prepare_scale,
       .prepare_cuda = prepare_scale,
       .in_place = {0}},
      {.name = "scale_by",
       .infer = infer_scale_by,
       .grad = grad_scale_by,
       .layout = layout_scale_by,
       .prepare_cpu = prepare_scale_by,
       .prepare_cuda = prepare_scale_by,
       .in_place = {0}},
      {.name = "activation",
       .infer = infer_one,
       .grad = grad_activation,
       .layout = layout_follow_first,
       .prepare_cpu = prepare_activation,
       .prepare_cuda = prepare_activation,
       .in_place = {0}},
      {.name = "activation_backward",
       .infer = infer_pair,
       .layout = layout_follow_first,
       .prepare_cpu = prepare_activation_backward,
       .prepare_cuda = prepare_activation_backward,
       .in_place = {0}},
      {.name = "mul_channel",
       .infer = infer_mul_channel,
       .grad = grad_mul_channel,
       .prepare_cpu = prepare_mul_channel,
       .prepare_cuda = prepare_mul_channel,
       .in_place = {0}},
      {.name = "mul_channel_backward_gate",
       .infer = infer_gate_grad,
       .prepare_cpu = prepare_gate_grad,
       .prepare_cuda = prepare_gate_grad_cuda},
      {.name = "dot",
       .infer = infer_dot,
       .grad = grad_dot,
       .layout = layout_plain,
       .prepare_cpu = prepare_dot,
       .prepare_cuda = prepare_dot_cuda,
       .takes_slices = false},
  };
}

}  // namespace convoy
