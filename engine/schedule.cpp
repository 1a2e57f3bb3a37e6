#include "engine/schedule.h"

#include <algorithm>

#include "engine/op.h"
#include "engine/rng.h"

namespace convoy {

namespace {

uint64_t hash_text(std::string_view text, uint64_t h) {
  return fnv1a(text, h ^ 0x9E3779B97F4A7C15ull);
}

uint64_t structural_hash(const Graph& graph, const Schedule& schedule) {
  const GlobalBatch& batch = graph.global_batch();
  uint64_t h = mix(static_cast<uint64_t>(batch.images), static_cast<uint64_t>(batch.statistics));
  std::vector<int64_t> position(graph.size(), -1);
  const auto add_value = [&](Value v) {
    h = mix(h, static_cast<uint64_t>(position[static_cast<size_t>(v.node)] * 8 + v.output));
  };
  for (size_t i = 0; i < schedule.nodes.size(); ++i) {
    const NodeId id = schedule.nodes[i];
    const Node& node = graph.node(id);
    position[static_cast<size_t>(id)] = static_cast<int64_t>(i);
    h = hash_text(node.op->name, h);
    h = hash_text(node.attrs.str(), h);
    h = mix(h, static_cast<uint64_t>(node.slot + 1));
    h = mix(h, schedule.runs[i]);
    if (node.op->name == "input") h = hash_text(node.name, h);
    for (const TensorInfo& o : node.outputs) h = hash_text(o.shape.str(), mix(h, static_cast<uint64_t>(o.dtype)));
    for (size_t o = 0; o < node.computed.size(); ++o) h = mix(h, node.computed[o].defined());
    for (const Value& v : node.inputs)
      if (position[static_cast<size_t>(v.node)] >= 0) add_value(v);
  }
  for (const Value& v : schedule.targets) add_value(v);
  return h;
}

}  // namespace

bool is_leaf(const Graph& graph, Value v) {
  const Node& node = graph.node(v.node);
  if (node.inputs.empty() && !node.op->prepare_cpu) return true;
  return !node.computed.empty() && node.computed[static_cast<size_t>(v.output)].defined();
}

Schedule make_schedule(const Graph& graph, std::vector<Value> targets, bool with_effects) {
  std::vector<bool> wanted(graph.size(), false), runs(graph.size(), false);
  std::vector<NodeId> stack;
  // A computed value is wanted but its node does not run, so its inputs are not followed.
  const auto need = [&](Value v) {
    const auto id = static_cast<size_t>(v.node);
    wanted[id] = true;
    if (is_leaf(graph, v) || runs[id]) return;
    runs[id] = true;
    stack.push_back(v.node);
  };
  const auto follow = [&] {
    while (!stack.empty()) {
      const NodeId id = stack.back();
      stack.pop_back();
      for (const Value& v : graph.node(id).inputs) need(v);
    }
  };
  for (const Value& v : targets)
    if (!graph.node(v.node).effect_done) need(v);
  follow();
  if (with_effects) {
    for (NodeId id = 0; id < static_cast<NodeId>(graph.size()); ++id) {
      const Node& node = graph.node(id);
      if (!node.op->effect || node.effect_done || runs[static_cast<size_t>(id)] || node.inputs.empty()) continue;
      // What an effect reads may have come through an exchange that nobody else needs.
      const auto at_hand = [&](Value v) { return runs[static_cast<size_t>(v.node)] || is_leaf(graph, v); };
      const auto through_exchange = [&](Value v) {
        const Node& producer = graph.node(v.node);
        return producer.op->collective && std::all_of(producer.inputs.begin(), producer.inputs.end(), at_hand);
      };
      const bool ready = std::all_of(node.inputs.begin(), node.inputs.end(),
                                     [&](Value v) { return at_hand(v) || through_exchange(v); });
      const bool computed_here = std::any_of(node.inputs.begin(), node.inputs.end(), [&](Value v) {
        return runs[static_cast<size_t>(v.node)] || (!is_leaf(graph, v) && through_exchange(v));
      });
      if (ready && computed_here) {
        need({const_cast<Graph*>(&graph), id, 0});
        follow();
      }
    }
  }
  Schedule schedule;
  schedule.targets = std::move(targets);
  for (NodeId id = 0; id < static_cast<NodeId>(graph.size()); ++id)
    if (wanted[static_cast<size_t>(id)]) {
      schedule.nodes.push_back(id);
      schedule.runs.push_back(runs[static_cast<size_t>(id)]);
    }
  schedule.hash = structural_hash(graph, schedule);
  return schedule;
}

}  // namespace convoy
