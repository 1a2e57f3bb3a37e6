// Reverse-mode differentiation, source to source: each operator's rule appends the nodes of its backward pass.
#include <map>
#include <set>

#include "engine/context.h"
#include "engine/op.h"
#include "engine/ops.h"
#include "engine/param_store.h"
#include "engine/schedule.h"

namespace convoy {

namespace {

/// Gradients that have arrived at each value so far, summed in order of arrival.
class GradientSums {
 public:
  void arrive(Value at, Value gradient) {
    Value& sum = sums_[at];
    sum = sum ? add(sum, gradient) : gradient;
  }
  Value of(Value at) const {
    const auto it = sums_.find(at);
    return it == sums_.end() ? Value{} : it->second;
  }

 private:
  std::map<Value, Value> sums_;
};

/// Nodes that lead to v, ascending. Values that evaluate() has made constants are followed too: they are known, but
/// still depend on the parameters.
std::vector<NodeId> ancestors(const Graph& graph, Value v) {
  std::set<NodeId> found{v.node};
  for (auto it = found.rbegin(); it != found.rend(); ++it)
    for (const Value& input : graph.node(*it).inputs) found.insert(input.node);
  return {found.begin(), found.end()};
}

}  // namespace

std::vector<Value> Graph::differentiate(Value loss, std::span<const Value> also) {
  CONVOY_CHECK(loss.shape().count() == 1, "only a scalar can be differentiated, this value has shape {}",
               loss.shape().str());
  fuse(*this, make_schedule(*this, {loss}, false));
  const std::vector<NodeId> nodes = ancestors(*this, loss);

  const std::set<Value> wanted(also.begin(), also.end());
  std::set<Value> needed;  // values that lead from a parameter, or from a wanted value, to the loss
  for (const NodeId id : nodes) {
    const Node& n = node(id);
    bool reaches = n.op->name == "parameter";
    for (const Value& v : n.inputs) reaches |= needed.contains(v);
    for (int32_t o = 0; o < static_cast<int32_t>(n.outputs.size()); ++o)
      if (reaches || wanted.contains({this, id, o})) needed.insert({this, id, o});
  }

  GradientSums sums;
  const std::string outer_scope = scope_;
  scope_ = node(loss.node).name;
  sums.arrive(loss, constant(1.0f));
  for (auto it = nodes.rbegin(); it != nodes.rend(); ++it) {
    const NodeId id = *it;
    if (!needed.contains({this, id, 0})) continue;
    if (node(id).op->name == "parameter") {
      if (const Value gradient = sums.of({this, id, 0})) {
        scope_ = node(id).name;
        const int64_t slot = node(id).slot;
        for (const Value& earlier : gradient_effects_)
          CONVOY_CHECK(node(earlier.node).attrs.integer("slot") != slot,
                       "parameter '{}' has a gradient in this graph already: add the losses, then differentiate once",
                       node(id).name);
        parameters_.parameters()[static_cast<size_t>(slot)].has_gradient = true;
        // Exact sums are formed here; others by the plan, which exchanges whole buckets of stored gradients.
        const bool exact = global_batch_.shared() && context_.options().exact_ranks;
        gradient_effects_.push_back(
            append("store_gradient", {exact ? sum_over_lanes({gradient})[0] : gradient}, Attrs{{"slot", slot}}));
      }
      continue;
    }
    if (node(id).inputs.empty()) continue;
    std::vector<Value> d_outputs;
    bool any = false;
    for (int32_t o = 0; o < static_cast<int32_t>(node(id).outputs.size()); ++o) {
      d_outputs.push_back(sums.of({this, id, o}));
      any |= static_cast<bool>(d_outputs.back());
    }
    if (!any) continue;
    const size_t inputs = node(id).inputs.size();
    const auto input_needed = std::make_unique<bool[]>(inputs);
    for (size_t i = 0; i < inputs; ++i) input_needed[i] = needed.contains(node(id).inputs[i]);
    CONVOY_CHECK(node(id).op->grad, "{}: operator '{}' has no gradient", node(id).name, node(id).op->name);
    scope_ = node(id).name;
    std::vector<Value> d_inputs(inputs);
    GradContext context(*this, id, d_outputs, {input_needed.get(), inputs}, d_inputs);
    node(id).op->grad(context);
    for (size_t i = 0; i < inputs; ++i)
      if (d_inputs[i] && input_needed[i]) sums.arrive(node(id).inputs[i], d_inputs[i]);
  }
  scope_ = outer_scope;
  std::vector<Value> result;
  for (const Value& v : also) result.push_back(sums.of(v));
  return result;
}

}  // namespace convoy
