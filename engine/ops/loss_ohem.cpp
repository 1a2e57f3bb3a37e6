// Online hard example mining: which pixels are hard is decided by a threshold over the global batch.
#include "engine/ops/loss_common.h"
#include "engine/ops/registry.h"
#include "engine/ops/selection.h"
#include "kernels/selection.h"

namespace convoy {

namespace {

// Input: probabilities. Outputs: threshold, whether all are kept.
std::vector<TensorInfo> infer_threshold(const Node& node) {
  require_shape(node, 0, node.inputs[0].shape());
  CONVOY_CHECK(node.inputs[0].shape().rank() == 3, "probabilities must be (N,H,W), they are {}",
               node.inputs[0].shape().str());
  return {{DType::kF32, {}}, {DType::kF32, {}}};
}

// The histograms are needed only where fewer than min_kept pixels lie below the fixed threshold.
Kernel prepare_threshold(const PrepareArgs& args) {
  const int64_t count = args.node.inputs[0].shape().count(), min_kept = args.node.attrs.integer("min_kept");
  const auto thresh = static_cast<float>(args.node.attrs.real("thresh"));
  return selection_kernel(args, [=](const ExchangeArgs& a) {
    int64_t counts[2] = {0, 0};
    for (const View& lane : a.in[0]) {
      int64_t of_lane[2];
      CONVOY_CPU(count_candidates, lane.f32(), count, thresh, of_lane);
      counts[0] += of_lane[0];
      counts[1] += of_lane[1];
    }
    a.communicator.all_reduce(counts, ReduceOp::kSum, a.name + ", counts");
    const bool keep_all = min_kept > counts[0];
    float threshold = keep_all ? 1.0f : thresh;
    if (!keep_all && counts[1] < min_kept)
      threshold = kth_candidate(a.communicator, a.in[0], count, false, min_kept, a.name).value;
    *a.out[0].f32() = threshold;
    *a.out[1].f32() = keep_all ? 1.0f : 0.0f;
  });
}

// One rank: the device finds the threshold without the host.
Kernel prepare_threshold_cuda(const PrepareArgs& args) {
  const int64_t count = args.node.inputs[0].shape().count(), min_kept = args.node.attrs.integer("min_kept");
  const auto thresh = static_cast<float>(args.node.attrs.real("thresh"));
  return {.run =
              [=](const KernelArgs& a) {
                CONVOY_CUDA(a, hard_threshold, a.in[0].f32(), count, thresh, min_kept, a.out[0].f32(), a.out[1].f32(),
                            a.workspace);
              },
          .workspace_bytes = selection_cuda_workspace_bytes(count),
          .implementation = "histograms"};
}

// Inputs (target, probability, threshold).
std::vector<TensorInfo> infer_keep(const Node& node) {
  const Shape& t = node.inputs[0].shape();
  require_shape(node, 0, t, DType::kI32);
  require_shape(node, 1, t);
  require_shape(node, 2, {});
  return {info_of(node.inputs[0])};
}

Kernel prepare_keep(const PrepareArgs& args) {
  const int64_t count = args.node.inputs[0].shape().count();
  const auto ignore = static_cast<int32_t>(args.node.attrs.integer("ignore"));
  return {.run =
              [=](const KernelArgs& a) {
                CONVOY_KERNEL(a, keep_hard_labels, a.in[0].i32(), a.in[1].f32(), count, ignore, a.in[2].f32(),
                              a.out[0].i32());
              },
          .implementation = "elementwise"};
}

}  // namespace

std::pair<Value, Value> hard_threshold(Value probability, double thresh, int64_t min_kept) {
  CONVOY_CHECK(thresh >= 0 && thresh <= 1, "the threshold of OHEM is a probability, not {}", thresh);
  CONVOY_CHECK(min_kept >= 0, "OHEM keeps at least 0 pixels, not {}", min_kept);
  Graph& graph = *probability.graph;
  const Value threshold = graph.append(graph.global_batch().shared() ? "global_hard_threshold" : "hard_threshold",
                                       {probability}, {{"thresh", thresh}, {"min_kept", min_kept}});
  return {threshold, {&graph, threshold.node, 1}};
}

Value keep_hard_labels(Value target, Value probability, Value threshold, int64_t ignore) {
  return target.graph->append("keep_hard_labels", {target, probability, threshold}, {{"ignore", ignore}});
}

std::vector<OpDef> loss_ohem_ops() {
  return {
      {.name = "hard_threshold",
       .infer = infer_threshold,
       .layout = layout_plain,
       .prepare_cpu = prepare_threshold,
       .prepare_cuda = prepare_threshold_cuda},
      {.name = "global_hard_threshold",
       .infer = infer_threshold,
       .layout = layout_plain,
       .prepare_cpu = prepare_threshold,
       .collective = true,
       .several_messages = true},
      {.name = "keep_hard_labels", .infer = infer_keep, .prepare_cpu = prepare_keep, .prepare_cuda = prepare_keep},
  };
}

}  // namespace convoy
