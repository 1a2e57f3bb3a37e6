// The loss of a single-shot detector. Which negatives take part is decided over the global batch.
#include <algorithm>

#include "engine/ops/loss_common.h"
#include "engine/ops/registry.h"
#include "engine/ops/selection.h"
#include "kernels/multibox.h"
#include "kernels/selection.h"

namespace convoy {

namespace {

/// Inputs conf (N,A,C) at `conf` and classes (N,A) at `classes`.
const Shape& require_anchors(const Node& node, size_t conf, size_t classes) {
  const Shape& x = node.inputs[conf].shape();
  CONVOY_CHECK(x.rank() == 3, "class logits must be (N,A,C), they are {}", x.str());
  require_shape(node, conf, x);
  require_shape(node, classes, {x[0], x[1]}, DType::kI32);
  return x;
}

// Inputs (conf, classes). Outputs: hardness, counts.
std::vector<TensorInfo> infer_hardness(const Node& node) {
  const Shape& x = require_anchors(node, 0, 1);
  return {{DType::kF32, {x[0], x[1]}}, {DType::kF32, {2}}};
}

/// Throws naming anchor `bad` of classes (N,A), when there is one, whose class is none of the logits' (N,A,C).
void require_box_classes(const int32_t* classes, const Shape& x, int64_t bad) {
  CONVOY_CHECK(bad < 0, "anchor {} of image {} is of class {}, classes are 0 (background) to {}", bad % x[1],
               bad / x[1], classes[bad], x[2] - 1);
}

Kernel prepare_hardness(const PrepareArgs& args) {
  const Shape x = args.node.inputs[0].shape();
  const auto ratio = static_cast<float>(args.node.attrs.real("ratio"));
  return {.run =
              [=](const KernelArgs& a) {
                int64_t bad = -1;
                const int32_t* classes = a.in[1].i32();
                CONVOY_CPU(box_hardness, a.in[0].f32(), classes, x[0], x[1], x[2], ratio, a.out[0].f32(),
                           a.out[1].f32(), &bad);
                require_box_classes(classes, x, bad);
              },
          .implementation = "anchors"};
}

Kernel prepare_hardness_cuda(const PrepareArgs& args) {
  const Shape x = args.node.inputs[0].shape();
  const auto ratio = static_cast<float>(args.node.attrs.real("ratio"));
  return {.run =
              [=](const KernelArgs& a) {
                CONVOY_CUDA(a, box_hardness, a.in[0].f32(), a.in[1].i32(), x[0], x[1], x[2], ratio, a.out[0].f32(),
                            a.out[1].f32(), a.fault, a.workspace);
              },
          .workspace_bytes = multibox_cuda_workspace_bytes(x[0], x[1]),
          .implementation = "anchors",
          .explain = [=](std::span<const View> in, int64_t fault) { require_box_classes(in[1].i32(), x, fault); }};
}

// Inputs (hardness, counts over all lanes). Output (3): BoxSelection as floats.
std::vector<TensorInfo> infer_selection(const Node& node) {
  CONVOY_CHECK(node.inputs[0].shape().rank() == 2, "hardness must be (N,A), it is {}", node.inputs[0].shape().str());
  require_shape(node, 1, {2});
  return {{DType::kF32, {3}}};
}

/// The m-th of the anchors, in the order of images and anchors over all ranks, that have exactly this hardness.
std::pair<int64_t, int64_t> find_tie(Communicator& communicator, std::span<const View> lanes, const Shape& shape,
                                     float hardness, int64_t m, const std::string& name) {
  const int64_t per_lane = shape.count();
  int64_t mine[2] = {static_cast<int64_t>(lanes.size()) * shape[0], 0};  // images, ties
  for (const View& lane : lanes) mine[1] += std::count(lane.f32(), lane.f32() + per_lane, hardness);
  std::vector<int64_t> all(2 * static_cast<size_t>(communicator.size()));
  communicator.all_gather(mine, sizeof mine, all.data(), name + ", ties");
  int64_t images_before = 0, ties_before = 0;
  for (int rank = 0; rank < communicator.rank(); ++rank) {
    images_before += all[2 * static_cast<size_t>(rank)];
    ties_before += all[2 * static_cast<size_t>(rank) + 1];
  }
  int64_t found[2] = {0, 0};
  int64_t left = m - ties_before;
  if (left >= 1 && left <= mine[1])
    for (size_t lane = 0; lane < lanes.size(); ++lane)
      for (int64_t i = 0; i < per_lane; ++i)
        if (lanes[lane].f32()[i] == hardness && left-- == 1) {
          found[0] = images_before + static_cast<int64_t>(lane) * shape[0] + i / shape[1];
          found[1] = i % shape[1];
        }
  communicator.all_reduce(found, ReduceOp::kSum, name + ", last tie");
  return {found[0], found[1]};
}

Kernel prepare_selection(const PrepareArgs& args) {
  const Shape shape = args.node.inputs[0].shape();
  const int64_t without_positives = args.node.attrs.integer("without_positives");
  return selection_kernel(args, [=](const ExchangeArgs& a) {
    int64_t candidates = 0;
    for (const View& lane : a.in[0])
      candidates += std::count_if(lane.f32(), lane.f32() + shape.count(), [](float h) { return h >= 0 && h <= 1; });
    a.communicator.all_reduce({&candidates, 1}, ReduceOp::kSum, a.name + ", candidates");
    const auto wanted = static_cast<int64_t>(*a.in[1][0].f32());
    const int64_t k = std::min(wanted > 0 ? wanted : without_positives, candidates);
    float* out = a.out[0].f32();
    if (k == 0) {
      out[0] = 2;  // above every candidate
      out[1] = out[2] = 0;
      return;
    }
    const KthCandidate last = kth_candidate(a.communicator, a.in[0], shape.count(), true, k, a.name);
    const auto [image, anchor] = find_tie(a.communicator, a.in[0], shape, last.value, k - last.before, a.name);
    out[0] = last.value;
    out[1] = static_cast<float>(image);
    out[2] = static_cast<float>(anchor);
  });
}

// One rank: the device selects without the host.
Kernel prepare_selection_cuda(const PrepareArgs& args) {
  const Shape shape = args.node.inputs[0].shape();
  const int64_t without_positives = args.node.attrs.integer("without_positives");
  return {.run =
              [=](const KernelArgs& a) {
                CONVOY_CUDA(a, box_selection, a.in[0].f32(), shape[0], shape[1], a.in[1].f32(), without_positives,
                            a.out[0].f32(), a.workspace);
              },
          .workspace_bytes = selection_cuda_workspace_bytes(shape.count()),
          .implementation = "histograms"};
}

enum { kLoc, kConf, kBoxes, kClasses, kHardness, kSelection, kCounts };

std::vector<TensorInfo> infer_multibox(const Node& node) {
  const Shape& x = require_anchors(node, kConf, kClasses);
  require_shape(node, kLoc, {x[0], x[1], 4});
  require_shape(node, kBoxes, {x[0], x[1], 4});
  require_shape(node, kHardness, {x[0], x[1]});
  require_shape(node, kSelection, {3});
  require_shape(node, kCounts, {2});
  return {{DType::kF32, {}}, info_of(node.inputs[kLoc]), info_of(node.inputs[kConf])};
}

void grad_multibox(GradContext& g) {
  if (g.needs(kLoc)) set_unit_gradient(g, kLoc, 1);
  if (g.needs(kConf)) set_unit_gradient(g, kConf, 2);
}

Kernel prepare_multibox(const PrepareArgs& args) {
  const Shape x = args.node.inputs[kConf].shape();
  const auto alpha = static_cast<float>(args.node.attrs.real("alpha"));
  const bool shared = args.node.attrs.flag("shared");
  return {.run =
              [=](const KernelArgs& a) {
                const float* s = a.in[kSelection].f32();
                const BoxSelection selection{s[0], static_cast<int64_t>(s[1]), static_cast<int64_t>(s[2])};
                CONVOY_CPU(multibox_loss, a.in[kLoc].f32(), a.in[kConf].f32(), a.in[kBoxes].f32(), a.in[kClasses].i32(),
                           a.in[kHardness].f32(), x[0], x[1], x[2], alpha, selection, shared ? a.step.first_slot : 0,
                           a.in[kCounts].f32()[1], a.out[0].f32(), a.out[1].f32(), a.out[2].f32());
              },
          .implementation = "anchors"};
}

Kernel prepare_multibox_cuda(const PrepareArgs& args) {
  const Shape x = args.node.inputs[kConf].shape();
  const auto alpha = static_cast<float>(args.node.attrs.real("alpha"));
  const bool shared = args.node.attrs.flag("shared");
  return {.run =
              [=](const KernelArgs& a) {
                CONVOY_CUDA(a, multibox_loss, a.in[kLoc].f32(), a.in[kConf].f32(), a.in[kBoxes].f32(),
                            a.in[kClasses].i32(), a.in[kHardness].f32(), x[0], x[1], x[2], alpha,
                            a.in[kSelection].f32(), shared ? a.step.first_slot : 0, a.in[kCounts].f32() + 1,
                            a.out[0].f32(), a.out[1].f32(), a.out[2].f32(), a.workspace);
              },
          .workspace_bytes = multibox_cuda_workspace_bytes(x[0], x[1]),
          .implementation = "anchors"};
}

}  // namespace

Value multibox_loss(Value loc, Value conf, Value boxes, Value classes, const MultiboxOptions& options) {
  CONVOY_CHECK(options.negatives_per_positive >= 0, "negatives per positive must be >= 0, they are {}",
               options.negatives_per_positive);
  Graph& graph = *loc.graph;
  const bool shared = graph.global_batch().shared();
  const Value hardness = graph.append("box_hardness", {conf, classes}, {{"ratio", options.negatives_per_positive}});
  const Value counts = sum_over_lanes({{&graph, hardness.node, 1}})[0];
  const Value selection = graph.append(shared ? "global_box_selection" : "box_selection", {hardness, counts},
                                       {{"without_positives", options.negatives_without_positives}});
  return graph.append("multibox_loss", {loc, conf, boxes, classes, hardness, selection, counts},
                      {{"alpha", options.alpha}, {"shared", static_cast<int64_t>(shared)}});
}

std::vector<OpDef> loss_box_ops() {
  return {
      {.name = "box_hardness",
       .infer = infer_hardness,
       .prepare_cpu = prepare_hardness,
       .prepare_cuda = prepare_hardness_cuda},
      {.name = "box_selection",
       .infer = infer_selection,
       .prepare_cpu = prepare_selection,
       .prepare_cuda = prepare_selection_cuda},
      {.name = "global_box_selection",
       .infer = infer_selection,
       .prepare_cpu = prepare_selection,
       .collective = true,
       .several_messages = true},
      {.name = "multibox_loss",
       .infer = infer_multibox,
       .grad = grad_multibox,
       .prepare_cpu = prepare_multibox,
       .prepare_cuda = prepare_multibox_cuda,
       .optional_outputs = true},
  };
}

}  // namespace convoy
