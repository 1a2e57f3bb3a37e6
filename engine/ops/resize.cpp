// Resizing of images.
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
void grad_bilinear(GradContext& g) {
  g.set(0, g.graph.append("resize_bilinear_backward", {g.d_output()}, back_to(g.node().attrs, g.input(0).shape())));
}
void grad_nearest(GradContext& g) {
  g.set(0, g.graph.append("resize_nearest_backward", {g.d_output()}, back_to(g.node().attrs, g.input(0).shape())));
}

double bilinear_flops(const Node& n) {
  return 7.0 * static_cast<double>(n.outputs[0].shape.count());
}

Kernel prepare_bilinear(const PrepareArgs& args) {
  const ResizeParams params{.align_corners = args.node.attrs.flag("align_corners")};
  return {.run = [=](const KernelArgs& a) { CONVOY_CPU(resize_bilinear, a.in[0], params, a.out[0]); },
          .implementation = "bilinear"};
}
Kernel prepare_bilinear_backward(const PrepareArgs& args) {
  const ResizeParams params{.align_corners = args.node.attrs.flag("align_corners")};
  return {.run = [=](const KernelArgs& a) { CONVOY_CPU(resize_bilinear_backward, a.in[0], params, a.out[0]); },
          .implementation = "gather"};
}
Kernel prepare_nearest(const PrepareArgs&) {
  return {.run = [](const KernelArgs& a) { CONVOY_CPU(resize_nearest, a.in[0], {}, a.out[0]); },
          .implementation = "nearest"};
}
Kernel prepare_nearest_backward(const PrepareArgs&) {
  return {.run = [](const KernelArgs& a) { CONVOY_CPU(resize_nearest_backward, a.in[0], {}, a.out[0]); },
          .implementation = "gather"};
}

}  // namespace

Value resize_bilinear(Value x, int64_t out_h, int64_t out_w, bool align_corners) {
  return x.graph->append("resize_bilinear", {x},
                         {{"h", out_h}, {"w", out_w}, {"align_corners", static_cast<int64_t>(align_corners)}});
}
Value resize_nearest(Value x, int64_t out_h, int64_t out_w) {
  return x.graph->append("resize_nearest", {x}, {{"h", out_h}, {"w", out_w}});
}

std::vector<OpDef> resize_ops() {
  return {
      {.name = "resize_bilinear",
       .infer = infer_resize,
       .grad = grad_bilinear,
       .flops = bilinear_flops,
       .prepare_cpu = prepare_bilinear},
      {.name = "resize_bilinear_backward",
       .infer = infer_resize,
       .flops = bilinear_flops,
       .prepare_cpu = prepare_bilinear_backward},
      {.name = "resize_nearest", .infer = infer_resize, .grad = grad_nearest, .prepare_cpu = prepare_nearest},
      {.name = "resize_nearest_backward", .infer = infer_resize, .prepare_cpu = prepare_nearest_backward},
  };
}

}  // namespace convoy
