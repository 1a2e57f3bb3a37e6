#include "apps/torch_trace.h"

#include <algorithm>
#include <set>

#include "engine/op.h"
#include "engine/schedule.h"

namespace convoy {

namespace {

/// Nodes that `targets` need, in order. `given` values are there already.
std::vector<NodeId> needed_nodes(const Graph& graph, const std::vector<Value>& targets,
                                 const std::vector<Value>& given) {
  std::set<NodeId> needed;
  std::vector<Value> open = targets;
  while (!open.empty()) {
    const Value v = open.back();
    open.pop_back();
    if (is_leaf(graph, v) || std::find(given.begin(), given.end(), v) != given.end()) continue;
    if (!needed.insert(v.node).second) continue;
    const auto& inputs = graph.node(v.node).inputs;
    open.insert(open.end(), inputs.begin(), inputs.end());
  }
  return {needed.begin(), needed.end()};
}

bool same_structure(const Graph& a, const Graph& b) {
  if (a.size() != b.size()) return false;
  for (NodeId id = 0; id < static_cast<NodeId>(a.size()); ++id) {
    const Node &x = a.node(id), &y = b.node(id);
    if (x.op != y.op || x.inputs.size() != y.inputs.size() || x.outputs.size() != y.outputs.size()) return false;
    for (size_t i = 0; i < x.inputs.size(); ++i)
      if (x.inputs[i].node != y.inputs[i].node || x.inputs[i].output != y.inputs[i].output) return false;
  }
  return true;
}

TorchTrace trace(Context& context, ParamStore& store, const Network& network, int64_t batch, SizeHW size, Mode mode,
                 bool dropout, const LossFunction& loss) {
  TorchTrace t;
  t.graph = std::make_unique<Graph>(context, store);
  Graph& graph = *t.graph;
  t.image = graph.input("image", DType::kF32, {batch, 3, size.height, size.width});
  t.target = graph.input("target", DType::kI32, {batch, size.height, size.width});
  Builder builder{.graph = graph, .mode = mode, .dropout = dropout};
  t.outputs = network.forward(builder, t.image);
  std::vector<Value> outputs;
  for (const NamedValue& o : t.outputs) outputs.push_back(o.value);
  t.forward_nodes = needed_nodes(graph, outputs, {});
  if (loss) {
    t.loss = loss(t.outputs, t.target);
    t.loss_nodes = needed_nodes(graph, {t.loss}, outputs);
  }
  return t;
}

}  // namespace

TorchTraces::TorchTraces(Context& context, ParamStore& store, const Network& network, SizeHW size, Mode mode,
                         bool dropout, const LossFunction& loss) {
  // Extents that differ in all remainders that strides could leave, and heights unlike widths.
  struct Probe {
    int64_t batch, height, width;
  };
  const Probe probes[] = {{2, size.height, size.width},
                          {3, size.height + 37, size.width + 75},
                          {2, size.height + 109, size.width + 30},
                          {4, 2 * size.height + 6, size.width + 161},
                          {5, size.height + 220, 2 * size.width + 19}};
  std::set<int64_t> heights, widths;
  for (const Probe& p : probes) {
    const SizeHW fitting{fitting_extent(network, p.height), fitting_extent(network, p.width)};
    heights.insert(fitting.height), widths.insert(fitting.width);
    traces_.push_back(trace(context, store, network, p.batch, fitting, mode, dropout, loss));
    same_nodes_ = same_nodes_ && same_structure(*traces_[0].graph, *traces_.back().graph);
  }
  any_size_ = heights.size() > 1 && widths.size() > 1;
}

std::vector<int64_t> TorchTraces::at_each_size(const std::function<int64_t(const Graph&)>& number) const {
  std::vector<int64_t> numbers;
  for (const TorchTrace& t : traces_) numbers.push_back(number(*t.graph));
  return numbers;
}

std::optional<ExtentOf> find_extent(const TorchTraces& traces, const std::vector<int64_t>& numbers,
                                    const std::vector<Value>& values) {
  constexpr int64_t kLargestFactor = 64;
  const auto search = [&](int64_t factor, int64_t divisor) -> std::optional<ExtentOf> {
    for (const Value& v : values)
      for (int dim = 0; dim < v.shape().rank(); ++dim) {
        const auto extents = traces.at_each_size([&](const Graph& graph) {
          const int64_t extent = graph.node(v.node).outputs[static_cast<size_t>(v.output)].shape[dim];
          return extent * factor % divisor ? -1 : extent * factor / divisor;
        });
        if (extents == numbers) return ExtentOf{v, dim, factor, divisor};
      }
    return {};
  };
  if (auto found = search(1, 1)) return found;
  for (int64_t factor = 2; factor <= kLargestFactor; ++factor)
    if (auto found = search(factor, 1)) return found;
  for (int64_t divisor = 2; divisor <= kLargestFactor; ++divisor)
    if (auto found = search(1, divisor)) return found;
  return {};
}

}  // namespace convoy
