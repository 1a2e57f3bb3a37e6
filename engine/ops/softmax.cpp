// Softmax and its logarithm, over the channels of images or along the last dimension of anything.
#include "kernels/softmax.h"

#include "engine/ops.h"
#include "engine/ops/common.h"
#include "engine/ops/registry.h"

namespace convoy {

namespace {

// Over channels the operands are blocked images, along rows plain arrays.
bool over_channels(const Node& node) {
  return node.attrs.integer("dim") + 1 != node.inputs[0].shape().rank();
}

std::vector<TensorInfo> infer_softmax(const Node& node) {
  const Shape& x = node.inputs[0].shape();
  const int64_t dim = node.attrs.integer("dim");
  require_shape(node, 0, x);
  CONVOY_CHECK(dim >= 0 && dim < x.rank() && (dim + 1 == x.rank() || (dim == 1 && x.rank() == 4)),
               "a softmax goes over the channels of an image or along the last dimension, not over dimension {} of {}",
               dim, x.str());
  CONVOY_CHECK(x[static_cast<int>(dim)] > 0, "a softmax over no values");
  return {info_of(node.inputs[0])};
}
// Inputs (dy, y).
std::vector<TensorInfo> infer_backward(const Node& node) {
  require_shape(node, 1, node.inputs[0].shape());
  return {info_of(node.inputs[0])};
}

void grad_softmax(GradContext& g) {
  g.set(0, g.graph.append("softmax_backward", {g.d_output(), g.output()}, g.node().attrs));
}

double softmax_flops(const Node& n) {
  return 20.0 * static_cast<double>(n.outputs[0].shape.count());
}

void layout_softmax(LayoutChoice& c) {
  const Layout layout = over_channels(c.node) ? Layout::kBlocked : Layout::kNchw;
  for (Layout& l : c.in) l = layout;
  for (Layout& l : c.out) l = layout;
}

Kernel prepare_softmax(const PrepareArgs& args) {
  const bool log = args.node.attrs.flag("log");
  const Shape& x = args.node.inputs[0].shape();
  if (over_channels(args.node))
    return {.run = [=](const KernelArgs& a) { CONVOY_KERNEL(a, softmax_channels, a.in[0], log, a.out[0]); },
            .implementation = "channels"};
  const int64_t length = x[x.rank() - 1], rows = x.count() / length;
  return {.run =
              [=](const KernelArgs& a) {
                if (a.on_device)
                  CONVOY_CUDA(a, softmax_rows, a.in[0], rows, length, log, a.out[0]);
                else
                  CONVOY_CPU(softmax_rows, a.in[0].f32(), rows, length, log, a.out[0].f32());
              },
          .implementation = "rows"};
}
Kernel prepare_backward(const PrepareArgs& args) {
  const bool log = args.node.attrs.flag("log");
  const Shape& x = args.node.inputs[0].shape();
  if (over_channels(args.node))
    return {
        .run =
            [=](const KernelArgs& a) { CONVOY_KERNEL(a, softmax_channels_backward, a.in[0], a.in[1], log, a.out[0]); },
        .implementation = "channels"};
  const int64_t length = x[x.rank() - 1], rows = x.count() / length;
  return {.run =
              [=](const KernelArgs& a) {
                if (a.on_device)
                  CONVOY_CUDA(a, softmax_rows_backward, a.in[0], a.in[1], rows, length, log, a.out[0]);
                else
                  CONVOY_CPU(softmax_rows_backward, a.in[0].f32(), a.in[1].f32(), rows, length, log, a.out[0].f32());
              },
          .implementation = "rows"};
}

Value append(Value x, int dim, bool log) {
  return x.graph->append("softmax", {x}, {{"dim", static_cast<int64_t>(dim)}, {"log", static_cast<int64_t>(log)}});
}

}  // namespace

Value softmax(Value x, int dim) {
  return append(x, dim, false);
}
Value log_softmax(Value x, int dim) {
  return append(x, dim, true);
}

std::vector<OpDef> softmax_ops() {
  return {
      {.name = "softmax",
       .infer = infer_softmax,
       .grad = grad_softmax,
       .flops = softmax_flops,
       .layout = layout_softmax,
       .prepare_cpu = prepare_softmax,
       .prepare_cuda = prepare_softmax,
       .in_place = {0},
       .takes_slices = false},
      {.name = "softmax_backward",
       .infer = infer_backward,
       .flops = softmax_flops,
       .layout = layout_softmax,
       .prepare_cpu = prepare_backward,
       .prepare_cuda = prepare_backward,
       .in_place = {0},
       .takes_slices = false},
  };
}

}  // namespace convoy
