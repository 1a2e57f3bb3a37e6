// Joining and cutting along channels. Where the plan can, parts are produced inside the whole and nothing is copied.
#include "engine/context.h"
#include "engine/ops.h"
#include "engine/ops/common.h"
#include "engine/ops/registry.h"
#include "engine/tensor.h"
#include "kernels/elementwise.h"
#include "kernels/isa.h"
#include "kernels/reorder.h"

namespace convoy {

namespace {

std::vector<TensorInfo> infer_concat(const Node& node) {
  Shape y = require_image(node, 0);
  for (size_t i = 1; i < node.inputs.size(); ++i) {
    const Shape& x = require_image(node, i);
    CONVOY_CHECK(x[0] == y[0] && x[2] == y[2] && x[3] == y[3], "part {} is {}, part 0 {}: only the channels may differ",
                 i, x.str(), node.inputs[0].shape().str());
    y[1] += x[1];
  }
  return {{DType::kF32, y}};
}

std::vector<TensorInfo> infer_slice(const Node& node) {
  const Shape& x = require_image(node, 0);
  const int64_t first = node.attrs.integer("first"), count = node.attrs.integer("count");
  CONVOY_CHECK(first >= 0 && count > 0 && first + count <= x[1], "channels {}..{} do not lie in {}", first,
               first + count, x.str());
  return {{DType::kF32, {x[0], count, x[2], x[3]}}};
}

std::vector<TensorInfo> infer_pad(const Node& node) {
  const Shape& x = require_image(node, 0);
  return {{DType::kF32, {x[0], node.attrs.integer("total"), x[2], x[3]}}};
}

void grad_concat(GradContext& g) {
  int64_t first = 0;
  for (int i = 0; i < static_cast<int>(g.node().inputs.size()); ++i) {
    const int64_t count = g.input(i).shape()[1];
    if (g.needs(i)) g.set(i, slice_channels(g.d_output(), first, count));
    first += count;
  }
}
void grad_slice(GradContext& g) {
  g.set(0, g.graph.append("pad_channels", {g.d_output()},
                          {{"first", g.node().attrs.integer("first")}, {"total", g.input(0).shape()[1]}}));
}
void grad_pad(GradContext& g) {
  g.set(0, slice_channels(g.d_output(), g.node().attrs.integer("first"), g.input(0).shape()[1]));
}

// A part that does not start at a whole block would have to be shifted between lanes: such nodes work in nchw.
void layout_by_alignment(LayoutChoice& c, bool aligned) {
  const Layout layout = aligned ? Layout::kBlocked : Layout::kNchw;
  for (Layout& l : c.in) l = layout;
  for (Layout& l : c.out) l = layout;
}
// Pixels of an nhwc image hold their channels side by side, so a copy may start at any of them.
bool can_start_at(int64_t channel, const LayoutChoice& c) {
  return c.device != DeviceKind::kCpu || channel % cpu::channel_block() == 0;
}
void layout_concat(LayoutChoice& c) {
  int64_t first = 0;
  bool aligned = true;
  for (const Value& part : c.node.inputs) {
    aligned = aligned && can_start_at(first, c);
    first += part.shape()[1];
  }
  layout_by_alignment(c, aligned);
}
void layout_first(LayoutChoice& c) {
  layout_by_alignment(c, can_start_at(c.node.attrs.integer("first"), c));
}

// Of an nhwc whole the last channels' part has the whole's pads behind them, all others have none.
View channels_of(const View& whole, int64_t first, int64_t count) {
  View part = whole;
  part.c = count;
  part.data = static_cast<char*>(whole.data) + channel_offset_bytes(whole, first);
  if (whole.layout == Layout::kNhwc) part.block = first + count == whole.c ? whole.blocks() * whole.block - first : 1;
  return part;
}

void copy_unless_there(const KernelArgs& a, const View& from, const View& to) {
  if (from.data != to.data) CONVOY_KERNEL(a, reorder, from, to);
}

Kernel prepare_concat(const PrepareArgs&) {
  return {.run =
              [](const KernelArgs& a) {
                int64_t first = 0;
                for (const View& part : a.in) {
                  copy_unless_there(a, part, channels_of(a.out[0], first, part.c));
                  first += part.c;
                }
              },
          .implementation = "view or copy"};
}
Kernel prepare_slice(const PrepareArgs& args) {
  const int64_t first = args.node.attrs.integer("first");
  return {.run = [=](const KernelArgs& a) { copy_unless_there(a, channels_of(a.in[0], first, a.out[0].c), a.out[0]); },
          .implementation = "view or copy"};
}
Kernel prepare_pad(const PrepareArgs& args) {
  const int64_t first = args.node.attrs.integer("first");
  return {.run =
              [=](const KernelArgs& a) {
                CONVOY_CPU(fill, a.out[0], 0.0f);
                CONVOY_CPU(reorder, a.in[0], channels_of(a.out[0], first, a.in[0].c));
              },
          .implementation = "copy"};
}
Kernel prepare_pad_cuda(const PrepareArgs& args) {
  const int64_t first = args.node.attrs.integer("first");
  return {.run = [=](const KernelArgs& a) { CONVOY_CUDA(a, insert_channels, a.in[0], first, a.out[0]); },
          .implementation = "copy"};
}

double no_flops(const Node&) {
  return 0;
}

}  // namespace

Value concat(const std::vector<Value>& parts) {
  CONVOY_CHECK(!parts.empty(), "a concat needs at least one part");
  return parts[0].graph->append("concat", parts);
}
Value slice_channels(Value x, int64_t first, int64_t count) {
  return x.graph->append("slice_channels", {x}, {{"first", first}, {"count", count}});
}

std::vector<OpDef> channel_ops() {
  return {
      {.name = "concat",
       .infer = infer_concat,
       .grad = grad_concat,
       .flops = no_flops,
       .layout = layout_concat,
       .prepare_cpu = prepare_concat,
       .prepare_cuda = prepare_concat},
      {.name = "slice_channels",
       .infer = infer_slice,
       .grad = grad_slice,
       .flops = no_flops,
       .layout = layout_first,
       .prepare_cpu = prepare_slice,
       .prepare_cuda = prepare_slice},
      {.name = "pad_channels",
       .infer = infer_pad,
       .grad = grad_pad,
       .flops = no_flops,
       .layout = layout_first,
       .prepare_cpu = prepare_pad,
       .prepare_cuda = prepare_pad_cuda},
  };
}

}  // namespace convoy
