// Rearrangements of channels and pixels: pixel shuffle, DUNet's upsampling, channel shuffle. Each is a pair of
// depth_to_space and space_to_depth under some order of the channels, and each half is the other's gradient.
#include "kernels/shuffle.h"

#include <memory>

#include "engine/ops.h"
#include "engine/ops/common.h"
#include "engine/ops/registry.h"

namespace convoy {

namespace {

Shape deep_of(const Shape& wide, int64_t r) {
  CONVOY_CHECK(r > 0 && wide[2] % r == 0 && wide[3] % r == 0, "{} is no whole number of {}x{} squares", wide.str(), r,
               r);
  return {wide[0], wide[1] * r * r, wide[2] / r, wide[3] / r};
}
Shape wide_of(const Shape& deep, int64_t r) {
  CONVOY_CHECK(r > 0 && deep[1] % (r * r) == 0, "{} channels cannot fill {}x{} squares", deep[1], r, r);
  return {deep[0], deep[1] / (r * r), deep[2] * r, deep[3] * r};
}

std::vector<TensorInfo> infer_to_space(const Node& node) {
  return {{DType::kF32, wide_of(require_image(node, 0), node.attrs.integer("r"))}};
}
std::vector<TensorInfo> infer_to_depth(const Node& node) {
  return {{DType::kF32, deep_of(require_image(node, 0), node.attrs.integer("r"))}};
}
std::vector<TensorInfo> infer_channel_shuffle(const Node& node) {
  const int64_t channels = require_image(node, 0)[1], groups = node.attrs.integer("groups");
  CONVOY_CHECK(groups > 0 && channels % groups == 0, "{} channels cannot be split into {} groups", channels, groups);
  return {info_of(node.inputs[0])};
}

void grad_to_space(GradContext& g) {
  g.set(0, g.graph.append("space_to_depth", {g.d_output()}, g.node().attrs));
}
void grad_to_depth(GradContext& g) {
  g.set(0, g.graph.append("depth_to_space", {g.d_output()}, g.node().attrs));
}
void grad_channel_shuffle(GradContext& g) {
  g.set(0, channel_shuffle(g.d_output(), g.input(0).shape()[1] / g.node().attrs.integer("groups")));
}

DepthOrder order_of(const Node& node) {
  return static_cast<DepthOrder>(node.attrs.integer("order"));
}

using Table = std::shared_ptr<const std::vector<int32_t>>;

/// The channel of each place (kernels/shuffle.h).
Table channel_table(const Node& node, int64_t wide_channels) {
  const int64_t corners = node.attrs.integer("r") * node.attrs.integer("r");
  const DepthOrder order = order_of(node);
  std::vector<int32_t> table;
  for (int64_t corner = 0; corner < corners; ++corner)
    for (int64_t c = 0; c < wide_channels; ++c)
      table.push_back(
          static_cast<int32_t>(order == DepthOrder::kChannelSlow ? c * corners + corner : corner * wide_channels + c));
  return std::make_shared<const std::vector<int32_t>>(std::move(table));
}

Table inverse(const Table& table) {
  std::vector<int32_t> places(table->size());
  for (size_t i = 0; i < table->size(); ++i) places[static_cast<size_t>((*table)[i])] = static_cast<int32_t>(i);
  return std::make_shared<const std::vector<int32_t>>(std::move(places));
}

Kernel prepare_to_space(const PrepareArgs& args) {
  return {.run = [table = channel_table(args.node, args.out[0].c), r = args.node.attrs.integer("r")](
                     const KernelArgs& a) { CONVOY_CPU(depth_to_space, a.in[0], table->data(), r, a.out[0]); },
          .implementation = "gather"};
}
Kernel prepare_to_depth(const PrepareArgs& args) {
  return {.run = [table = inverse(channel_table(args.node, args.in[0].c)), r = args.node.attrs.integer("r")](
                     const KernelArgs& a) { CONVOY_CPU(space_to_depth, a.in[0], table->data(), r, a.out[0]); },
          .implementation = "gather"};
}
Kernel prepare_channel_shuffle(const PrepareArgs& args) {
  const int64_t channels = args.in[0].c, groups = args.node.attrs.integer("groups");
  std::vector<int32_t> table;
  for (int64_t c = 0; c < channels; ++c)
    table.push_back(static_cast<int32_t>(c % groups * (channels / groups) + c / groups));
  return {.run = [table = Table(std::make_shared<const std::vector<int32_t>>(std::move(table)))](
                     const KernelArgs& a) { CONVOY_CPU(depth_to_space, a.in[0], table->data(), 1, a.out[0]); },
          .implementation = "gather"};
}

Kernel prepare_to_space_cuda(const PrepareArgs& args) {
  return {.run = [order = order_of(args.node), r = args.node.attrs.integer("r")](
                     const KernelArgs& a) { CONVOY_CUDA(a, depth_to_space, a.in[0], order, r, a.out[0]); },
          .implementation = "gather"};
}
Kernel prepare_to_depth_cuda(const PrepareArgs& args) {
  return {.run = [order = order_of(args.node), r = args.node.attrs.integer("r")](
                     const KernelArgs& a) { CONVOY_CUDA(a, space_to_depth, a.in[0], order, r, a.out[0]); },
          .implementation = "gather"};
}
Kernel prepare_channel_shuffle_cuda(const PrepareArgs& args) {
  return {.run = [groups = args.node.attrs.integer("groups")](
                     const KernelArgs& a) { CONVOY_CUDA(a, channel_shuffle, a.in[0], groups, a.out[0]); },
          .implementation = "gather"};
}

Value to_space(Value x, int64_t r, DepthOrder order) {
  return x.graph->append("depth_to_space", {x}, {{"r", r}, {"order", static_cast<int64_t>(order)}});
}

double no_flops(const Node&) {
  return 0;
}

}  // namespace

Value pixel_shuffle(Value x, int64_t factor) {
  return to_space(x, factor, DepthOrder::kChannelSlow);
}
Value dupsampling(Value x, Value weight, int64_t factor) {
  return to_space(conv2d(x, weight, {}), factor, DepthOrder::kCornerSlow);
}
Value channel_shuffle(Value x, int64_t groups) {
  return x.graph->append("channel_shuffle", {x}, {{"groups", groups}});
}

std::vector<OpDef> shuffle_ops() {
  return {
      {.name = "depth_to_space",
       .infer = infer_to_space,
       .grad = grad_to_space,
       .flops = no_flops,
       .prepare_cpu = prepare_to_space,
       .prepare_cuda = prepare_to_space_cuda},
      {.name = "space_to_depth",
       .infer = infer_to_depth,
       .grad = grad_to_depth,
       .flops = no_flops,
       .prepare_cpu = prepare_to_depth,
       .prepare_cuda = prepare_to_depth_cuda},
      {.name = "channel_shuffle",
       .infer = infer_channel_shuffle,
       .grad = grad_channel_shuffle,
       .flops = no_flops,
       .prepare_cpu = prepare_channel_shuffle,
       .prepare_cuda = prepare_channel_shuffle_cuda},
  };
}

}  // namespace convoy
