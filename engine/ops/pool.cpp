// Pooling.
#include "kernels/pool.h"

#include "engine/ops.h"
#include "engine/ops/common.h"
#include "engine/ops/registry.h"

namespace convoy {

namespace {

Attrs to_attrs(const PoolOptions& o) {
  return {{"kernel_h", o.kernel_h},
          {"kernel_w", o.kernel_w},
          {"stride_h", o.stride_h},
          {"stride_w", o.stride_w},
          {"pad_h", o.pad_h},
          {"pad_w", o.pad_w},
          {"ceil", static_cast<int64_t>(o.ceil_mode)},
          {"include_pad", static_cast<int64_t>(o.count_include_pad)}};
}

Pool2d pool_of(const Attrs& a) {
  return {.kernel_h = static_cast<int>(a.integer("kernel_h")),
          .kernel_w = static_cast<int>(a.integer("kernel_w")),
          .stride_h = static_cast<int>(a.integer("stride_h")),
          .stride_w = static_cast<int>(a.integer("stride_w")),
          .pad_h = static_cast<int>(a.integer("pad_h")),
          .pad_w = static_cast<int>(a.integer("pad_w")),
          .count_include_pad = a.flag("include_pad")};
}

// PyTorch's rule: in ceil mode a last window that would start in the right padding is left out.
int64_t pooled(int64_t in, int64_t kernel, int64_t stride, int64_t pad, bool ceil) {
  int64_t out = (in + 2 * pad - kernel + (ceil ? stride - 1 : 0)) / stride + 1;
  if (ceil && (out - 1) * stride >= in + pad) --out;
  return out;
}

Shape pooled_shape(const Node& node) {
  const Shape& x = require_image(node, 0);
  const Attrs& a = node.attrs;
  CONVOY_CHECK(a.integer("kernel_h") > 0 && a.integer("kernel_w") > 0 && a.integer("stride_h") > 0 &&
                   a.integer("stride_w") > 0 && a.integer("pad_h") >= 0 && a.integer("pad_w") >= 0,
               "window {}x{} and stride {}x{} must be positive, padding {}x{} not negative", a.integer("kernel_h"),
               a.integer("kernel_w"), a.integer("stride_h"), a.integer("stride_w"), a.integer("pad_h"),
               a.integer("pad_w"));
  CONVOY_CHECK(2 * a.integer("pad_h") <= a.integer("kernel_h") && 2 * a.integer("pad_w") <= a.integer("kernel_w"),
               "padding {}x{} is more than half of the window {}x{}", a.integer("pad_h"), a.integer("pad_w"),
               a.integer("kernel_h"), a.integer("kernel_w"));
  CONVOY_CHECK(
      x[2] + 2 * a.integer("pad_h") >= a.integer("kernel_h") && x[3] + 2 * a.integer("pad_w") >= a.integer("kernel_w"),
      "the map {} is smaller than the window {}x{}", x.str(), a.integer("kernel_h"), a.integer("kernel_w"));
  return {x[0], x[1], pooled(x[2], a.integer("kernel_h"), a.integer("stride_h"), a.integer("pad_h"), a.flag("ceil")),
          pooled(x[3], a.integer("kernel_w"), a.integer("stride_w"), a.integer("pad_w"), a.flag("ceil"))};
}

std::vector<TensorInfo> infer_max(const Node& node) {
  const Shape y = pooled_shape(node);
  return {{DType::kF32, y}, {DType::kI32, y}};
}
std::vector<TensorInfo> infer_avg(const Node& node) {
  return {{DType::kF32, pooled_shape(node)}};
}
std::vector<TensorInfo> infer_adaptive(const Node& node) {
  const Shape& x = require_image(node, 0);
  CONVOY_CHECK(node.attrs.integer("out_h") > 0 && node.attrs.integer("out_w") > 0, "a map cannot be pooled to {}x{}",
               node.attrs.integer("out_h"), node.attrs.integer("out_w"));
  return {{DType::kF32, {x[0], x[1], node.attrs.integer("out_h"), node.attrs.integer("out_w")}}};
}
std::vector<TensorInfo> infer_backward(const Node& node) {
  const Shape& dy = require_image(node, 0);
  return {{DType::kF32, {dy[0], dy[1], node.attrs.integer("in_h"), node.attrs.integer("in_w")}}};
}

Attrs with_input_size(Attrs attrs, const Shape& x) {
  attrs.set("in_h", x[2]);
  attrs.set("in_w", x[3]);
  return attrs;
}
void grad_max(GradContext& g) {
  g.set(0, g.graph.append("max_pool2d_backward", {g.d_output(), g.output(1)},
                          with_input_size(g.node().attrs, g.input(0).shape())));
}
void grad_avg(GradContext& g) {
  g.set(0, g.graph.append("avg_pool2d_backward", {g.d_output()}, with_input_size(g.node().attrs, g.input(0).shape())));
}
void grad_adaptive(GradContext& g) {
  g.set(0, g.graph.append("adaptive_avg_pool2d_backward", {g.d_output()}, with_input_size({}, g.input(0).shape())));
}

void layout_blocked(LayoutChoice& c) {
  for (Layout& l : c.in) l = Layout::kBlocked;
  for (Layout& l : c.out) l = Layout::kBlocked;
}

double window_flops(const Node& n) {
  return static_cast<double>(n.outputs[0].shape.count() * n.attrs.integer("kernel_h") * n.attrs.integer("kernel_w"));
}

Kernel prepare_max(const PrepareArgs& args) {
  const Pool2d pool = pool_of(args.node.attrs);
  return {.run =
              [=](const KernelArgs& a) {
                CONVOY_KERNEL(a, max_pool, a.in[0], pool, a.out[0], a.out[1].data ? &a.out[1] : nullptr);
              },
          .implementation = "max"};
}
Kernel prepare_max_backward(const PrepareArgs& args) {
  const Pool2d pool = pool_of(args.node.attrs);
  return {.run = [=](const KernelArgs& a) { CONVOY_KERNEL(a, max_pool_backward, a.in[0], a.in[1], pool, a.out[0]); },
          .implementation = "gather"};
}
Kernel prepare_avg(const PrepareArgs& args) {
  const Pool2d pool = pool_of(args.node.attrs);
  return {.run = [=](const KernelArgs& a) { CONVOY_KERNEL(a, avg_pool, a.in[0], pool, a.out[0]); },
          .implementation = "average"};
}
Kernel prepare_avg_backward(const PrepareArgs& args) {
  const Pool2d pool = pool_of(args.node.attrs);
  return {.run = [=](const KernelArgs& a) { CONVOY_KERNEL(a, avg_pool_backward, a.in[0], pool, a.out[0]); },
          .implementation = "gather"};
}
Kernel prepare_adaptive(const PrepareArgs&) {
  return {.run = [](const KernelArgs& a) { CONVOY_CPU(adaptive_avg_pool, a.in[0], a.out[0]); },
          .implementation = "average"};
}
Kernel prepare_adaptive_cuda(const PrepareArgs& args) {
  return {.run =
              [](const KernelArgs& a) {
                CONVOY_CUDA(a, adaptive_avg_pool, a.in[0], a.out[0], static_cast<float*>(a.workspace));
              },
          .workspace_bytes = emulated::adaptive_pool_cuda_workspace_bytes(args.in[0], args.out[0]),
          .implementation = "average"};
}
Kernel prepare_adaptive_backward(const PrepareArgs&) {
  return {.run = [](const KernelArgs& a) { CONVOY_KERNEL(a, adaptive_avg_pool_backward, a.in[0], a.out[0]); },
          .implementation = "gather"};
}

// Inputs (z, index).
std::vector<TensorInfo> infer_unpool(const Node& node) {
  const Shape& z = require_image(node, 0);
  require_shape(node, 1, z, DType::kI32);
  const int64_t h = node.attrs.integer("h"), w = node.attrs.integer("w");
  CONVOY_CHECK(h > 0 && w > 0, "a map cannot be unpooled to {}x{}", h, w);
  return {{DType::kF32, {z[0], z[1], h, w}}};
}
// Inputs (dy, index).
std::vector<TensorInfo> infer_unpool_backward(const Node& node) {
  require_image(node, 0);
  return {{DType::kF32, node.inputs[1].shape()}};
}
void grad_unpool(GradContext& g) {
  g.set(0, g.graph.append("max_unpool2d_backward", {g.d_output(), g.input(1)}));
}
[[noreturn]] void refuse_index(const View& index, const View& y, int64_t position) {
  fail("index {} (of {}x{} planes, row by row) points outside of the {}x{} map", position, index.h, index.w, y.h, y.w);
}
Kernel prepare_unpool(const PrepareArgs&) {
  return {.run =
              [](const KernelArgs& a) {
                int64_t bad = -1;
                CONVOY_CPU(max_unpool, a.in[0], a.in[1], a.out[0], &bad);
                if (bad >= 0) refuse_index(a.in[1], a.out[0], bad);
              },
          .implementation = "scatter by block"};
}
Kernel prepare_unpool_cuda(const PrepareArgs& args) {
  return {
      .run =
          [](const KernelArgs& a) {
            CONVOY_CUDA(a, max_unpool, a.in[0], a.in[1], a.out[0], a.fault, static_cast<int32_t*>(a.workspace));
          },
      .workspace_bytes = emulated::max_unpool_cuda_workspace_bytes(args.out[0]),
      .implementation = "last of each place",
      .explain = [y = args.out[0]](std::span<const View> in, int64_t position) { refuse_index(in[1], y, position); }};
}
Kernel prepare_unpool_backward(const PrepareArgs&) {
  return {.run = [](const KernelArgs& a) { CONVOY_KERNEL(a, max_unpool_backward, a.in[0], a.in[1], a.out[0]); },
          .implementation = "gather"};
}

}  // namespace

std::pair<Value, Value> max_pool2d(Value x, const PoolOptions& options) {
  const Value y = x.graph->append("max_pool2d", {x}, to_attrs(options));
  return {y, {x.graph, y.node, 1}};
}
Value avg_pool2d(Value x, const PoolOptions& options) {
  return x.graph->append("avg_pool2d", {x}, to_attrs(options));
}
Value adaptive_avg_pool2d(Value x, int64_t out_h, int64_t out_w) {
  return x.graph->append("adaptive_avg_pool2d", {x}, {{"out_h", out_h}, {"out_w", out_w}});
}

Value max_unpool2d(Value z, Value index, int64_t out_h, int64_t out_w) {
  return z.graph->append("max_unpool2d", {z, index}, {{"h", out_h}, {"w", out_w}});
}

std::vector<OpDef> pool_ops() {
  return {
      {.name = "max_pool2d",
       .infer = infer_max,
       .grad = grad_max,
       .flops = window_flops,
       .layout = layout_blocked,
       .prepare_cpu = prepare_max,
       .prepare_cuda = prepare_max,
       .optional_outputs = true},
      {.name = "max_pool2d_backward",
       .infer = infer_backward,
       .layout = layout_blocked,
       .prepare_cpu = prepare_max_backward,
       .prepare_cuda = prepare_max_backward},
      {.name = "avg_pool2d",
       .infer = infer_avg,
       .grad = grad_avg,
       .flops = window_flops,
       .prepare_cpu = prepare_avg,
       .prepare_cuda = prepare_avg},
      {.name = "avg_pool2d_backward",
       .infer = infer_backward,
       .prepare_cpu = prepare_avg_backward,
       .prepare_cuda = prepare_avg_backward},
      {.name = "adaptive_avg_pool2d",
       .infer = infer_adaptive,
       .grad = grad_adaptive,
       .prepare_cpu = prepare_adaptive,
       .prepare_cuda = prepare_adaptive_cuda},
      {.name = "adaptive_avg_pool2d_backward",
       .infer = infer_backward,
       .prepare_cpu = prepare_adaptive_backward,
       .prepare_cuda = prepare_adaptive_backward},
      {.name = "max_unpool2d",
       .infer = infer_unpool,
       .grad = grad_unpool,
       .layout = layout_blocked,
       .prepare_cpu = prepare_unpool,
       .prepare_cuda = prepare_unpool_cuda},
      {.name = "max_unpool2d_backward",
       .infer = infer_unpool_backward,
       .layout = layout_blocked,
       .prepare_cpu = prepare_unpool_backward,
       .prepare_cuda = prepare_unpool_backward},
  };
}

}  // namespace convoy
