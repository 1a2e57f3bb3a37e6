// Softmax cross entropy, alone and fused with the bilinear resize in front of it. The forward kernel yields the
// gradient of the logits as well: the probabilities are at hand, and nothing of full size has to be kept.
#include "engine/ops.h"
#include "engine/ops/common.h"
#include "engine/ops/registry.h"
#include "kernels/softmax_ce.h"

namespace convoy {

namespace {

// Inputs of the losses.
enum { kLogits, kTarget, kNormalizer, kClassWeight };

std::vector<TensorInfo> infer_weight_sum(const Node& node) {
  CONVOY_CHECK(node.inputs[0].dtype() == DType::kI32, "labels must be i32, they are {}",
               dtype_name(node.inputs[0].dtype()));
  if (node.inputs.size() > 1) require_shape(node, 1, {node.attrs.integer("classes")});
  return {{DType::kF32, {}}};
}

std::vector<TensorInfo> infer_ce(const Node& node) {
  const Shape& x = require_image(node, kLogits);
  const Shape& t = node.inputs[kTarget].shape();
  CONVOY_CHECK(t.rank() == 3 && t[0] == x[0] && node.inputs[kTarget].dtype() == DType::kI32,
               "the target must be i32 labels (N,H,W) for logits {}, it is {} {}", x.str(),
               dtype_name(node.inputs[kTarget].dtype()), t.str());
  CONVOY_CHECK(node.op->name == "upsample_softmax_ce" || (t[1] == x[2] && t[2] == x[3]),
               "logits {} and labels {} differ in size", x.str(), t.str());
  CONVOY_CHECK(node.inputs[kNormalizer].shape().count() == 1, "the normaliser must be a scalar");
  if (node.inputs.size() > kClassWeight) require_shape(node, kClassWeight, {x[1]});
  return {{DType::kF32, {}}, info_of(node.inputs[kLogits])};
}

void grad_ce(GradContext& g) {
  const Value d_loss = g.d_output(), unit = g.output(1);
  const Node& upstream = g.graph.node(d_loss.node);
  const bool is_one = upstream.op->name == "constant" && upstream.computed[0].item() == 1.0f;
  g.set(kLogits, is_one ? unit : scale_by(unit, d_loss));
}

double ce_flops(const Node& n) {
  return 20.0 * static_cast<double>(n.inputs[kTarget].shape().count()) *
         static_cast<double>(n.inputs[kLogits].shape()[1]);
}

void layout_ce(LayoutChoice& c) {
  for (Layout& l : c.in) l = Layout::kNchw;
  c.in[kLogits] = Layout::kBlocked;
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

Kernel prepare_ce(const PrepareArgs& args) {
  const Shape t = args.node.inputs[kTarget].shape();
  const auto ignore = static_cast<int32_t>(args.node.attrs.integer("ignore"));
  const bool fused = args.node.op->name == "upsample_softmax_ce";
  const bool align = !fused || args.node.attrs.flag("align_corners");
  const bool weighted = args.in.size() > kClassWeight;
  return {.run =
              [=](const KernelArgs& a) {
                const View& logits = a.in[kLogits];
                const int32_t* target = a.in[kTarget].i32();
                int64_t bad = -1;
                CONVOY_CPU(upsample_softmax_ce, logits, target, t[1], t[2], align, ignore,
                           weighted ? a.in[kClassWeight].f32() : nullptr, a.in[kNormalizer].f32(), a.out[0].f32(),
                           a.out[1], &bad, static_cast<float*>(a.workspace));
                CONVOY_CHECK(
                    bad < 0,
                    "label {} of image {} at row {}, column {} is not a class (0..{}) and not the ignore label {}",
                    target[bad], bad / (t[1] * t[2]), bad / t[2] % t[1], bad % t[2], logits.c - 1, ignore);
              },
          .workspace_bytes = softmax_ce_workspace_bytes(args.in[kLogits]),
          .implementation = fused ? "fused with resize" : "row bands"};
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

std::vector<OpDef> loss_ops() {
  return {
      {.name = "label_weight_sum", .infer = infer_weight_sum, .prepare_cpu = prepare_weight_sum},
      {.name = "softmax_ce",
       .infer = infer_ce,
       .grad = grad_ce,
       .flops = ce_flops,
       .layout = layout_ce,
       .prepare_cpu = prepare_ce,
       .optional_outputs = true},
      {.name = "upsample_softmax_ce",
       .infer = infer_ce,
       .grad = grad_ce,
       .flops = ce_flops,
       .layout = layout_ce,
       .prepare_cpu = prepare_ce,
       .optional_outputs = true},
  };
}

}  // namespace convoy
