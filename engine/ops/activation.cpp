// Activations whose gradient needs their input, and those with parameters. ReLU, ReLU6 and sigmoid, which other
// operators fuse, are in elementwise.cpp.
#include "engine/ops.h"
#include "engine/ops/common.h"
#include "engine/ops/registry.h"
#include "kernels/elementwise.h"
#include "kernels/prelu.h"

namespace convoy {

namespace {

std::vector<TensorInfo> infer_one(const Node& node) {
  require_shape(node, 0, node.inputs[0].shape());
  return {info_of(node.inputs[0])};
}
std::vector<TensorInfo> infer_backward(const Node& node) {
  require_shape(node, 1, node.inputs[0].shape());
  return infer_one(node);
}

void require_slopes(const Node& node, size_t i, int64_t channels) {
  const Shape& slope = node.inputs[i].shape();
  CONVOY_CHECK(slope.rank() == 1 && (slope[0] == 1 || slope[0] == channels) && node.inputs[i].dtype() == DType::kF32,
               "the slopes must be f32, one or one per channel ({}), they are {} {}", channels,
               dtype_name(node.inputs[i].dtype()), slope.str());
}
std::vector<TensorInfo> infer_prelu(const Node& node) {
  require_slopes(node, 1, require_image(node, 0)[1]);
  return {info_of(node.inputs[0])};
}
// Inputs (dy, x, slope); outputs dx and the slope's gradient.
std::vector<TensorInfo> infer_prelu_backward(const Node& node) {
  require_shape(node, 1, require_image(node, 0));
  require_slopes(node, 2, node.inputs[0].shape()[1]);
  return {info_of(node.inputs[0]), info_of(node.inputs[2])};
}

void grad_leaky(GradContext& g) {
  g.set(0, g.graph.append("leaky_relu_backward", {g.d_output(), g.input(0)}, g.node().attrs));
}
void grad_hardswish(GradContext& g) {
  g.set(0, g.graph.append("hardswish_backward", {g.d_output(), g.input(0)}));
}
void grad_prelu(GradContext& g) {
  const Value dx = g.graph.append("prelu_backward", {g.d_output(), g.input(0), g.input(1)});
  if (g.needs(0)) g.set(0, dx);
  if (g.needs(1)) g.set(1, {&g.graph, dx.node, 1});
}

Kernel prepare_leaky(const PrepareArgs& args) {
  const auto slope = static_cast<float>(args.node.attrs.real("slope"));
  return {.run = [=](const KernelArgs& a) { CONVOY_KERNEL(a, leaky_relu, a.in[0], slope, a.out[0]); },
          .implementation = "elementwise"};
}
Kernel prepare_leaky_backward(const PrepareArgs& args) {
  const auto slope = static_cast<float>(args.node.attrs.real("slope"));
  return {.run = [=](const KernelArgs& a) { CONVOY_KERNEL(a, leaky_relu_backward, a.in[0], a.in[1], slope, a.out[0]); },
          .implementation = "elementwise"};
}
Kernel prepare_hardswish(const PrepareArgs&) {
  return {.run = [](const KernelArgs& a) { CONVOY_KERNEL(a, hardswish, a.in[0], a.out[0]); },
          .implementation = "elementwise"};
}
Kernel prepare_hardswish_backward(const PrepareArgs&) {
  return {.run = [](const KernelArgs& a) { CONVOY_KERNEL(a, hardswish_backward, a.in[0], a.in[1], a.out[0]); },
          .implementation = "elementwise"};
}
Kernel prepare_prelu(const PrepareArgs& args) {
  const int64_t slopes = args.node.inputs[1].shape()[0];
  return {.run = [=](const KernelArgs& a) { CONVOY_KERNEL(a, prelu, a.in[0], a.in[1].f32(), slopes, a.out[0]); },
          .implementation = "elementwise"};
}
Kernel prepare_prelu_backward(const PrepareArgs& args) {
  const int64_t slopes = args.node.inputs[2].shape()[0];
  return {.run =
              [=](const KernelArgs& a) {
                CONVOY_CPU(prelu_backward, a.in[0], a.in[1], a.in[2].f32(), slopes, a.out[0], a.out[1].f32(),
                           static_cast<float*>(a.workspace));
              },
          .workspace_bytes = static_cast<size_t>(prelu_workspace(args.in[0])) * sizeof(float),
          .implementation = "chunked sums"};
}
Kernel prepare_prelu_backward_cuda(const PrepareArgs& args) {
  const int64_t slopes = args.node.inputs[2].shape()[0];
  return {.run =
              [=](const KernelArgs& a) {
                CONVOY_CUDA(a, prelu_backward, a.in[0], a.in[1], a.in[2].f32(), slopes, a.out[0], a.out[1].f32(),
                            a.workspace);
              },
          .workspace_bytes = emulated::prelu_cuda_workspace_bytes(args.in[1]),
          .implementation = "two-stage"};
}

}  // namespace

Value leaky_relu(Value x, double slope) {
  return x.graph->append("leaky_relu", {x}, {{"slope", slope}});
}
Value hardswish(Value x) {
  return x.graph->append("hardswish", {x});
}
Value prelu(Value x, Value slope) {
  return x.graph->append("prelu", {x, slope});
}

std::vector<OpDef> activation_ops() {
  return {
      {.name = "leaky_relu",
       .infer = infer_one,
       .grad = grad_leaky,
       .layout = layout_follow_first,
       .prepare_cpu = prepare_leaky,
       .prepare_cuda = prepare_leaky,
       .in_place = {0}},
      {.name = "leaky_relu_backward",
       .infer = infer_backward,
       .layout = layout_follow_first,
       .prepare_cpu = prepare_leaky_backward,
       .prepare_cuda = prepare_leaky_backward,
       .in_place = {0}},
      {.name = "hardswish",
       .infer = infer_one,
       .grad = grad_hardswish,
       .layout = layout_follow_first,
       .prepare_cpu = prepare_hardswish,
       .prepare_cuda = prepare_hardswish,
       .in_place = {0}},
      {.name = "hardswish_backward",
       .infer = infer_backward,
       .layout = layout_follow_first,
       .prepare_cpu = prepare_hardswish_backward,
       .prepare_cuda = prepare_hardswish_backward,
       .in_place = {0}},
      {.name = "prelu",
       .infer = infer_prelu,
       .grad = grad_prelu,
       .prepare_cpu = prepare_prelu,
       .prepare_cuda = prepare_prelu,
       .in_place = {0}},
      {.name = "prelu_backward",
       .infer = infer_prelu_backward,
       .prepare_cpu = prepare_prelu_backward,
       .prepare_cuda = prepare_prelu_backward_cuda,
       .in_place = {0}},
  };
}

}  // namespace convoy
