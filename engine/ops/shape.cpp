// Values seen under another shape. The plan gives both the same memory where nobody else reads the first one.
#include <cstring>

#include "engine/ops.h"
#include "engine/ops/common.h"
#include "engine/ops/registry.h"
#include "kernels/device_runtime.h"

namespace convoy {

namespace {

Attrs to_attrs(const Shape& shape) {
  Attrs attrs{{"rank", static_cast<int64_t>(shape.rank())}};
  for (int i = 0; i < shape.rank(); ++i) attrs.set("d" + std::to_string(i), shape[i]);
  return attrs;
}

Shape shape_in(const Attrs& attrs) {
  std::vector<int64_t> extents;
  for (int64_t i = 0; i < attrs.integer("rank"); ++i) extents.push_back(attrs.integer("d" + std::to_string(i)));
  return Shape(extents);
}

std::vector<TensorInfo> infer_reshape(const Node& node) {
  const Shape &from = node.inputs[0].shape(), to = shape_in(node.attrs);
  CONVOY_CHECK(from.count() == to.count(), "{} has {} elements, {} would have {}", from.str(), from.count(), to.str(),
               to.count());
  for (int i = 0; i < to.rank(); ++i) CONVOY_CHECK(to[i] >= 0, "a shape {} has a negative extent", to.str());
  return {{node.inputs[0].dtype(), to}};
}

void grad_reshape(GradContext& g) {
  g.set(0, reshape(g.d_output(), g.input(0).shape()));
}

Kernel prepare_reshape(const PrepareArgs& args) {
  const size_t bytes = dense_bytes(args.out[0]);
  return {.run =
              [=](const KernelArgs& a) {
                if (a.in[0].data != a.out[0].data) std::memcpy(a.out[0].data, a.in[0].data, bytes);
              },
          .implementation = "view or copy"};
}

Kernel prepare_reshape_cuda(const PrepareArgs& args) {
  const size_t bytes = dense_bytes(args.out[0]);
  return {.run =
              [=](const KernelArgs& a) {
                if (a.in[0].data != a.out[0].data) CONVOY_CUDA(a, copy_bytes, a.in[0].data, a.out[0].data, bytes);
              },
          .implementation = "view or copy"};
}

double no_flops(const Node&) {
  return 0;
}

}  // namespace

Value reshape(Value x, const Shape& shape) {
  return x.shape() == shape ? x : x.graph->append("reshape", {x}, to_attrs(shape));
}

Value flatten(Value x) {
  const Shape& s = x.shape();
  CONVOY_CHECK(s.rank() > 0 && s[0] > 0, "a value {} has no images to be kept apart", s.str());
  return reshape(x, {s[0], s.count() / s[0]});
}

Value as_image(Value x) {
  const Shape& s = x.shape();
  CONVOY_CHECK(s.rank() >= 2 && s.rank() <= 4, "{} is none of (N,C), (N,C,L), (N,C,H,W)", s.str());
  if (s.rank() == 4) return x;
  return reshape(x, {s[0], s[1], 1, s.rank() == 3 ? s[2] : 1});
}

std::vector<OpDef> shape_ops() {
  return {{.name = "reshape",
           .infer = infer_reshape,
           .grad = grad_reshape,
           .flops = no_flops,
           .layout = layout_plain,
           .prepare_cpu = prepare_reshape,
           .prepare_cuda = prepare_reshape_cuda,
           .in_place = {0},
           .takes_slices = false}};
}

}  // namespace convoy
