// Batch normalisation in the pieces that sync-BN needs apart: statistics, running averages, apply, and the two backward
// passes. bn_apply takes over a following residual add and activation (engine/fuse.cpp).
#include "kernels/batch_norm.h"

#include "engine/ops.h"
#include "engine/ops/common.h"
#include "engine/ops/registry.h"

namespace convoy {

namespace {

// bn_apply's inputs.
enum { kX, kMean, kVar, kWeight, kBias, kResidual };

/// Whether the map has 1x1 pixels whatever the size of the image.
bool is_behind_global_pool(Value x) {
  while (x.shape().rank() == 4 && x.shape()[2] * x.shape()[3] == 1) {
    const Node& node = x.graph->node(x.node);
    if (node.op->name == "adaptive_avg_pool2d") return true;
    if (node.inputs.empty()) return false;
    x = node.inputs[0];
  }
  return false;
}

std::vector<TensorInfo> infer_stats(const Node& node) {
  const Shape& x = require_image(node, 0);
  const GlobalBatch& batch = node.inputs[0].graph->global_batch();
  CONVOY_CHECK(statistics_count(node.inputs[0]) >= 2,
               "batch statistics need at least two values per channel, this map is {}{}: use a larger batch{}", x.str(),
               batch.shared() ? fmt::format(" of a global batch of {}", batch.images) : "",
               is_behind_global_pool(node.inputs[0]) ? "" : " or crop");
  return {{DType::kF32, {x[1]}}, {DType::kF32, {x[1]}}};
}

std::vector<TensorInfo> infer_update(const Node& node) {
  for (size_t i = 1; i < 4; ++i) require_shape(node, i, node.inputs[0].shape());
  require_shape(node, 4, {}, DType::kI64);
  return {};
}

std::vector<TensorInfo> infer_apply(const Node& node) {
  const Shape& x = require_image(node, kX);
  for (size_t i = kMean; i <= kBias; ++i) require_shape(node, i, {x[1]});
  if (node.inputs.size() > kResidual) require_shape(node, kResidual, x);
  return {info_of(node.inputs[kX])};
}

Activation act_of(const Node& node) {
  return static_cast<Activation>(node.attrs.integer("act"));
}

// Inputs (dy, x, mean, var[, y]).
std::vector<TensorInfo> infer_reduce(const Node& node) {
  return {info_of(node.inputs[2]), info_of(node.inputs[2])};
}
// Inputs (dy, x, mean, var, weight[, sum_dy, sum_dy_xhat][, y]); outputs dx and the masked dy.
std::vector<TensorInfo> infer_backward(const Node& node) {
  return {info_of(node.inputs[0]), info_of(node.inputs[0])};
}

void grad_apply(GradContext& g) {
  const Node& node = g.node();
  const Activation act = act_of(node);
  const bool batch = node.attrs.flag("batch_statistics"), residual = node.inputs.size() > kResidual;
  const Value dy = g.d_output(), x = g.input(kX), mean = g.input(kMean), var = g.input(kVar), weight = g.input(kWeight);
  const Attrs attrs = node.attrs;
  const auto with_output = [&](std::vector<Value> inputs) {
    if (act != Activation::kNone) inputs.push_back(g.output());
    return inputs;
  };
  Value sums;
  if (g.needs(kWeight) || g.needs(kBias) || batch) {
    sums = g.graph.append("bn_backward_reduce", with_output({dy, x, mean, var}), attrs);
    g.set(kBias, sums);
    g.set(kWeight, {&g.graph, sums.node, 1});
  }
  Value sum_dy = sums, sum_dy_xhat{&g.graph, sums.node, 1};
  const bool residual_needed = residual && g.needs(kResidual);
  if (residual_needed && act == Activation::kNone) g.set(kResidual, dy);
  if (!g.needs(kX) && !(residual_needed && act != Activation::kNone)) return;
  std::vector<Value> inputs{dy, x, mean, var, weight};
  if (batch) {
    const GlobalBatch& global = g.graph.global_batch();
    if (global.shared() && global.statistics == GlobalBatch::Statistics::kAll) {
      const std::vector<Value> all = sum_over_lanes({sum_dy, sum_dy_xhat});
      sum_dy = all[0], sum_dy_xhat = all[1];
    }
    inputs.push_back(sum_dy);
    inputs.push_back(sum_dy_xhat);
  }
  const Value dx = g.graph.append("bn_backward_apply", with_output(std::move(inputs)), attrs);
  g.set(kX, dx);
  if (residual_needed && act != Activation::kNone) g.set(kResidual, {&g.graph, dx.node, 1});
}

double stats_flops(const Node& n) {
  return 3.0 * static_cast<double>(n.inputs[0].shape().count());
}
double apply_flops(const Node& n) {
  return 4.0 * static_cast<double>(n.inputs[0].shape().count());
}
double backward_flops(const Node& n) {
  return 6.0 * static_cast<double>(n.inputs[0].shape().count());
}

Kernel prepare_stats(const PrepareArgs& args) {
  return {.run =
              [](const KernelArgs& a) {
                CONVOY_KERNEL(a, bn_stats, a.in[0], a.out[0].f32(), a.out[1].f32(), static_cast<float*>(a.workspace));
              },
          .workspace_bytes = static_cast<size_t>(bn_workspace(args.in[0])) * sizeof(float),
          .implementation = "welford"};
}

Kernel prepare_update(const PrepareArgs& args) {
  const int64_t count = args.node.attrs.integer("count"), channels = args.in[0].n;
  const auto momentum = static_cast<float>(args.node.attrs.real("momentum"));
  return {.run =
              [=](const KernelArgs& a) {
                CONVOY_KERNEL(a, bn_update_running, a.in[0].f32(), a.in[1].f32(), count, momentum, a.in[2].f32(),
                              a.in[3].f32(), a.in[4].i64(), channels);
              },
          .implementation = "update"};
}

Kernel prepare_apply(const PrepareArgs& args) {
  const auto eps = static_cast<float>(args.node.attrs.real("eps"));
  const Activation act = act_of(args.node);
  const bool residual = args.in.size() > kResidual;
  return {.run =
              [=](const KernelArgs& a) {
                CONVOY_KERNEL(a, bn_apply, a.in[kX], residual ? &a.in[kResidual] : nullptr, a.in[kMean].f32(),
                              a.in[kVar].f32(), a.in[kWeight].f32(), a.in[kBias].f32(), eps, act, a.out[0]);
              },
          .implementation = "fused"};
}

Kernel prepare_reduce(const PrepareArgs& args) {
  const auto eps = static_cast<float>(args.node.attrs.real("eps"));
  const Activation act = act_of(args.node);
  return {.run =
              [=](const KernelArgs& a) {
                // The second sum may have no reader; the kernel computes both in one pass anyway.
                CONVOY_KERNEL(a, bn_backward_reduce, a.in[0], act == Activation::kNone ? nullptr : &a.in[4], a.in[1],
                              a.in[2].f32(), a.in[3].f32(), eps, act, a.out[0].f32(), a.out[1].f32(),
                              static_cast<float*>(a.workspace));
              },
          .workspace_bytes = static_cast<size_t>(bn_workspace(args.in[1])) * sizeof(float),
          .implementation = "chunked sums"};
}

Kernel prepare_backward(const PrepareArgs& args) {
  const auto eps = static_cast<float>(args.node.attrs.real("eps"));
  const Activation act = act_of(args.node);
  const bool batch = args.node.attrs.flag("batch_statistics");
  const int64_t count = statistics_count(args.node.inputs[1]);
  return {.run =
              [=](const KernelArgs& a) {
                const View* y = act == Activation::kNone ? nullptr : &a.in.back();
                const float* sum_dy = batch ? a.in[5].f32() : nullptr;
                const float* sum_dy_xhat = batch ? a.in[6].f32() : nullptr;
                CONVOY_KERNEL(a, bn_backward_apply, a.in[0], y, a.in[1], a.in[2].f32(), a.in[3].f32(), a.in[4].f32(),
                              eps, act, sum_dy, sum_dy_xhat, count, a.out[0], a.out[1].data ? &a.out[1] : nullptr);
              },
          .implementation = "fused"};
}

}  // namespace

int64_t statistics_count(Value x) {
  const Shape& shape = x.shape();
  const GlobalBatch& batch = x.graph->global_batch();
  const bool all = batch.shared() && batch.statistics == GlobalBatch::Statistics::kAll;
  return (all ? batch.images : shape[0]) * shape[2] * shape[3];
}

std::pair<Value, Value> bn_stats(Value x) {
  const Value mean = x.graph->append("bn_stats", {x});
  return {mean, {x.graph, mean.node, 1}};
}

Value bn_update_running(Value x, Value mean, Value var, Value running_mean, Value running_var,
                        Value num_batches_tracked, double momentum) {
  return x.graph->append("bn_update_running", {mean, var, running_mean, running_var, num_batches_tracked},
                         {{"momentum", momentum}, {"count", statistics_count(x)}});
}

Value bn_apply(Value x, Value mean, Value var, Value weight, Value bias, double eps, bool batch_statistics) {
  return x.graph->append("bn_apply", {x, mean, var, weight, bias},
                         {{"eps", eps},
                          {"act", static_cast<int64_t>(Activation::kNone)},
                          {"batch_statistics", static_cast<int64_t>(batch_statistics)}});
}

std::vector<OpDef> batch_norm_ops() {
  return {
      {.name = "bn_stats",
       .infer = infer_stats,
       .flops = stats_flops,
       .prepare_cpu = prepare_stats,
       .prepare_cuda = prepare_stats},
      {.name = "bn_update_running",
       .infer = infer_update,
       .prepare_cpu = prepare_update,
       .prepare_cuda = prepare_update,
       .effect = true},
      {.name = "bn_apply",
       .infer = infer_apply,
       .grad = grad_apply,
       .flops = apply_flops,
       .prepare_cpu = prepare_apply,
       .prepare_cuda = prepare_apply,
       .in_place = {kX, kResidual}},
      {.name = "bn_backward_reduce",
       .infer = infer_reduce,
       .flops = backward_flops,
       .prepare_cpu = prepare_reduce,
       .prepare_cuda = prepare_reduce},
      {.name = "bn_backward_apply",
       .infer = infer_backward,
       .flops = backward_flops,
       .prepare_cpu = prepare_backward,
       .prepare_cuda = prepare_backward,
       .in_place = {0},
       .optional_outputs = true},
  };
}

}  // namespace convoy
