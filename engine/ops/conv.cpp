// conv2d and its three gradients. Depthwise convolutions go to our own kernels, dense ones to oneDNN, and whatever
// neither takes (or everything dense under --direct-conv) to the plain implementation.
#include "engine/context.h"
#include "engine/ops.h"
#include "engine/ops/common.h"
#include "engine/ops/registry.h"
#include "kernels/conv2d.h"
#include "kernels/conv2d_onednn.h"
#include "kernels/depthwise.h"

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

bool is_depthwise(const Conv2dParams& p, const View& x, const View& y, int64_t kh, int64_t kw) {
  return p.groups > 1 && p.groups == x.c && y.c == x.c && x.layout == Layout::kBlocked && kh * kw <= kMaxDepthwiseTaps;
}

std::shared_ptr<OneDnnConv> onednn(OneDnnConv::Direction direction, const View& x, const View& y, int64_t kh,
                                   int64_t kw, const Conv2dParams& p, bool bias, const Context& context) {
  if (context.options().direct_conv) return nullptr;
  return OneDnnConv::create(direction, x, y, kh, kw, p, bias, context.threads());
}

Kernel prepare_conv(const PrepareArgs& args) {
  const Conv2dParams p = params_of(args.node.attrs);
  const Shape& w = args.node.inputs[1].shape();
  const int64_t kh = w[2], kw = w[3];
  const bool bias = args.in.size() > 2;
  if (is_depthwise(p, args.in[0], args.out[0], kh, kw))
    return {.run =
                [=](const KernelArgs& a) {
                  CONVOY_CPU(depthwise, a.in[0], a.in[1].f32(), kh, kw, bias ? a.in[2].f32() : nullptr, p, a.out[0]);
                },
            .implementation = "depthwise"};
  if (const auto conv = onednn(OneDnnConv::Direction::kForward, args.in[0], args.out[0], kh, kw, p, bias, args.context))
    return {.run =
                [=](const KernelArgs& a) {
                  conv->forward(a.in[0].f32(), a.in[1].f32(), bias ? a.in[2].f32() : nullptr, a.out[0].f32(),
                                a.workspace);
                },
            .workspace_bytes = conv->workspace_bytes(),
            .implementation = conv->implementation()};
  return {.run =
              [=](const KernelArgs& a) {
                CONVOY_CPU(conv2d_direct, a.in[0], a.in[1].f32(), kh, kw, bias ? a.in[2].f32() : nullptr, p, a.out[0]);
              },
          .implementation = "direct"};
}

Kernel prepare_backward_data(const PrepareArgs& args) {
  const Conv2dParams p = params_of(args.node.attrs);
  const Shape& w = args.node.inputs[1].shape();
  const int64_t kh = w[2], kw = w[3];
  if (is_depthwise(p, args.out[0], args.in[0], kh, kw))
    return {.run =
                [=](const KernelArgs& a) {
                  CONVOY_CPU(depthwise_backward_data, a.in[0], a.in[1].f32(), kh, kw, p, a.out[0]);
                },
            .implementation = "depthwise"};
  if (const auto conv =
          onednn(OneDnnConv::Direction::kBackwardData, args.out[0], args.in[0], kh, kw, p, false, args.context))
    return {.run =
                [=](const KernelArgs& a) {
                  conv->backward_data(a.in[0].f32(), a.in[1].f32(), a.out[0].f32(), a.workspace);
                },
            .workspace_bytes = conv->workspace_bytes(),
            .implementation = conv->implementation()};
  return {.run =
              [=](const KernelArgs& a) {
                CONVOY_CPU(conv2d_direct_backward_data, a.in[0], a.in[1].f32(), kh, kw, p, a.out[0]);
              },
          .implementation = "direct"};
}

Kernel prepare_backward_weights(const PrepareArgs& args) {
  const Conv2dParams p = params_of(args.node.attrs);
  const Shape w = args.node.outputs[0].shape;
  const int64_t kh = w[2], kw = w[3];
  if (is_depthwise(p, args.in[0], args.in[1], kh, kw))
    return {.run =
                [=](const KernelArgs& a) {
                  CONVOY_CPU(depthwise_backward_weights, a.in[0], a.in[1], kh, kw, p, a.out[0].f32(),
                             static_cast<float*>(a.workspace));
                },
            .workspace_bytes = depthwise_workspace_bytes(args.in[1], kh, kw),
            .implementation = "depthwise"};
  if (const auto conv =
          onednn(OneDnnConv::Direction::kBackwardWeights, args.in[0], args.in[1], kh, kw, p, false, args.context))
    return {.run =
                [=](const KernelArgs& a) {
                  conv->backward_weights(a.in[0].f32(), a.in[1].f32(), a.out[0].f32(), a.workspace);
                },
            .workspace_bytes = conv->workspace_bytes(),
            .implementation = conv->implementation()};
  return {.run =
              [=](const KernelArgs& a) {
                CONVOY_CPU(conv2d_direct_backward_weights, a.in[0], a.in[1], kh, kw, p, a.out[0].f32());
              },
          .implementation = "direct"};
}

Kernel prepare_backward_bias(const PrepareArgs&) {
  return {.run = [](const KernelArgs& a) { CONVOY_CPU(conv2d_backward_bias, a.in[0], a.out[0].f32()); },
          .implementation = "sum"};
}

}  // namespace

Value conv2d(Value x, Value weight, Value bias, const Conv2dOptions& options) {
  std::vector<Value> inputs{x, weight};
  if (bias) inputs.push_back(bias);
  return x.graph->append("conv2d", std::move(inputs), to_attrs(options));
}

std::vector<OpDef> conv_ops() {
  return {
      {.name = "conv2d",
       .infer = infer_conv,
       .grad = grad_conv,
       .flops = conv_flops,
       .layout = layout_forward,
       .prepare_cpu = prepare_conv,
       .takes_slices = false},
      {.name = "conv2d_backward_data",
       .infer = infer_from_attrs,
       .flops = backward_data_flops,
       .layout = layout_backward_data,
       .prepare_cpu = prepare_backward_data,
       .takes_slices = false},
      {.name = "conv2d_backward_weights",
       .infer = infer_from_attrs,
       .flops = backward_weights_flops,
       .layout = layout_backward_weights,
       .prepare_cpu = prepare_backward_weights,
       .takes_slices = false},
      {.name = "conv2d_backward_bias", .infer = infer_bias_grad, .prepare_cpu = prepare_backward_bias},
  };
}

}  // namespace convoy
