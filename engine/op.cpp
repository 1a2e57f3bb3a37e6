#include "engine/op.h"

#include <map>
#include <memory>

#include "engine/context.h"
#include "engine/ops/registry.h"

namespace convoy {

namespace {
std::map<std::string, std::unique_ptr<OpDef>>& table() {
  static std::map<std::string, std::unique_ptr<OpDef>> ops;
  return ops;
}

void insert(OpDef op) {
  const std::string name = op.name;
  CONVOY_CHECK(op.infer, "operator '{}' has no shape inference", name);
  const bool inserted = table().emplace(name, std::make_unique<OpDef>(std::move(op))).second;
  CONVOY_CHECK(inserted, "an operator named '{}' exists already", name);
}

void register_built_in() {
  static const bool once = [] {
    for (OpDef& op : built_in_ops()) insert(std::move(op));
    return true;
  }();
  (void)once;
}
}  // namespace

const OpDef& find_op(const std::string& name) {
  register_built_in();
  const auto it = table().find(name);
  CONVOY_CHECK(it != table().end(), "there is no operator '{}'", name);
  return *it->second;
}

void register_op(OpDef op) {
  register_built_in();
  insert(std::move(op));
}

Cost cost_of(const Node& node) {
  Cost cost;
  for (const Value& v : node.inputs)
    cost.bytes += static_cast<double>(v.shape().count()) * static_cast<double>(dtype_size(v.dtype()));
  for (const TensorInfo& o : node.outputs)
    cost.bytes += static_cast<double>(o.shape.count()) * static_cast<double>(dtype_size(o.dtype));
  if (node.op->flops)
    cost.flops = node.op->flops(node);
  else if (!node.outputs.empty())
    cost.flops = static_cast<double>(node.outputs[0].shape.count());
  return cost;
}

bool has_kernel(const OpDef& op, DeviceKind device) {
  return device == DeviceKind::kCpu || op.collective ? op.prepare_cpu != nullptr : op.prepare_cuda != nullptr;
}

Kernel prepare(const OpDef& op, const PrepareArgs& args) {
  const bool on_host = args.context.options().device == DeviceKind::kCpu || op.collective;
  return on_host ? op.prepare_cpu(args) : op.prepare_cuda(args);
}

void layout_plain(LayoutChoice& choice) {
  for (Layout& l : choice.in) l = Layout::kNchw;
  for (Layout& l : choice.out) l = Layout::kNchw;
}

void layout_follow_first(LayoutChoice& choice) {
  const Layout first = choice.in[0];
  for (size_t i = 1; i < choice.in.size(); ++i)
    if (choice.node.inputs[i].shape().rank() == 4) choice.in[i] = first;
  for (size_t i = 0; i < choice.out.size(); ++i)
    if (choice.node.outputs[i].shape.rank() == 4) choice.out[i] = first;
}

}  // namespace convoy
