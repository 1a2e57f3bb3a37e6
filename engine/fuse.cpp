#include <map>

#include "engine/op.h"
#include "engine/schedule.h"
#include "kernels/activation.h"

namespace convoy {

namespace {

class Fuser {
 public:
  Fuser(Graph& graph, const Schedule& schedule) : graph_(graph) {
    for (size_t i = 0; i < schedule.nodes.size(); ++i)
      if (schedule.runs[i])
        for (const Value& v : graph.node(schedule.nodes[i]).inputs) ++readers_[v];
    for (const Value& v : schedule.targets) ++readers_[v];
  }

  void run(const Schedule& schedule) {
    for (size_t i = 0; i < schedule.nodes.size(); ++i) {
      if (!schedule.runs[i]) continue;
      const NodeId id = schedule.nodes[i];
      const std::string& op = graph_.node(id).op->name;
      if (op == "add") fuse_add(id);
      if (op == "activation") fuse_activation(id);
      if (op == "softmax_ce" || op == "focal_ce") fuse_upsample(id);
      if (op == "label_probability") fuse_upsample(id, true);
    }
  }

 private:
  /// The node behind v when it is an `op`, runs in this plan and nobody else reads it.
  Node* sole(Value v, const char* op) {
    if (is_leaf(graph_, v) || readers_[v] != 1) return nullptr;
    Node& node = graph_.node(v.node);
    return node.op->name == op ? &node : nullptr;
  }

  Node* made_by(Value v, const char* op) {
    if (is_leaf(graph_, v)) return nullptr;
    Node& node = graph_.node(v.node);
    return node.op->name == op ? &node : nullptr;
  }

  /// Whether a node of the graph, perhaps outside this schedule, counts on the full-size gradient that the loss gives.
  bool reads_gradient(NodeId loss) const {
    for (NodeId id = loss + 1; id < static_cast<NodeId>(graph_.size()); ++id)
      for (const Value& v : graph_.node(id).inputs)
        if (v == Value{&graph_, loss, 1}) return true;
    return false;
  }

  static bool bare_bn(const Node& node) {
    return node.inputs.size() == 5 && node.attrs.integer("act") == static_cast<int64_t>(Activation::kNone);
  }

  void become(Node& node, const char* op, std::vector<Value> inputs, Attrs attrs, const Node& absorbed) {
    // The absorbed node stops reading (nobody needs it now), the rewritten one reads what it takes over.
    for (const Value& v : absorbed.inputs) --readers_[v];
    for (const Value& v : node.inputs) --readers_[v];
    node.op = &find_op(op);
    node.inputs = std::move(inputs);
    node.attrs = std::move(attrs);
    node.name = absorbed.name;
    for (const Value& v : node.inputs) ++readers_[v];
  }

  void fuse_add(NodeId id) {
    Node& node = graph_.node(id);
    if (node.inputs[0] == node.inputs[1]) return;
    // The later of two candidates: the earlier one's result is then the residual.
    for (const int side :
         {node.inputs[0].node > node.inputs[1].node ? 0 : 1, node.inputs[0].node > node.inputs[1].node ? 1 : 0}) {
      const Node* bn = sole(node.inputs[static_cast<size_t>(side)], "bn_apply");
      if (!bn || !bare_bn(*bn)) continue;
      std::vector<Value> inputs = bn->inputs;
      inputs.push_back(node.inputs[static_cast<size_t>(1 - side)]);
      become(node, "bn_apply", std::move(inputs), bn->attrs, *bn);
      return;
    }
  }

  void fuse_activation(NodeId id) {
    Node& node = graph_.node(id);
    const auto kind = static_cast<Activation>(node.attrs.integer("act"));
    if (kind != Activation::kRelu && kind != Activation::kRelu6) return;
    const Node* bn = sole(node.inputs[0], "bn_apply");
    if (!bn || bn->attrs.integer("act") != static_cast<int64_t>(Activation::kNone)) return;
    Attrs attrs = bn->attrs;
    attrs.set("act", static_cast<int64_t>(kind));
    become(node, "bn_apply", bn->inputs, std::move(attrs), *bn);
  }

  /// `shared`: also where others read the resized values. OHEM reads them for the probabilities, then for the loss.
  void fuse_upsample(NodeId id, bool shared = false) {
    Node& node = graph_.node(id);
    const Node* resize = shared ? made_by(node.inputs[0], "resize_bilinear") : sole(node.inputs[0], "resize_bilinear");
    if (!resize || reads_gradient(id)) return;
    std::vector<Value> inputs = node.inputs;
    inputs[0] = resize->inputs[0];
    Attrs attrs = node.attrs;
    attrs.set("align_corners", resize->attrs.integer("align_corners"));
    const std::string name = node.name;
    if (shared && readers_[node.inputs[0]] > 1) ++readers_[resize->inputs[0]];  // the resize stays
    become(node, ("upsample_" + node.op->name).c_str(), std::move(inputs), std::move(attrs), *resize);
    node.name = name;
    node.outputs = node.op->infer(node);  // the gradient output has the small size now
  }

  Graph& graph_;
  std::map<Value, int> readers_;
};

}  // namespace

void fuse(Graph& graph, const Schedule& schedule) {
  Fuser(graph, schedule).run(schedule);
}

}  // namespace convoy
