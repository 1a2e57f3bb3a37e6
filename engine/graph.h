// The graph of one step: an eager-looking builder that computes nothing until a value is asked for.
//
//   Graph graph(context, parameters);
//   Value x = graph.input("image", DType::kF32, {8, 3, 128, 256});
//   Value y = relu(conv2d(x, graph.parameter("conv.weight"), {}, {.stride_h = 2, .stride_w = 2}));
//   Tensor t = evaluate(y);                      // engine/session.h: the smallest plan for y
//
// differentiate() appends the backward nodes by each operator's rule (source to source), so the whole training step is
// one list of nodes in the order in which it runs.
#pragma once
#include <deque>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "engine/tensor.h"

namespace convoy {

class Context;
class Graph;
class ParamStore;
struct OpDef;

using NodeId = int32_t;

/// One output of a node: a cheap handle, valid as long as its graph.
struct Value {
  Graph* graph = nullptr;
  NodeId node = -1;
  int32_t output = 0;

  explicit operator bool() const { return graph != nullptr; }
  bool operator==(const Value&) const = default;
  auto operator<=>(const Value& other) const { return std::pair(node, output) <=> std::pair(other.node, other.output); }
  const Shape& shape() const;
  DType dtype() const;
};

struct TensorInfo {
  DType dtype = DType::kF32;
  Shape shape;
};

/// Named constants of a node: integers, reals, text. Few and read at plan time only.
class Attrs {
 public:
  using Entry = std::variant<int64_t, double, std::string>;
  Attrs() = default;
  Attrs(std::initializer_list<std::pair<std::string, Entry>> entries) : entries_(entries) {}

  int64_t integer(std::string_view key) const { return std::get<int64_t>(at(key)); }
  double real(std::string_view key) const { return std::get<double>(at(key)); }
  const std::string& text(std::string_view key) const { return std::get<std::string>(at(key)); }
  bool flag(std::string_view key) const { return integer(key) != 0; }
  void set(const std::string& key, Entry entry);
  const std::vector<std::pair<std::string, Entry>>& entries() const { return entries_; }
  /// "stride_h=2 pad_h=1"
  std::string str() const;

 private:
  const Entry& at(std::string_view key) const;
  std::vector<std::pair<std::string, Entry>> entries_;
};

struct Node {
  const OpDef* op = nullptr;
  Attrs attrs;
  std::vector<Value> inputs;
  std::vector<TensorInfo> outputs;
  std::string name;              ///< module path it was built under
  int64_t slot = -1;             ///< parameter or buffer leaf: its index in the ParamStore
  std::vector<Tensor> computed;  ///< per output: the value, once evaluate() has made it a constant (or a constant leaf)
  bool effect_done = false;      ///< an effect that evaluate() has run already
};

/// A global batch whose images are spread over ranks, and on a rank over lanes: runs of the same plan side by side
/// (engine/session.h). The graph holds one lane's images.
struct GlobalBatch {
  /// Whose images a batch norm takes together.
  enum class Statistics : uint8_t {
    kAll,   ///< those of the global batch (sync-BN)
    kLane,  ///< those of a lane; running statistics move by the mean over all lanes
    kRank   ///< those of a rank; running statistics move by rank 0's (plain batch norm on several ranks)
  };
  int64_t images = 0;  ///< of all ranks; 0: the graph's own batch is all there is
  Statistics statistics = Statistics::kAll;

  bool shared() const { return images > 0; }
};

/// Append-only list of nodes. Inputs of a node always lie before it, so the order of the list is an order of execution.
class Graph {
 public:
  Graph(Context& context, ParamStore& parameters) : context_(context), parameters_(parameters) {}
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  Context& context() const { return context_; }
  ParamStore& parameters() const { return parameters_; }

  /// A value that the caller provides at every step (Session::bind). Names are unique. `of_step`: one value for all
  /// lanes, also on a rank that has none.
  Value input(const std::string& name, DType dtype, const Shape& shape, bool of_step = false);
  Value constant(const Tensor& tensor);
  Value constant(float scalar) { return constant(Tensor::scalar(scalar)); }
  /// The parameter or buffer of this name in the ParamStore; asking twice gives the same value.
  Value parameter(const std::string& name);
  Value buffer(const std::string& name);

  /// Appends a node; shapes are inferred and checked here. Throws Error naming the module path and the operator.
  Value append(const std::string& op, std::vector<Value> inputs, Attrs attrs = {});

  /// Appends the backward pass of a scalar `loss`. Each parameter that takes part gets its gradient stored into the
  /// ParamStore's gradient store whenever the returned effects run; parameters that take no part get none.
  /// `also` lists further values whose gradients are wanted; they are returned in their order (no value where the loss
  /// does not depend on one). Throws Error when a parameter has a gradient in this graph already.
  std::vector<Value> differentiate(Value loss, std::span<const Value> also = {});
  /// The effects that differentiate() appended: one store per parameter, in order of completion.
  const std::vector<Value>& gradient_effects() const { return gradient_effects_; }

  /// To be set before the first node: sums over images then go over all lanes and ranks.
  void set_global_batch(const GlobalBatch& batch) { global_batch_ = batch; }
  const GlobalBatch& global_batch() const { return global_batch_; }

  size_t size() const { return nodes_.size(); }
  const Node& node(NodeId id) const { return nodes_[static_cast<size_t>(id)]; }
  Node& node(NodeId id) { return nodes_[static_cast<size_t>(id)]; }
  Value find_input(const std::string& name) const;

  /// Module path for the nodes appended while it lives.
  class Scope {
   public:
    Scope(Graph& graph, std::string name) : graph_(graph), outer_(std::exchange(graph.scope_, std::move(name))) {}
    ~Scope() { graph_.scope_ = std::move(outer_); }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Graph& graph_;
    std::string outer_;
  };
  const std::string& scope() const { return scope_; }
  /// How often this was asked for the current scope: tells two calls of one module apart in random-number keys.
  int64_t next_call_index() { return call_counts_[scope_]++; }

 private:
  Value leaf(const char* op, TensorInfo info, std::string name, int64_t slot);

  Context& context_;
  ParamStore& parameters_;
  GlobalBatch global_batch_;
  std::deque<Node> nodes_;
  std::string scope_;
  std::map<std::string, NodeId> named_leaves_;
  std::map<std::string, int64_t> call_counts_;
  std::vector<Value> gradient_effects_;
};

}  // namespace convoy
