// A network's forward pass and loss as graphs at several image sizes. A graph holds shapes, not where they come from;
// what follows from the image's size, and how, is found by comparing the graphs.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/context.h"
#include "engine/param_store.h"
#include "io/config.h"
#include "nets/network.h"

namespace convoy {

/// Appends a loss over a network's outputs. target (N,H,W) i32.
using LossFunction = std::function<Value(const std::vector<NamedValue>& outputs, Value target)>;

/// One pass at one size.
struct TorchTrace {
  std::unique_ptr<Graph> graph;
  Value image, target;
  std::vector<NamedValue> outputs;
  Value loss;                         ///< empty without a loss function
  std::vector<NodeId> forward_nodes;  ///< those that the outputs need, leaves left out, in order
  std::vector<NodeId> loss_nodes;     ///< those that the loss needs behind the outputs
};

/// A network at several sizes, in one mode. The first is the asked-for size, at batch 2.
class TorchTraces {
 public:
  /// `size` fits the network. `loss` may be empty.
  TorchTraces(Context& context, ParamStore& store, const Network& network, SizeHW size, Mode mode, bool dropout,
              const LossFunction& loss);

  const TorchTrace& first() const { return traces_[0]; }
  /// Whether the network is made of the same nodes at all sizes.
  bool same_nodes() const { return same_nodes_; }
  /// Whether the network takes more than one height and more than one width.
  bool any_size() const { return any_size_; }
  /// A number of a node (or any other of the graph) at each size.
  std::vector<int64_t> at_each_size(const std::function<int64_t(const Graph&)>& number) const;

 private:
  std::vector<TorchTrace> traces_;
  bool same_nodes_ = true, any_size_ = true;
};

/// An integer of a graph as an expression of an extent: factor * extent / divisor.
struct ExtentOf {
  Value value;
  int dim = 0;
  int64_t factor = 1, divisor = 1;
};

/// The extent of `values` (at any size the same as in `numbers`), the earlier ones first; nothing where none fits.
std::optional<ExtentOf> find_extent(const TorchTraces& traces, const std::vector<int64_t>& numbers,
                                    const std::vector<Value>& values);

}  // namespace convoy
