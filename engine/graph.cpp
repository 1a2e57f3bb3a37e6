#include "engine/graph.h"

#include <algorithm>

#include "engine/op.h"
#include "engine/param_store.h"

namespace convoy {

const Shape& Value::shape() const {
  return graph->node(node).outputs[static_cast<size_t>(output)].shape;
}
DType Value::dtype() const {
  return graph->node(node).outputs[static_cast<size_t>(output)].dtype;
}

void Attrs::set(const std::string& key, Entry entry) {
  for (auto& [name, value] : entries_)
    if (name == key) {
      value = std::move(entry);
      return;
    }
  entries_.emplace_back(key, std::move(entry));
}

const Attrs::Entry& Attrs::at(std::string_view key) const {
  for (const auto& [name, value] : entries_)
    if (name == key) return value;
  fail("operator attribute '{}' is missing", key);
}

std::string Attrs::str() const {
  std::string text;
  for (const auto& [name, value] : entries_) {
    if (!text.empty()) text += ' ';
    text += name + '=';
    text += std::visit([](const auto& v) { return fmt::format("{}", v); }, value);
  }
  return text;
}

Value Graph::leaf(const char* op, TensorInfo info, std::string name, int64_t slot) {
  Node node;
  node.op = &find_op(op);
  node.outputs = {std::move(info)};
  node.computed.resize(1);
  node.name = std::move(name);
  node.slot = slot;
  nodes_.push_back(std::move(node));
  return {this, static_cast<NodeId>(nodes_.size()) - 1, 0};
}

Value Graph::input(const std::string& name, DType dtype, const Shape& shape, bool of_step) {
  CONVOY_CHECK(!named_leaves_.contains("input " + name), "two graph inputs are named '{}'", name);
  const Value v = leaf("input", {dtype, shape}, name, -1);
  if (of_step) node(v.node).attrs.set("of_step", int64_t{1});
  named_leaves_["input " + name] = v.node;
  return v;
}

Value Graph::find_input(const std::string& name) const {
  const auto it = named_leaves_.find("input " + name);
  return it == named_leaves_.end() ? Value{} : Value{const_cast<Graph*>(this), it->second, 0};
}

Value Graph::constant(const Tensor& tensor) {
  const Value v = leaf("constant", {tensor.dtype(), tensor.shape()}, "", -1);
  node(v.node).computed[0] = tensor.plain();
  return v;
}

Value Graph::parameter(const std::string& name) {
  if (const auto it = named_leaves_.find("state " + name); it != named_leaves_.end()) return {this, it->second, 0};
  const int64_t slot = parameters_.find_parameter(name);
  CONVOY_CHECK(slot >= 0, "there is no parameter '{}'", name);
  const Value v =
      leaf("parameter", {DType::kF32, parameters_.parameters()[static_cast<size_t>(slot)].shape}, name, slot);
  named_leaves_["state " + name] = v.node;
  return v;
}

Value Graph::buffer(const std::string& name) {
  if (const auto it = named_leaves_.find("state " + name); it != named_leaves_.end()) return {this, it->second, 0};
  const int64_t slot = parameters_.find_buffer(name);
  CONVOY_CHECK(slot >= 0, "there is no buffer '{}'", name);
  const Tensor& value = parameters_.buffers()[static_cast<size_t>(slot)].value;
  const Value v = leaf("buffer", {value.dtype(), value.shape()}, name, slot);
  named_leaves_["state " + name] = v.node;
  return v;
}

Value Graph::append(const std::string& op, std::vector<Value> inputs, Attrs attrs) {
  Node node;
  node.op = &find_op(op);
  node.attrs = std::move(attrs);
  node.inputs = std::move(inputs);
  node.name = scope_;
  for (const Value& v : node.inputs)
    CONVOY_CHECK(v.graph == this, "{}: operator '{}' was given a value of another graph", scope_, op);
  try {
    node.outputs = node.op->infer(node);
  } catch (const Error& e) {
    std::string shapes;
    for (const Value& v : node.inputs) shapes += " " + v.shape().str();
    throw Error(
        fmt::format("{}: operator '{}' on{}: {}", scope_.empty() ? "(top level)" : scope_, op, shapes, e.what()));
  }
  node.computed.resize(node.outputs.size());
  nodes_.push_back(std::move(node));
  return {this, static_cast<NodeId>(nodes_.size()) - 1, 0};
}

}  // namespace convoy
