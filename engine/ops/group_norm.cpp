// Normalisations that look at one image alone: group norm, and SSD's L2 norm across channels.
#include "kernels/group_norm.h"

#include "engine/ops.h"
#include "engine/ops/common.h"
#include "engine/ops/registry.h"

namespace convoy {

namespace {

std::vector<TensorInfo> infer_group_norm(const Node& node) {
  const Shape& x = require_image(node, 0);
  const int64_t groups = node.attrs.integer("groups");
  CONVOY_CHECK(groups > 0 && x[1] % groups == 0, "{} channels cannot be split into {} groups", x[1], groups);
  require_shape(node, 1, {x[1]});
  require_shape(node, 2, {x[1]});
  return {info_of(node.inputs[0]), {DType::kF32, {x[0], groups}}, {DType::kF32, {x[0], groups}}};
}
// Inputs (dy, x, mean, rstd, weight); outputs dx, dweight, dbias.
std::vector<TensorInfo> infer_group_norm_backward(const Node& node) {
  return {info_of(node.inputs[0]), info_of(node.inputs[4]), info_of(node.inputs[4])};
}

void grad_group_norm(GradContext& g) {
  const Value dx = g.graph.append("group_norm_backward",
                                  {g.d_output(), g.input(0), g.output(1), g.output(2), g.input(1)}, g.node().attrs);
  if (g.needs(0)) g.set(0, dx);
  if (g.needs(1)) g.set(1, {&g.graph, dx.node, 1});
  if (g.needs(2)) g.set(2, {&g.graph, dx.node, 2});
}

std::vector<TensorInfo> infer_l2_norm(const Node& node) {
  require_shape(node, 1, {require_image(node, 0)[1]});
  return {info_of(node.inputs[0])};
}
// Inputs (dy, x, weight); outputs dx, dweight.
std::vector<TensorInfo> infer_l2_norm_backward(const Node& node) {
  return {info_of(node.inputs[0]), info_of(node.inputs[2])};
}

void grad_l2_norm(GradContext& g) {
  const Value dx = g.graph.append("l2_norm_backward", {g.d_output(), g.input(0), g.input(1)}, g.node().attrs);
  if (g.needs(0)) g.set(0, dx);
  if (g.needs(1)) g.set(1, {&g.graph, dx.node, 1});
}

double norm_flops(const Node& n) {
  return 8.0 * static_cast<double>(n.inputs[0].shape().count());
}

// The same calls, with the workspace of the device.
Kernel with_workspace(Kernel kernel, size_t bytes, std::string implementation) {
  kernel.workspace_bytes = bytes;
  kernel.implementation = std::move(implementation);
  return kernel;
}

float eps_of(const PrepareArgs& args) {
  return static_cast<float>(args.node.attrs.real("eps"));
}

Kernel prepare_group_norm(const PrepareArgs& args) {
  const int64_t groups = args.node.attrs.integer("groups");
  return {.run =
              [groups, eps = eps_of(args)](const KernelArgs& a) {
                CONVOY_KERNEL(a, group_norm, a.in[0], a.in[1].f32(), a.in[2].f32(), groups, eps, a.out[0],
                              a.out[1].f32(), a.out[2].f32(), static_cast<double*>(a.workspace));
              },
          .workspace_bytes = static_cast<size_t>(group_norm_workspace(args.in[0], groups)) * sizeof(double),
          .implementation = "two-pass"};
}
Kernel prepare_group_norm_backward(const PrepareArgs& args) {
  const int64_t groups = args.node.attrs.integer("groups");
  return {.run =
              [=](const KernelArgs& a) {
                CONVOY_KERNEL(a, group_norm_backward, a.in[0], a.in[1], a.in[2].f32(), a.in[3].f32(), a.in[4].f32(),
                              groups, a.out[0], a.out[1].f32(), a.out[2].f32(), static_cast<double*>(a.workspace));
              },
          .workspace_bytes = static_cast<size_t>(group_norm_workspace(args.in[1], groups)) * sizeof(double),
          .implementation = "chunked sums"};
}
Kernel prepare_l2_norm(const PrepareArgs& args) {
  return {.run = [eps = eps_of(args)](
                     const KernelArgs& a) { CONVOY_KERNEL(a, l2_norm, a.in[0], a.in[1].f32(), eps, a.out[0]); },
          .implementation = "pixels"};
}
Kernel prepare_l2_norm_backward(const PrepareArgs& args) {
  return {.run =
              [eps = eps_of(args)](const KernelArgs& a) {
                CONVOY_KERNEL(a, l2_norm_backward, a.in[0], a.in[1], a.in[2].f32(), eps, a.out[0], a.out[1].f32(),
                              static_cast<float*>(a.workspace));
              },
          .workspace_bytes = static_cast<size_t>(l2_norm_workspace(args.in[1])) * sizeof(float),
          .implementation = "pixels"};
}
Kernel prepare_group_norm_cuda(const PrepareArgs& args) {
  const int64_t groups = args.node.attrs.integer("groups");
  return with_workspace(prepare_group_norm(args), emulated::group_norm_cuda_workspace_bytes(args.in[0], groups),
                        "merged moments");
}
Kernel prepare_group_norm_backward_cuda(const PrepareArgs& args) {
  const int64_t groups = args.node.attrs.integer("groups");
  return with_workspace(prepare_group_norm_backward(args),
                        emulated::group_norm_cuda_workspace_bytes(args.in[1], groups), "two-stage");
}
Kernel prepare_l2_norm_backward_cuda(const PrepareArgs& args) {
  return with_workspace(prepare_l2_norm_backward(args), emulated::l2_norm_cuda_workspace_bytes(args.in[1]),
                        "pixels, two-stage");
}

}  // namespace

Value group_norm(Value x, Value weight, Value bias, int64_t groups, double eps) {
  return x.graph->append("group_norm", {x, weight, bias}, {{"groups", groups}, {"eps", eps}});
}
Value l2_norm(Value x, Value weight, double eps) {
  return x.graph->append("l2_norm", {x, weight}, {{"eps", eps}});
}

std::vector<OpDef> group_norm_ops() {
  return {
      {.name = "group_norm",
       .infer = infer_group_norm,
       .grad = grad_group_norm,
       .flops = norm_flops,
       .prepare_cpu = prepare_group_norm,
       .prepare_cuda = prepare_group_norm_cuda,
       .in_place = {0}},
      {.name = "group_norm_backward",
       .infer = infer_group_norm_backward,
       .flops = norm_flops,
       .prepare_cpu = prepare_group_norm_backward,
       .prepare_cuda = prepare_group_norm_backward_cuda,
       .in_place = {0}},
      {.name = "l2_norm",
       .infer = infer_l2_norm,
       .grad = grad_l2_norm,
       .flops = norm_flops,
       .prepare_cpu = prepare_l2_norm,
       .prepare_cuda = prepare_l2_norm,
       .in_place = {0}},
      {.name = "l2_norm_backward",
       .infer = infer_l2_norm_backward,
       .flops = norm_flops,
       .prepare_cpu = prepare_l2_norm_backward,
       .prepare_cuda = prepare_l2_norm_backward_cuda},
  };
}

}  // namespace convoy
