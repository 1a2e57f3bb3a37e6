#include "layers/losses.h"

namespace convoy {

Value mixed_softmax_cross_entropy(const std::vector<NamedValue>& outputs, Value target, const LossOptions& options) {
  CONVOY_CHECK(!outputs.empty(), "the network has no outputs");
  Graph& graph = *target.graph;
  const Graph::Scope scope(graph, "loss");
  const Value labelled = sum_over_lanes({label_weight_sum(target, outputs[0].value.shape()[1], options.ignore)})[0];
  Value loss;
  for (const NamedValue& output : outputs) {
    const Graph::Scope output_scope(graph, "loss." + output.name);
    Value part = softmax_cross_entropy(output.value, target, labelled, options.ignore);
    if (loss && options.aux) part = scale(part, options.aux_weight);
    loss = loss ? add(loss, part) : part;
  }
  return loss;
}

}  // namespace convoy
