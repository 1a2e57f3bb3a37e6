// Reading images at given places, and labels at another size.
#include "engine/ops.h"
#include "engine/ops/common.h"
#include "engine/ops/registry.h"
#include "kernels/grid_sample.h"
#include "kernels/label_resize.h"

namespace convoy {

namespace {

const Shape& require_grid(const Node& node, size_t i, int64_t images) {
  const Shape& grid = require_image(node, i);
  CONVOY_CHECK(grid[0] == images && grid[3] == 2, "the grid must be ({},OH,OW,2), it is {}", images, grid.str());
  return grid;
}

std::vector<TensorInfo> infer_sample(const Node& node) {
  const Shape& x = require_image(node, 0);
  const Shape& grid = require_grid(node, 1, x[0]);
  return {{DType::kF32, {x[0], x[1], grid[1], grid[2]}}};
}
// Inputs (dy, grid).
std::vector<TensorInfo> infer_backward_x(const Node& node) {
  const Shape& dy = require_image(node, 0);
  return {{DType::kF32, {dy[0], dy[1], node.attrs.integer("h"), node.attrs.integer("w")}}};
}
// Inputs (dy, x, grid).
std::vector<TensorInfo> infer_backward_grid(const Node& node) {
  return {info_of(node.inputs[2])};
}

void grad_sample(GradContext& g) {
  Attrs attrs = g.node().attrs;
  if (g.needs(1)) g.set(1, g.graph.append("grid_sample_backward_grid", {g.d_output(), g.input(0), g.input(1)}, attrs));
  if (!g.needs(0)) return;
  attrs.set("h", g.input(0).shape()[2]);
  attrs.set("w", g.input(0).shape()[3]);
  g.set(0, g.graph.append("grid_sample_backward_x", {g.d_output(), g.input(1)}, attrs));
}

// Images are blocked, grids (the last input, and the gradient of one) plain.
void layout_sample(LayoutChoice& c) {
  for (Layout& l : c.in) l = Layout::kBlocked;
  c.in.back() = Layout::kNchw;
}
void layout_backward_grid(LayoutChoice& c) {
  layout_sample(c);
  c.out[0] = Layout::kNchw;
}

double sample_flops(const Node& n) {
  return 8.0 * static_cast<double>(n.outputs[0].shape.count());
}

GridSampleParams params_of(const PrepareArgs& args) {
  return {.align_corners = args.node.attrs.flag("align_corners"), .nearest = args.node.attrs.flag("nearest")};
}
Kernel prepare_sample(const PrepareArgs& args) {
  return {.run = [p = params_of(args)](
                     const KernelArgs& a) { CONVOY_KERNEL(a, grid_sample, a.in[0], a.in[1], p, a.out[0]); },
          .implementation = "gather"};
}
Kernel prepare_backward_x(const PrepareArgs& args) {
  return {.run = [p = params_of(args)](
                     const KernelArgs& a) { CONVOY_CPU(grid_sample_backward_x, a.in[0], a.in[1], p, a.out[0]); },
          .implementation = "scatter by block"};
}
Kernel prepare_backward_x_cuda(const PrepareArgs& args) {
  return {.run =
              [p = params_of(args)](const KernelArgs& a) {
                CONVOY_CUDA(a, grid_sample_backward_x, a.in[0], a.in[1], p, a.out[0], a.workspace);
              },
          .workspace_bytes = emulated::grid_sample_backward_x_cuda_workspace_bytes(args.out[0]),
          .implementation = "scatter in fixed point"};
}
Kernel prepare_backward_grid(const PrepareArgs& args) {
  return {.run =
              [p = params_of(args)](const KernelArgs& a) {
                CONVOY_KERNEL(a, grid_sample_backward_grid, a.in[0], a.in[1], a.in[2], p, a.out[0]);
              },
          .implementation = "gather"};
}

std::vector<TensorInfo> infer_labels(const Node& node) {
  const Value& labels = node.inputs[0];
  const int64_t h = node.attrs.integer("h"), w = node.attrs.integer("w");
  CONVOY_CHECK(labels.dtype() == DType::kI32 && labels.shape().rank() == 3,
               "labels must be i32 (N,H,W), they are {} {}", dtype_name(labels.dtype()), labels.shape().str());
  CONVOY_CHECK(h > 0 && w > 0, "labels cannot be resized to {}x{}", h, w);
  return {{DType::kI32, {labels.shape()[0], h, w}}};
}
Kernel prepare_labels(const PrepareArgs&) {
  return {.run = [](const KernelArgs& a) { CONVOY_KERNEL(a, label_resize, a.in[0], a.out[0]); },
          .implementation = "bilinear, truncated"};
}

}  // namespace

Value grid_sample(Value x, Value grid, bool align_corners, bool nearest) {
  return x.graph->append(
      "grid_sample", {x, grid},
      {{"align_corners", static_cast<int64_t>(align_corners)}, {"nearest", static_cast<int64_t>(nearest)}});
}

Value label_resize(Value labels, int64_t out_h, int64_t out_w) {
  return labels.graph->append("label_resize", {labels}, {{"h", out_h}, {"w", out_w}});
}

std::vector<OpDef> sample_ops() {
  return {
      {.name = "grid_sample",
       .infer = infer_sample,
       .grad = grad_sample,
       .flops = sample_flops,
       .layout = layout_sample,
       .prepare_cpu = prepare_sample,
       .prepare_cuda = prepare_sample},
      {.name = "grid_sample_backward_x",
       .infer = infer_backward_x,
       .flops = sample_flops,
       .layout = layout_sample,
       .prepare_cpu = prepare_backward_x,
       .prepare_cuda = prepare_backward_x_cuda},
      {.name = "grid_sample_backward_grid",
       .infer = infer_backward_grid,
       .flops = sample_flops,
       .layout = layout_backward_grid,
       .prepare_cpu = prepare_backward_grid,
       .prepare_cuda = prepare_backward_grid},
      {.name = "label_resize",
       .infer = infer_labels,
       .layout = layout_plain,
       .prepare_cpu = prepare_labels,
       .prepare_cuda = prepare_labels},
  };
}

}  // namespace convoy
