// conv2d and its three gradients, conv_transpose2d. Which kernels compute them: conv_kernels.h.
#include "engine/context.h"
#include "engine/ops.h"
#include "engine/ops/common.h"
#include "engine/ops/conv_kernels.h"
#include "engine/ops/registry.h"
#include "kernels/elementwise.h"

namespace convoy {

namespace {

Attrs to_attrs(const Conv2dOptions& o) {
  return {{"stride_h", o.stride_h},     {"stride_w", o.stride_w},     {"pad_h", o.pad_h},  {"pad_w", o.pad_w},
          {"dilation_h", o.dilation_h}, {"dilation_w", o.dilation_w}, {"groups", o.groups}};
}

Conv2dParams params_of(const Attrs& a) {
  return {.stride_h = a.integer("stride_h"),
          .stride_w = a.integer("stride_w"),
          .pad_h = a.integer("pad_h"),
          .pad_w = a.integer("pad_w"),
          .dilation_h = a.integer("dilation_h"),
          .dilation_w = a.integer("dilation_w"),
          .groups = a.integer("groups")};
}

std::vector<TensorInfo> infer_conv(const Node& node) {
  const Shape& x = require_image(node, 0);
  const Shape& w = node.inputs[1].shape();
  const Conv2dParams p = params_of(node.attrs);
  CONVOY_CHECK(w.rank() == 4, "the weight must be (K,C/groups,kh,kw), it is {}", w.str());
  CONVOY_CHECK(p.groups > 0 && x[1] % p.groups == 0 && w[0] % p.groups == 0 && w[1] == x[1] / p.groups,
               "the input has {} channels in {} groups, the weight {} takes {} per group", x[1], p.groups, w.str(),
               w[1]);
  CONVOY_CHECK(node.inputs[1].dtype() == DType::kF32, "the weight must be f32, it is {}",
               dtype_name(node.inputs[1].dtype()));
  CONVOY_CHECK(p.stride_h > 0 && p.stride_w > 0 && p.dilation_h > 0 && p.dilation_w > 0 && p.pad_h >= 0 && p.pad_w >= 0,
               "strides {}x{} and dilations {}x{} must be positive, paddings {}x{} not negative", p.stride_h,
               p.stride_w, p.dilation_h, p.dilation_w, p.pad_h, p.pad_w);
  if (node.inputs.size() > 2) require_shape(node, 2, {w[0]});
  const int64_t oh = conv_extent(x[2], w[2], p.stride_h, p.pad_h, p.dilation_h);
  const int64_t ow = conv_extent(x[3], w[3], p.stride_w, p.pad_w, p.dilation_w);
  CONVOY_CHECK(oh > 0 && ow > 0, "a {}x{} map is too small for a {}x{} kernel with dilation {}x{} and padding {}x{}",
               x[2], x[3], w[2], w[3], p.dilation_h, p.dilation_w, p.pad_h, p.pad_w);
  return {{DType::kF32, {x[0], w[0], oh, ow}}};
}

double flops_of(int64_t outputs, const Shape& w) {
  return 2.0 * static_cast<double>(outputs) * static_cast<double>(w[1] * w[2] * w[3]);
}
double conv_flops(const Node& n) {
  return flops_of(n.outputs[0].shape.count(), n.inputs[1].shape());
}

// The gradients carry the shape of what they compute, since it cannot be told from their inputs.
Attrs with_shape(Attrs attrs, const Shape& shape) {
  for (int i = 0; i < 4; ++i) attrs.set(std::string("d") + std::to_string(i), shape[i]);
  return attrs;
}
Shape shape_in(const Attrs& a) {
  return {a.integer("d0"), a.integer("d1"), a.integer("d2"), a.integer("d3")};
}
std::vector<TensorInfo> infer_from_attrs(const Node& node) {
  return {{DType::kF32, shape_in(node.attrs)}};
}
std::vector<TensorInfo> infer_bias_grad(const Node& node) {
  return {{DType::kF32, {node.inputs[0].shape()[1]}}};
}
double backward_data_flops(const Node& n) {
  return flops_of(n.inputs[0].shape().count(), n.inputs[1].shape());
}
double backward_weights_flops(const Node& n) {
  return flops_of(n.inputs[1].shape().count(), n.outputs[0].shape);
}

void grad_conv(GradContext& g) {
  const Value x = g.input(0), w = g.input(1), dy = g.d_output();
  const Attrs attrs = g.node().attrs;
  const bool has_bias = g.node().inputs.size() > 2;
  if (has_bias && g.needs(2)) g.set(2, g.graph.append("conv2d_backward_bias", {dy}));
  if (g.needs(1)) g.set(1, g.graph.append("conv2d_backward_weights", {x, dy}, with_shape(attrs, w.shape())));
  if (g.needs(0)) g.set(0, g.graph.append("conv2d_backward_data", {dy, w}, with_shape(attrs, x.shape())));
}

// The image at a network's input stays nchw: three channels would fill a block of 16 with zeros.
Layout input_layout(const Node& node, size_t i, Layout found) {
  const bool depthwise = node.attrs.integer("groups") > 1;
  return found == Layout::kNchw && !depthwise && node.inputs[i].shape()[1] <= 4 ? Layout::kNchw : Layout::kBlocked;
}
void layout_forward(LayoutChoice& c) {
  c.in[0] = input_layout(c.node, 0, c.in[0]);
  for (size_t i = 1; i < c.in.size(); ++i) c.in[i] = Layout::kNchw;
}
void layout_backward_data(LayoutChoice& c) {
  c.in = {Layout::kBlocked, Layout::kNchw};
}
void layout_backward_weights(LayoutChoice& c) {
  c.in = {input_layout(c.node, 0, c.in[0]), Layout::kBlocked};
  c.out = {Layout::kNchw};
}

Kernel prepare_conv(const PrepareArgs& args) {
  const Shape& w = args.node.inputs[1].shape();
  return conv_kernel({.direction = ConvCall::Direction::kForward,
                      .x = args.in[0],
                      .y = args.out[0],
                      .kernel_h = w[2],
                      .kernel_w = w[3],
                      .params = params_of(args.node.attrs),
                      .bias = args.in.size() > 2},
                     args.context);
}

Kernel prepare_backward_data(const PrepareArgs& args) {
  const Shape& w = args.node.inputs[1].shape();
  return conv_kernel({.direction = ConvCall::Direction::kBackwardData,
                      .x = args.out[0],
                      .y = args.in[0],
                      .kernel_h = w[2],
                      .kernel_w = w[3],
                      .params = params_of(args.node.attrs)},
                     args.context);
}

Kernel prepare_backward_weights(const PrepareArgs& args) {
  const Shape& w = args.node.outputs[0].shape;
  return conv_kernel({.direction = ConvCall::Direction::kBackwardWeights,
                      .x = args.in[0],
                      .y = args.in[1],
                      .kernel_h = w[2],
                      .kernel_w = w[3],
                      .params = params_of(args.node.attrs)},
                     args.context);
}

Kernel prepare_backward_bias(const PrepareArgs&) {
  return {.run = [](const KernelArgs& a) { CONVOY_CPU(conv2d_backward_bias, a.in[0], a.out[0].f32()); },
          .implementation = "sum"};
}
Kernel prepare_backward_bias_cuda(const PrepareArgs& args) {
  return {.run =
              [](const KernelArgs& a) {
                CONVOY_CUDA(a, conv2d_backward_bias, a.in[0], a.out[0].f32(), static_cast<float*>(a.workspace));
              },
          .workspace_bytes = emulated::conv2d_bias_cuda_workspace_bytes(args.in[0]),
          .implementation = "sum"};
}

// Inputs (x, weight[, bias]): the gradient of a convolution with respect to its input, as an operator of its own.
std::vector<TensorInfo> infer_transpose(const Node& node) {
  const Shape& x = require_image(node, 0);
  const Shape& w = node.inputs[1].shape();
  const Conv2dParams p = params_of(node.attrs);
  const int64_t add_h = node.attrs.integer("output_pad_h"), add_w = node.attrs.integer("output_pad_w");
  CONVOY_CHECK(w.rank() == 4 && node.inputs[1].dtype() == DType::kF32,
               "the weight must be f32 (C,K/groups,kh,kw), it is {} {}", dtype_name(node.inputs[1].dtype()), w.str());
  CONVOY_CHECK(p.groups > 0 && x[1] % p.groups == 0 && w[0] == x[1],
               "the input has {} channels in {} groups, the weight {} takes {}", x[1], p.groups, w.str(), w[0]);
  CONVOY_CHECK(p.stride_h > 0 && p.stride_w > 0 && p.dilation_h > 0 && p.dilation_w > 0 && p.pad_h >= 0 && p.pad_w >= 0,
               "strides {}x{} and dilations {}x{} must be positive, paddings {}x{} not negative", p.stride_h,
               p.stride_w, p.dilation_h, p.dilation_w, p.pad_h, p.pad_w);
  CONVOY_CHECK(add_h >= 0 && add_w >= 0 && add_h < p.stride_h && add_w < p.stride_w,
               "the output padding {}x{} must be less than the stride {}x{}", add_h, add_w, p.stride_h, p.stride_w);
  const int64_t channels = w[1] * p.groups;
  if (node.inputs.size() > 2) require_shape(node, 2, {channels});
  const int64_t h = (x[2] - 1) * p.stride_h - 2 * p.pad_h + p.dilation_h * (w[2] - 1) + 1 + add_h;
  const int64_t width = (x[3] - 1) * p.stride_w - 2 * p.pad_w + p.dilation_w * (w[3] - 1) + 1 + add_w;
  CONVOY_CHECK(h > 0 && width > 0, "padding {}x{} leaves nothing of the output of a {}x{} map and a {}x{} kernel",
               p.pad_h, p.pad_w, x[2], x[3], w[2], w[3]);
  return {{DType::kF32, {x[0], channels, h, width}}};
}

void grad_transpose(GradContext& g) {
  const Value x = g.input(0), w = g.input(1), dy = g.d_output();
  const Attrs attrs = to_attrs(params_of(g.node().attrs));
  if (g.node().inputs.size() > 2 && g.needs(2)) g.set(2, g.graph.append("conv2d_backward_bias", {dy}));
  if (g.needs(1)) g.set(1, g.graph.append("conv2d_backward_weights", {dy, x}, with_shape(attrs, w.shape())));
  if (g.needs(0)) g.set(0, g.graph.append("conv2d", {dy, w}, attrs));
}

void layout_transpose(LayoutChoice& c) {
  for (Layout& l : c.in) l = Layout::kNchw;
  c.in[0] = Layout::kBlocked;
}

Kernel prepare_transpose(const PrepareArgs& args) {
  Kernel kernel = prepare_backward_data(args);
  if (args.in.size() > 2)
    kernel.run = [run = std::move(kernel.run)](const KernelArgs& a) {
      run(a);
      CONVOY_KERNEL(a, add_bias, a.out[0], a.in[2].f32(), a.out[0]);
    };
  return kernel;
}

}  // namespace

Value conv2d(Value x, Value weight, Value bias, const Conv2dOptions& options) {
  std::vector<Value> inputs{x, weight};
  if (bias) inputs.push_back(bias);
  return x.graph->append("conv2d", std::move(inputs), to_attrs(options));
}

Value conv1d(Value x, Value weight, Value bias, const Conv1dOptions& options) {
  const Shape &in = x.shape(), &w = weight.shape();
  CONVOY_CHECK(in.rank() == 3 && w.rank() == 3,
               "conv1d: the input must be (N,C,L) and the weight (K,C/groups,k), they are {} and {}", in.str(),
               w.str());
  const Conv2dOptions o{
      .stride_w = options.stride, .pad_w = options.pad, .dilation_w = options.dilation, .groups = options.groups};
  const Value y = conv2d(as_image(x), reshape(weight, {w[0], w[1], 1, w[2]}), bias, o);
  return reshape(y, {in[0], w[0], y.shape()[3]});
}

Value linear(Value x, Value weight, Value bias) {
  const Shape &in = x.shape(), &w = weight.shape();
  CONVOY_CHECK(in.rank() == 2 && w.rank() == 2,
               "linear: the input must be (N,C) and the weight (K,C), they are {} and {}", in.str(), w.str());
  return flatten(conv2d(as_image(x), reshape(weight, {w[0], w[1], 1, 1}), bias));
}

Value conv_transpose2d(Value x, Value weight, Value bias, const ConvTranspose2dOptions& options) {
  std::vector<Value> inputs{x, weight};
  if (bias) inputs.push_back(bias);
  Attrs attrs = to_attrs(options.geometry);
  attrs.set("output_pad_h", options.output_pad_h);
  attrs.set("output_pad_w", options.output_pad_w);
  return x.graph->append("conv_transpose2d", std::move(inputs), std::move(attrs));
}

std::vector<OpDef> conv_ops() {
  return {
      {.name = "conv2d",
       .infer = infer_conv,
       .grad = grad_conv,
       .flops = conv_flops,
       .layout = layout_forward,
       .prepare_cpu = prepare_conv,
       .prepare_cuda = prepare_conv,
       .takes_slices = false},
      {.name = "conv2d_backward_data",
       .infer = infer_from_attrs,
       .flops = backward_data_flops,
       .layout = layout_backward_data,
       .prepare_cpu = prepare_backward_data,
       .prepare_cuda = prepare_backward_data,
       .takes_slices = false},
      {.name = "conv2d_backward_weights",
       .infer = infer_from_attrs,
       .flops = backward_weights_flops,
       .layout = layout_backward_weights,
       .prepare_cpu = prepare_backward_weights,
       .prepare_cuda = prepare_backward_weights,
       .takes_slices = false},
      {.name = "conv2d_backward_bias",
       .infer = infer_bias_grad,
       .prepare_cpu = prepare_backward_bias,
       .prepare_cuda = prepare_backward_bias_cuda},
      {.name = "conv_transpose2d",
       .infer = infer_transpose,
       .grad = grad_transpose,
       .flops = backward_data_flops,
       .layout = layout_transpose,
       .prepare_cpu = prepare_transpose,
       .prepare_cuda = prepare_transpose,
       .takes_slices = false},
  };
}

}  // namespace convoy
