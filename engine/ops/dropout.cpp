// Dropout. Its gradient is the same operator on the gradient, with the same key.
#include "kernels/dropout.h"

#include "engine/ops.h"
#include "engine/ops/common.h"
#include "engine/ops/registry.h"
#include "engine/rng.h"

namespace convoy {

namespace {

std::vector<TensorInfo> infer_dropout(const Node& node) {
  require_shape(node, 0, node.inputs[0].shape());
  return {info_of(node.inputs[0])};
}

void grad_dropout(GradContext& g) {
  g.set(0, g.graph.append("dropout", {g.d_output()}, g.node().attrs));
}

Kernel prepare_dropout(const PrepareArgs& args) {
  const auto p = static_cast<float>(args.node.attrs.real("p"));
  const bool whole_channels = args.node.attrs.flag("whole_channels");
  const auto key = static_cast<uint64_t>(args.node.attrs.integer("key"));
  return {.run =
              [=](const KernelArgs& a) {
                CONVOY_KERNEL(a, dropout, a.in[0], p, mix(a.step.seed, key), static_cast<uint64_t>(a.step.global_step),
                              a.step.first_slot, whole_channels, a.out[0]);
              },
          .implementation = "philox"};
}

}  // namespace

Value dropout(Value x, double p, bool whole_channels) {
  CONVOY_CHECK(p >= 0 && p <= 1, "{}: a dropout probability lies between 0 and 1, not {}", x.graph->scope(), p);
  Graph& graph = *x.graph;
  const uint64_t key = mix(fnv1a(graph.scope()), static_cast<uint64_t>(graph.next_call_index()));
  return graph.append(
      "dropout", {x},
      {{"p", p}, {"whole_channels", static_cast<int64_t>(whole_channels)}, {"key", static_cast<int64_t>(key)}});
}

std::vector<OpDef> dropout_ops() {
  return {{.name = "dropout",
           .infer = infer_dropout,
           .grad = grad_dropout,
           .prepare_cpu = prepare_dropout,
           .prepare_cuda = prepare_dropout,
           .in_place = {0}}};
}

}  // namespace convoy
