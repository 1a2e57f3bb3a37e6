// Leaves (values that plans find instead of computing) and the store of finished gradients.
#include <cstring>

#include "engine/ops/registry.h"
#include "kernels/device_runtime.h"
#include "kernels/elementwise.h"

namespace convoy {

namespace {

std::vector<TensorInfo> infer_leaf(const Node& node) {
  return node.outputs;
}

std::vector<TensorInfo> infer_nothing(const Node&) {
  return {};
}

/// The engine binds output 0 to the slot, where most gradients have been produced already. The first lane stores, later
/// ones add.
Kernel prepare_store(const PrepareArgs& args) {
  const size_t bytes = dense_bytes(args.in[0]);
  return {.run =
              [bytes](const KernelArgs& a) {
                if (a.out[0].data == a.in[0].data) return;
                if (a.step.lane == 0) {
                  std::memcpy(a.out[0].data, a.in[0].data, bytes);
                } else {
                  float* sum = a.out[0].f32();
                  const float* part = a.in[0].f32();
                  for (size_t i = 0; i < bytes / sizeof(float); ++i) sum[i] += part[i];
                }
              },
          .implementation = "view"};
}

Kernel prepare_store_cuda(const PrepareArgs& args) {
  const size_t bytes = dense_bytes(args.in[0]);
  return {.run =
              [bytes](const KernelArgs& a) {
                if (a.out[0].data == a.in[0].data) return;
                if (a.step.lane == 0)
                  CONVOY_CUDA(a, copy_bytes, a.in[0].data, a.out[0].data, bytes);
                else
                  CONVOY_CUDA(a, accumulate, a.in[0], a.out[0]);
              },
          .implementation = "view"};
}

}  // namespace

std::vector<OpDef> leaf_ops() {
  std::vector<OpDef> ops;
  for (const char* name : {"input", "constant", "parameter", "buffer"})
    ops.push_back({.name = name, .infer = infer_leaf});
  ops.push_back({.name = "store_gradient",
                 .infer = infer_nothing,
                 .layout = layout_plain,
                 .prepare_cpu = prepare_store,
                 .prepare_cuda = prepare_store_cuda,
                 .takes_slices = false,
                 .effect = true});
  return ops;
}

}  // namespace convoy
