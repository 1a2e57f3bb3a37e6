// Dice and Lovasz-Softmax: losses of whole images, whose parts need no exchange between lanes.
#include "engine/context.h"
#include "engine/ops/loss_common.h"
#include "engine/ops/registry.h"
#include "kernels/region_losses.h"

namespace convoy {

namespace {

// Inputs.
enum { kLogits, kTarget, kLabelCounts };

std::vector<TensorInfo> infer_region(const Node& node) {
  constexpr int64_t kMaxClasses = 1024;
  const Shape& x = require_image(node, kLogits);
  require_same_size(x, require_labels(node, kTarget, x));
  CONVOY_CHECK(x[1] <= kMaxClasses, "at most {} classes, these logits have {}", kMaxClasses, x[1]);
  if (node.inputs.size() > kLabelCounts) require_shape(node, kLabelCounts, {x[1]});
  return {{DType::kF32, {}}, info_of(node.inputs[kLogits])};
}

double region_flops(const Node& n) {
  return 50.0 * static_cast<double>(n.inputs[kLogits].shape().count());
}

/// Classes up to the last that has labels.
int64_t labelled_classes(const float* counts, int64_t classes) {
  while (classes > 1 && counts[classes - 1] == 0) --classes;
  return classes;
}

Kernel prepare_dice(const PrepareArgs& args) {
  const Shape t = args.node.inputs[kTarget].shape();
  const auto ignore = static_cast<int32_t>(args.node.attrs.integer("ignore"));
  const auto smooth = static_cast<float>(args.node.attrs.real("smooth"));
  const double images = static_cast<double>(args.node.attrs.integer("images"));
  const bool counted = args.in.size() > kLabelCounts;
  return {.run =
              [=](const KernelArgs& a) {
                const View& x = a.in[kLogits];
                const int64_t classes = counted ? labelled_classes(a.in[kLabelCounts].f32(), x.c) : x.c;
                const auto scale = static_cast<float>(1 / (images * static_cast<double>(classes)));
                int64_t bad = -1;
                CONVOY_CPU(dice_loss, x, a.in[kTarget].i32(), ignore, classes, smooth, scale, a.out[0].f32(), a.out[1],
                           &bad, a.workspace);
                require_classes(a.in[kTarget].i32(), t, bad, x.c, ignore);
              },
          .workspace_bytes = dice_workspace_bytes(args.in[kLogits]),
          .implementation = "two passes"};
}

Kernel prepare_dice_cuda(const PrepareArgs& args) {
  const Shape t = args.node.inputs[kTarget].shape();
  const int64_t classes = args.node.inputs[kLogits].shape()[1];
  const auto ignore = static_cast<int32_t>(args.node.attrs.integer("ignore"));
  const auto smooth = static_cast<float>(args.node.attrs.real("smooth"));
  const double images = static_cast<double>(args.node.attrs.integer("images"));
  const bool counted = args.in.size() > kLabelCounts;
  return {.run =
              [=](const KernelArgs& a) {
                CONVOY_CUDA(a, dice_loss, a.in[kLogits], a.in[kTarget].i32(), ignore,
                            counted ? a.in[kLabelCounts].f32() : nullptr, smooth, images, a.out[0].f32(), a.out[1],
                            a.fault, a.workspace);
              },
          .workspace_bytes = dice_cuda_workspace_bytes(args.in[kLogits]),
          .implementation = "two passes",
          .explain = explain_label(t, classes, ignore)};
}

Kernel prepare_lovasz(const PrepareArgs& args) {
  const Shape t = args.node.inputs[kTarget].shape();
  const auto ignore = static_cast<int32_t>(args.node.attrs.integer("ignore"));
  const bool per_image = args.node.attrs.flag("per_image");
  const auto scale = per_image ? static_cast<float>(1 / static_cast<double>(args.node.attrs.integer("images"))) : 1.0f;
  const int64_t slots = lovasz_slots(args.in[kLogits].c, args.context.threads());
  return {.run =
              [=](const KernelArgs& a) {
                const View& x = a.in[kLogits];
                int64_t bad = -1;
                CONVOY_CPU(lovasz_loss, x, a.in[kTarget].i32(), ignore, per_image, scale, a.out[0].f32(), a.out[1],
                           &bad, slots, a.workspace);
                require_classes(a.in[kTarget].i32(), t, bad, x.c, ignore);
              },
          .workspace_bytes = lovasz_workspace_bytes(args.in[kLogits], per_image, slots),
          .implementation = "radix sort"};
}

Kernel prepare_lovasz_cuda(const PrepareArgs& args) {
  const Shape t = args.node.inputs[kTarget].shape();
  const int64_t classes = args.node.inputs[kLogits].shape()[1];
  const auto ignore = static_cast<int32_t>(args.node.attrs.integer("ignore"));
  const bool per_image = args.node.attrs.flag("per_image");
  const auto scale = per_image ? static_cast<float>(1 / static_cast<double>(args.node.attrs.integer("images"))) : 1.0f;
  return {.run =
              [=](const KernelArgs& a) {
                CONVOY_CUDA(a, lovasz_loss, a.in[kLogits], a.in[kTarget].i32(), ignore, per_image, scale,
                            a.out[0].f32(), a.out[1], a.fault, a.workspace);
              },
          .workspace_bytes = lovasz_cuda_workspace_bytes(args.in[kLogits], per_image),
          .implementation = "radix sort",
          .explain = explain_label(t, classes, ignore)};
}

/// Images of the global batch, or of the logits where there is none.
int64_t images_of(Value logits) {
  const GlobalBatch& batch = logits.graph->global_batch();
  return batch.shared() ? batch.images : logits.shape()[0];
}

}  // namespace

Value dice_loss(Value logits, Value target, int64_t ignore, double smooth, Value label_counts) {
  std::vector<Value> inputs{logits, target};
  if (label_counts) inputs.push_back(label_counts);
  return logits.graph->append("dice_loss", std::move(inputs),
                              {{"ignore", ignore}, {"smooth", smooth}, {"images", images_of(logits)}});
}

Value lovasz_softmax_loss(Value logits, Value target, int64_t ignore, bool per_image) {
  CONVOY_CHECK(per_image || !logits.graph->global_batch().shared(),
               "the Lovasz loss of a batch as a whole sorts the errors of all its pixels and cannot be divided over "
               "ranks, micro-batches or exact lanes: take it per image (SOLVER.LEGACY_LOSS False), or one rank");
  return logits.graph->append(
      "lovasz_loss", {logits, target},
      {{"ignore", ignore}, {"per_image", static_cast<int64_t>(per_image)}, {"images", images_of(logits)}});
}

std::vector<OpDef> loss_region_ops() {
  return {
      {.name = "dice_loss",
       .infer = infer_region,
       .grad = grad_by_unit,
       .flops = region_flops,
       .layout = layout_first_blocked,
       .prepare_cpu = prepare_dice,
       .prepare_cuda = prepare_dice_cuda,
       .optional_outputs = true},
      {.name = "lovasz_loss",
       .infer = infer_region,
       .grad = grad_by_unit,
       .flops = region_flops,
       .layout = layout_first_blocked,
       .prepare_cpu = prepare_lovasz,
       .prepare_cuda = prepare_lovasz_cuda,
       .optional_outputs = true},
  };
}

}  // namespace convoy
