// Resizing of images.
#include <cmath>

#include "engine/ops.h"
#include "engine/ops/common.h"
#include "engine/ops/registry.h"
#include "kernels/resize_bilinear.h"

namespace convoy {

namespace {

std::vector<TensorInfo> infer_resize(const Node& node) {
  const Shape& x = require_image(node, 0);
  const int64_t h = node.attrs.integer("h"), w = node.attrs.integer("w");
  CONVOY_CHECK(h > 0 && w > 0, "a map cannot be resized to {}x{}", h, w);
  return {{DType::kF32, {x[0], x[1], h, w}}};
}

Attrs back_to(Attrs attrs, const Shape& x) {
  attrs.set("h", x[2]);
  attrs.set("w", x[3]);
  return attrs;
}
void grad_resize(GradContext& g) {
  g.set(0,
        g.graph.append(g.node().op->name + "_backward", {g.d_output()}, back_to(g.node().attrs, g.input(0).shape())));
}

double bilinear_flops(const Node& n) {
  return 7.0 * static_cast<double>(n.outputs[0].shape.count());
}

// Resizes by a factor have attributes factor_h, factor_w, resizes to a size have not.
ResizeParams params_of(const Node& node) {
  ResizeParams params;
  for (const auto& [key, value] : node.attrs.entries()) {
    if (key == "align_corners") params.align_corners = node.attrs.flag(key);
    if (key == "factor_h") params.scale_h = node.attrs.real(key);
    if (key == "factor_w") params.scale_w = node.attrs.real(key);
  }
  return params;
}

Kernel prepare_bilinear(const PrepareArgs& args) {
  return {.run = [p = params_of(args.node)](
                     const KernelArgs& a) { CONVOY_KERNEL(a, resize_bilinear, a.in[0], p, a.out[0]); },
          .implementation = "bilinear"};
}
Kernel prepare_bilinear_backward(const PrepareArgs& args) {
  return {.run = [p = params_of(args.node)](
                     const KernelArgs& a) { CONVOY_KERNEL(a, resize_bilinear_backward, a.in[0], p, a.out[0]); },
          .implementation = "gather"};
}
Kernel prepare_nearest(const PrepareArgs& args) {
  return {.run = [p = params_of(args.node)](
                     const KernelArgs& a) { CONVOY_KERNEL(a, resize_nearest, a.in[0], p, a.out[0]); },
          .implementation = "nearest"};
}
Kernel prepare_nearest_backward(const PrepareArgs& args) {
  return {.run = [p = params_of(args.node)](
                     const KernelArgs& a) { CONVOY_KERNEL(a, resize_nearest_backward, a.in[0], p, a.out[0]); },
          .implementation = "gather"};
}

/// Height or width of x times the factor, rounded down as PyTorch does.
int64_t scaled(Value x, int axis, double factor) {
  CONVOY_CHECK(x.shape().rank() == 4, "only images are resized, this is {}", x.shape().str());
  CONVOY_CHECK(factor > 0 && std::isfinite(factor), "a map cannot be resized by the factor {}", factor);
  return static_cast<int64_t>(std::floor(static_cast<double>(x.shape()[axis]) * factor));
}

}  // namespace

Value resize_bilinear(Value x, int64_t out_h, int64_t out_w, bool align_corners) {
  return x.graph->append("resize_bilinear", {x},
                         {{"h", out_h}, {"w", out_w}, {"align_corners", static_cast<int64_t>(align_corners)}});
}
Value resize_nearest(Value x, int64_t out_h, int64_t out_w) {
  return x.graph->append("resize_nearest", {x}, {{"h", out_h}, {"w", out_w}});
}

Value resize_bilinear_by(Value x, double factor_h, double factor_w, bool align_corners) {
  const int64_t h = scaled(x, 2, factor_h), w = scaled(x, 3, factor_w);
  if (align_corners) return resize_bilinear(x, h, w, true);  // sizes alone count
  return x.graph->append(
      "resize_bilinear_by", {x},
      {{"h", h}, {"w", w}, {"align_corners", int64_t{0}}, {"factor_h", factor_h}, {"factor_w", factor_w}});
}
Value resize_nearest_by(Value x, double factor_h, double factor_w) {
  return x.graph->append(
      "resize_nearest_by", {x},
      {{"h", scaled(x, 2, factor_h)}, {"w", scaled(x, 3, factor_w)}, {"factor_h", factor_h}, {"factor_w", factor_w}});
}

std::vector<OpDef> resize_ops() {
  std::vector<OpDef> ops;
  for (const std::string by : {"", "_by"}) {  // to a size, by a factor
    ops.push_back({.name = "resize_bilinear" + by,
                   .infer = infer_resize,
                   .grad = grad_resize,
                   .flops = bilinear_flops,
                   .prepare_cpu = prepare_bilinear,
                   .prepare_cuda = prepare_bilinear});
    ops.push_back({.name = "resize_bilinear" + by + "_backward",
                   .infer = infer_resize,
                   .flops = bilinear_flops,
                   .prepare_cpu = prepare_bilinear_backward,
                   .prepare_cuda = prepare_bilinear_backward});
    ops.push_back({.name = "resize_nearest" + by,
                   .infer = infer_resize,
                   .grad = grad_resize,
                   .prepare_cpu = prepare_nearest,
                   .prepare_cuda = prepare_nearest});
    ops.push_back({.name = "resize_nearest" + by + "_backward",
                   .infer = infer_resize,
                   .prepare_cpu = prepare_nearest_backward,
                   .prepare_cuda = prepare_nearest_backward});
  }
  return ops;
}

}  // namespace convoy
