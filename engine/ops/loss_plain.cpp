// Losses of vectors (class presence, box offsets), counts of labels, and the focal loss of a mean.
#include <cmath>

#include "engine/ops/loss_common.h"
#include "engine/ops/registry.h"
#include "kernels/plain_losses.h"

namespace convoy {

namespace {

// Inputs (x, target).
std::vector<TensorInfo> infer_pair_loss(const Node& node) {
  require_shape(node, 0, node.inputs[0].shape());
  require_shape(node, 1, node.inputs[0].shape());
  return {{DType::kF32, {}}, info_of(node.inputs[0])};
}

Kernel prepare_bce(const PrepareArgs& args) {
  const int64_t count = args.node.inputs[0].shape().count();
  const double scale = args.node.attrs.real("scale");
  return {.run =
              [=](const KernelArgs& a) {
                CONVOY_CPU(bce_with_logits, a.in[0].f32(), a.in[1].f32(), count, scale, a.out[0].f32(), a.out[1].f32());
              },
          .implementation = "serial"};
}

Kernel prepare_bce_cuda(const PrepareArgs& args) {
  const int64_t count = args.node.inputs[0].shape().count();
  const double scale = args.node.attrs.real("scale");
  return {.run =
              [=](const KernelArgs& a) {
                CONVOY_CUDA(a, bce_with_logits, a.in[0].f32(), a.in[1].f32(), count, scale, a.out[0].f32(),
                            a.out[1].f32(), static_cast<double*>(a.workspace));
              },
          .workspace_bytes = static_cast<size_t>(plain_loss_parts(count)) * sizeof(double),
          .implementation = "parts"};
}

Kernel prepare_smooth_l1(const PrepareArgs& args) {
  const int64_t count = args.node.inputs[0].shape().count();
  const double beta = args.node.attrs.real("beta"), scale = args.node.attrs.real("scale");
  return {.run =
              [=](const KernelArgs& a) {
                CONVOY_CPU(smooth_l1, a.in[0].f32(), a.in[1].f32(), count, beta, scale, a.out[0].f32(), a.out[1].f32());
              },
          .implementation = "serial"};
}

Kernel prepare_smooth_l1_cuda(const PrepareArgs& args) {
  const int64_t count = args.node.inputs[0].shape().count();
  const double beta = args.node.attrs.real("beta"), scale = args.node.attrs.real("scale");
  return {.run =
              [=](const KernelArgs& a) {
                CONVOY_CUDA(a, smooth_l1, a.in[0].f32(), a.in[1].f32(), count, beta, scale, a.out[0].f32(),
                            a.out[1].f32(), static_cast<double*>(a.workspace));
              },
          .workspace_bytes = static_cast<size_t>(plain_loss_parts(count)) * sizeof(double),
          .implementation = "parts"};
}

std::vector<TensorInfo> infer_counts(const Node& node) {
  const Shape& t = node.inputs[0].shape();
  CONVOY_CHECK(t.rank() == 3 && node.inputs[0].dtype() == DType::kI32, "labels must be i32 (N,H,W), they are {} {}",
               dtype_name(node.inputs[0].dtype()), t.str());
  const int64_t classes = node.attrs.integer("classes");
  if (node.op->name == "label_counts") return {{DType::kF32, {classes}}};
  return {{DType::kF32, {t[0], classes}}};
}

Kernel prepare_counts(const PrepareArgs& args) {
  const int64_t count = args.node.inputs[0].shape().count(), classes = args.node.attrs.integer("classes");
  return {
      .run = [=](const KernelArgs& a) { CONVOY_CPU(label_counts, a.in[0].i32(), 1, count, classes, a.out[0].f32()); },
      .implementation = "count"};
}

Kernel prepare_presence(const PrepareArgs& args) {
  const Shape t = args.node.inputs[0].shape();
  const int64_t classes = args.node.attrs.integer("classes");
  return {.run =
              [=](const KernelArgs& a) {
                CONVOY_CPU(label_counts, a.in[0].i32(), t[0], t[1] * t[2], classes, a.out[0].f32());
                for (int64_t i = 0; i < t[0] * classes; ++i) a.out[0].f32()[i] = a.out[0].f32()[i] > 0 ? 1.0f : 0.0f;
              },
          .implementation = "count"};
}

// Counts of the labels of all images, or presence per image.
Kernel prepare_counts_cuda(const PrepareArgs& args) {
  const Shape t = args.node.inputs[0].shape();
  const int64_t classes = args.node.attrs.integer("classes");
  const bool presence = args.node.op->name == "class_presence";
  const int64_t rows = presence ? t[0] : 1, count = t.count() / rows;
  return {.run =
              [=](const KernelArgs& a) {
                if (presence)
                  CONVOY_CUDA(a, class_presence, a.in[0].i32(), rows, count, classes, a.out[0].f32(), a.workspace);
                else
                  CONVOY_CUDA(a, label_counts, a.in[0].i32(), rows, count, classes, a.out[0].f32(), a.workspace);
              },
          .workspace_bytes = label_counts_cuda_workspace_bytes(rows, classes),
          .implementation = "count"};
}

// Inputs (part, total): a lane's part of a mean cross entropy and that mean. Outputs (loss, slope).
std::vector<TensorInfo> infer_focal_of_mean(const Node& node) {
  require_shape(node, 0, {});
  require_shape(node, 1, {});
  return {{DType::kF32, {}}, {DType::kF32, {}}};
}

void grad_focal_of_mean(GradContext& g) {
  if (g.needs(0)) g.set(0, mul(g.d_output(), g.output(1)));
}

Kernel prepare_focal_of_mean(const PrepareArgs& args) {
  const double alpha = args.node.attrs.real("alpha"), gamma = args.node.attrs.real("gamma");
  return {.run =
              [=](const KernelArgs& a) {
                const auto part = static_cast<double>(*a.in[0].f32()), mean = static_cast<double>(*a.in[1].f32());
                const double p = std::exp(-mean), q = -std::expm1(-mean);
                const double power = std::pow(q, gamma);
                *a.out[0].f32() = static_cast<float>(alpha * power * part);
                const double bent = q > 0 ? gamma * power / q * p * mean : 0;
                *a.out[1].f32() = static_cast<float>(alpha * (power + bent));
              },
          .implementation = "scalar"};
}

Kernel prepare_focal_of_mean_cuda(const PrepareArgs& args) {
  const double alpha = args.node.attrs.real("alpha"), gamma = args.node.attrs.real("gamma");
  return {.run =
              [=](const KernelArgs& a) {
                CONVOY_CUDA(a, focal_of_mean, a.in[0].f32(), a.in[1].f32(), alpha, gamma, a.out[0].f32(),
                            a.out[1].f32());
              },
          .implementation = "scalar"};
}

}  // namespace

Value bce_with_logits(Value x, Value target, double scale) {
  return x.graph->append("bce_with_logits", {x, target}, {{"scale", scale}});
}

Value smooth_l1(Value x, Value target, double beta, double scale) {
  CONVOY_CHECK(beta > 0, "smooth L1 takes beta > 0, it is {}", beta);
  return x.graph->append("smooth_l1", {x, target}, {{"beta", beta}, {"scale", scale}});
}

Value label_counts(Value target, int64_t classes) {
  return target.graph->append("label_counts", {target}, {{"classes", classes}});
}

Value class_presence(Value target, int64_t classes) {
  return target.graph->append("class_presence", {target}, {{"classes", classes}});
}

Value focal_of_mean(Value part, Value mean, const FocalOptions& options) {
  return part.graph->append("focal_of_mean", {part, mean}, {{"alpha", options.alpha}, {"gamma", options.gamma}});
}

std::vector<OpDef> loss_plain_ops() {
  return {
      {.name = "bce_with_logits",
       .infer = infer_pair_loss,
       .grad = grad_by_unit,
       .layout = layout_plain,
       .prepare_cpu = prepare_bce,
       .prepare_cuda = prepare_bce_cuda,
       .takes_slices = false,
       .optional_outputs = true},
      {.name = "smooth_l1",
       .infer = infer_pair_loss,
       .grad = grad_by_unit,
       .layout = layout_plain,
       .prepare_cpu = prepare_smooth_l1,
       .prepare_cuda = prepare_smooth_l1_cuda,
       .takes_slices = false,
       .optional_outputs = true},
      {.name = "label_counts",
       .infer = infer_counts,
       .prepare_cpu = prepare_counts,
       .prepare_cuda = prepare_counts_cuda},
      {.name = "class_presence",
       .infer = infer_counts,
       .prepare_cpu = prepare_presence,
       .prepare_cuda = prepare_counts_cuda},
      {.name = "focal_of_mean",
       .infer = infer_focal_of_mean,
       .grad = grad_focal_of_mean,
       .prepare_cpu = prepare_focal_of_mean,
       .prepare_cuda = prepare_focal_of_mean_cuda},
  };
}

}  // namespace convoy
