// Cross entropies of pixels (plain, focal) and the probability of each pixel's class, alone and fused with the bilinear
// resize in front of them. The forward kernel yields the gradient of the logits as well: the probabilities are at hand,
// and nothing of full size has to be kept.
#include "engine/ops/loss_common.h"
#include "engine/ops/registry.h"
#include "kernels/softmax_ce.h"

namespace convoy {

namespace {

// Inputs of the losses.
enum { kLogits, kTarget, kNormalizer, kClassWeight };

bool is_fused(const Node& node) {
  return node.op->name.starts_with("upsample_");
}

std::vector<TensorInfo> infer_weight_sum(const Node& node) {
  CONVOY_CHECK(node.inputs[0].dtype() == DType::kI32, "labels must be i32, they are {}",
               dtype_name(node.inputs[0].dtype()));
  if (node.inputs.size() > 1) require_shape(node, 1, {node.attrs.integer("classes")});
  return {{DType::kF32, {}}};
}

std::vector<TensorInfo> infer_ce(const Node& node) {
  const Shape& x = require_image(node, kLogits);
  const Shape& t = require_labels(node, kTarget, x);
  if (!is_fused(node)) require_same_size(x, t);
  CONVOY_CHECK(node.inputs[kNormalizer].shape().count() == 1, "the normaliser must be a scalar");
  if (node.inputs.size() > kClassWeight) require_shape(node, kClassWeight, {x[1]});
  return {{DType::kF32, {}}, info_of(node.inputs[kLogits])};
}

std::vector<TensorInfo> infer_probability(const Node& node) {
  const Shape& x = require_image(node, kLogits);
  const Shape& t = require_labels(node, kTarget, x);
  if (!is_fused(node)) require_same_size(x, t);
  return {{DType::kF32, t}};
}

double ce_flops(const Node& n) {
  return 20.0 * static_cast<double>(n.inputs[kTarget].shape().count()) *
         static_cast<double>(n.inputs[kLogits].shape()[1]);
}

Kernel prepare_weight_sum(const PrepareArgs& args) {
  const int64_t count = args.node.inputs[0].shape().count(), classes = args.node.attrs.integer("classes");
  const auto ignore = static_cast<int32_t>(args.node.attrs.integer("ignore"));
  const bool weighted = args.in.size() > 1;
  return {.run =
              [=](const KernelArgs& a) {
                CONVOY_CPU(label_weight_sum, a.in[0].i32(), count, classes, ignore, weighted ? a.in[1].f32() : nullptr,
                           a.out[0].f32());
              },
          .implementation = "count"};
}

Kernel prepare_weight_sum_cuda(const PrepareArgs& args) {
  const int64_t count = args.node.inputs[0].shape().count(), classes = args.node.attrs.integer("classes");
  const auto ignore = static_cast<int32_t>(args.node.attrs.integer("ignore"));
  const bool weighted = args.in.size() > 1;
  return {.run =
              [=](const KernelArgs& a) {
                CONVOY_CUDA(a, label_weight_sum, a.in[0].i32(), count, classes, ignore,
                            weighted ? a.in[1].f32() : nullptr, a.out[0].f32(), static_cast<double*>(a.workspace));
              },
          .workspace_bytes = static_cast<size_t>(label_weight_sum_parts(count)) * sizeof(double),
          .implementation = "count"};
}

Kernel prepare_ce(const PrepareArgs& args) {
  const Node& node = args.node;
  const Shape t = node.inputs[kTarget].shape();
  const auto ignore = static_cast<int32_t>(node.attrs.integer("ignore"));
  const bool fused = is_fused(node), align = !fused || node.attrs.flag("align_corners");
  const bool weighted = args.in.size() > kClassWeight, focal = node.op->name.ends_with("focal_ce");
  const auto alpha = focal ? static_cast<float>(node.attrs.real("alpha")) : 1.0f;
  const auto gamma = focal ? static_cast<float>(node.attrs.real("gamma")) : 0.0f;
  return {.run =
              [=](const KernelArgs& a) {
                const View& logits = a.in[kLogits];
                const int32_t* target = a.in[kTarget].i32();
                const float* weights = weighted ? a.in[kClassWeight].f32() : nullptr;
                const float* normalizer = a.in[kNormalizer].f32();
                auto* workspace = static_cast<float*>(a.workspace);
                int64_t bad = -1;
                if (focal)
                  CONVOY_CPU(upsample_focal_ce, logits, target, t[1], t[2], align, ignore, weights, normalizer, alpha,
                             gamma, a.out[0].f32(), a.out[1], &bad, workspace);
                else
                  CONVOY_CPU(upsample_softmax_ce, logits, target, t[1], t[2], align, ignore, weights, normalizer,
                             a.out[0].f32(), a.out[1], &bad, workspace);
                require_classes(target, t, bad, logits.c, ignore);
              },
          .workspace_bytes = softmax_ce_workspace_bytes(args.in[kLogits]),
          .implementation = fused ? "fused with resize" : "row bands"};
}

Kernel prepare_ce_cuda(const PrepareArgs& args) {
  const Node& node = args.node;
  const Shape t = node.inputs[kTarget].shape();
  const int64_t classes = node.inputs[kLogits].shape()[1];
  const auto ignore = static_cast<int32_t>(node.attrs.integer("ignore"));
  const bool fused = is_fused(node), align = !fused || node.attrs.flag("align_corners");
  const bool weighted = args.in.size() > kClassWeight, focal = node.op->name.ends_with("focal_ce");
  const auto alpha = focal ? static_cast<float>(node.attrs.real("alpha")) : 1.0f;
  const auto gamma = focal ? static_cast<float>(node.attrs.real("gamma")) : 0.0f;
  return {.run =
              [=](const KernelArgs& a) {
                const int32_t* target = a.in[kTarget].i32();
                const float* weights = weighted ? a.in[kClassWeight].f32() : nullptr;
                const float* normalizer = a.in[kNormalizer].f32();
                if (focal)
                  CONVOY_CUDA(a, upsample_focal_ce, a.in[kLogits], target, t[1], t[2], align, ignore, weights,
                              normalizer, alpha, gamma, a.out[0].f32(), a.out[1], a.fault, a.workspace);
                else
                  CONVOY_CUDA(a, upsample_softmax_ce, a.in[kLogits], target, t[1], t[2], align, ignore, weights,
                              normalizer, a.out[0].f32(), a.out[1], a.fault, a.workspace);
              },
          .workspace_bytes = softmax_ce_cuda_workspace_bytes(args.in[kLogits], t[1], t[2], align),
          .implementation = fused ? "fused with resize, tiles" : "tiles",
          .explain = explain_label(t, classes, ignore)};
}

// A label that is no class is left for the loss to report.
Kernel prepare_probability(const PrepareArgs& args) {
  const Shape t = args.node.inputs[kTarget].shape();
  const auto ignore = static_cast<int32_t>(args.node.attrs.integer("ignore"));
  const bool fused = is_fused(args.node), align = !fused || args.node.attrs.flag("align_corners");
  return {.run =
              [=](const KernelArgs& a) {
                CONVOY_CPU(upsample_label_probability, a.in[kLogits], a.in[kTarget].i32(), t[1], t[2], align, ignore,
                           a.out[0].f32(), static_cast<float*>(a.workspace));
              },
          .workspace_bytes = softmax_ce_workspace_bytes(args.in[kLogits]),
          .implementation = fused ? "fused with resize" : "row bands"};
}

Kernel prepare_probability_cuda(const PrepareArgs& args) {
  const Shape t = args.node.inputs[kTarget].shape();
  const auto ignore = static_cast<int32_t>(args.node.attrs.integer("ignore"));
  const bool fused = is_fused(args.node), align = !fused || args.node.attrs.flag("align_corners");
  return {.run =
              [=](const KernelArgs& a) {
                CONVOY_CUDA(a, upsample_label_probability, a.in[kLogits], a.in[kTarget].i32(), t[1], t[2], align,
                            ignore, a.out[0].f32());
              },
          .implementation = fused ? "fused with resize, tiles" : "tiles"};
}

OpDef cross_entropy_op(const std::string& name) {
  return {.name = name,
          .infer = infer_ce,
          .grad = grad_by_unit,
          .flops = ce_flops,
          .layout = layout_first_blocked,
          .prepare_cpu = prepare_ce,
          .prepare_cuda = prepare_ce_cuda,
          .optional_outputs = true};
}

OpDef probability_op(const std::string& name) {
  return {.name = name,
          .infer = infer_probability,
          .flops = ce_flops,
          .layout = layout_first_blocked,
          .prepare_cpu = prepare_probability,
          .prepare_cuda = prepare_probability_cuda};
}

}  // namespace

Value label_weight_sum(Value target, int64_t classes, int64_t ignore, Value class_weight) {
  std::vector<Value> inputs{target};
  if (class_weight) inputs.push_back(class_weight);
  return target.graph->append("label_weight_sum", std::move(inputs), {{"classes", classes}, {"ignore", ignore}});
}

Value softmax_cross_entropy(Value logits, Value target, Value normalizer, int64_t ignore, Value class_weight) {
  std::vector<Value> inputs{logits, target, normalizer};
  if (class_weight) inputs.push_back(class_weight);
  return logits.graph->append("softmax_ce", std::move(inputs), {{"ignore", ignore}});
}

Value focal_cross_entropy(Value logits, Value target, Value normalizer, const FocalOptions& options, int64_t ignore,
                          Value class_weight) {
  CONVOY_CHECK(options.gamma >= 0, "the focal loss takes gamma >= 0, it is {}", options.gamma);
  std::vector<Value> inputs{logits, target, normalizer};
  if (class_weight) inputs.push_back(class_weight);
  return logits.graph->append("focal_ce", std::move(inputs),
                              {{"ignore", ignore}, {"alpha", options.alpha}, {"gamma", options.gamma}});
}

Value label_probability(Value logits, Value target, int64_t ignore) {
  return logits.graph->append("label_probability", {logits, target}, {{"ignore", ignore}});
}

std::vector<OpDef> loss_ops() {
  return {
      {.name = "label_weight_sum",
       .infer = infer_weight_sum,
       .prepare_cpu = prepare_weight_sum,
       .prepare_cuda = prepare_weight_sum_cuda},
      cross_entropy_op("softmax_ce"),
      cross_entropy_op("upsample_softmax_ce"),
      cross_entropy_op("focal_ce"),
      cross_entropy_op("upsample_focal_ce"),
      probability_op("label_probability"),
      probability_op("upsample_label_probability"),
  };
}

}  // namespace convoy
