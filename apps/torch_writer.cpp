#include "apps/torch_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstring>
#include <optional>

#include "apps/torch_forms.h"
#include "apps/torch_python.h"
#include "engine/op.h"
#include "engine/rng.h"
#include "engine/schedule.h"

namespace convoy {

namespace {

bool is_identifier(const std::string& word) {
  static const std::set<std::string> keywords = {
      "and",  "as",    "assert", "async",   "await", "class", "continue", "def",      "del",
      "elif", "else",  "except", "finally", "for",   "from",  "global",   "if",       "import",
      "in",   "is",    "lambda", "not",     "or",    "pass",  "raise",    "nonlocal", "return",
      "try",  "while", "with",   "yield",   "None",  "True",  "False",    "break"};
  return !word.empty() && !std::isdigit(static_cast<unsigned char>(word[0])) && !keywords.contains(word) &&
         std::all_of(word.begin(), word.end(), [](unsigned char c) { return std::isalnum(c) || c == '_'; });
}

bool is_number(const std::string& word) {
  return !word.empty() && std::all_of(word.begin(), word.end(), [](unsigned char c) { return std::isdigit(c); });
}

/// Of a constant.
int64_t content_hash(const Graph& graph, Value v) {
  const Tensor& tensor = graph.node(v.node).computed[static_cast<size_t>(v.output)];
  const std::string_view bytes(static_cast<const char*>(tensor.view().data),
                               static_cast<size_t>(tensor.shape().count()) * dtype_size(tensor.dtype()));
  return static_cast<int64_t>(fnv1a(bytes));
}

struct Statement {
  NodeId node;
  std::string text, comment;
  std::set<Value> reads;
  std::vector<Value> writes;
};

class Writer {
 public:
  Writer(const TorchTraces& traces, const std::vector<NodeId>& nodes, const std::vector<Value>& targets,
         const std::map<Value, std::string>& given, TorchNetwork& network)
      : traces_(traces),
        graph_(*traces.first().graph),
        nodes_(nodes),
        targets_(targets),
        names_(given),
        network_(network) {
    for (const auto& [value, name] : given) taken_.insert(name), given_.push_back(value);
    for (const NodeId id : nodes)
      for (const Value& v : graph_.node(id).inputs) readers_[v].push_back(id);
  }

  std::string write(std::vector<std::string>& target_names) {
    for (const NodeId id : nodes_) write_node(id);
    for (const Value& v : targets_) target_names.push_back(expression(v));
    std::string lines;
    for (size_t s = 0; s < statements_.size(); ++s) {
      const Statement& statement = statements_[s];
      lines += fmt::format("        {}  # {}\n", statement.text, statement.comment);
      std::string dead;
      for (const Value& v : ended_by(s)) dead += (dead.empty() ? "" : ", ") + names_.at(v);
      if (!dead.empty()) lines += "        del " + dead + "\n";
    }
    return lines;
  }

 private:
  friend class Call;

  /// Python expression of a value; noted as read by the statement in work.
  std::string expression(Value v) {
    const Node& node = graph_.node(v.node);
    if (const auto found = names_.find(v); found != names_.end()) {
      reads_.insert(v);
      return found->second;
    }
    const std::string& op = node.op->name;
    if (op == "parameter" || op == "buffer") return python_path(node.name);
    if (!node.computed.empty() && node.computed[static_cast<size_t>(v.output)].defined()) {
      const Tensor& tensor = node.computed[static_cast<size_t>(v.output)];
      const auto contents = traces_.at_each_size([&](const Graph& graph) { return content_hash(graph, v); });
      if (std::any_of(contents.begin(), contents.end(), [&](int64_t hash) { return hash != contents[0]; }))
        network_.fixed_size = true;
      return tensor.shape().count() == 1 && tensor.dtype() == DType::kF32 ? python_real(tensor.to_floats()[0])
                                                                          : network_.constant_name(tensor);
    }
    fail("{}: {} is not there when it is read", node.name, op);
  }

  /// A number of the graph: a literal, or an expression of an extent that is known by then; nothing where it varies
  /// without being one.
  std::optional<std::string> known_number(NodeId reader, const std::function<int64_t(const Graph&)>& of) {
    const std::vector<int64_t> numbers = traces_.at_each_size(of);
    if (std::all_of(numbers.begin(), numbers.end(), [&](int64_t n) { return n == numbers[0]; }))
      return std::to_string(numbers[0]);
    const auto found = find_extent(traces_, numbers, extents_before(reader));
    if (!found) return {};
    std::string text = fmt::format("{}.shape[{}]", expression(found->value), found->dim);
    if (found->factor > 1) text = fmt::format("{} * {}", found->factor, text);
    if (found->divisor > 1) text = fmt::format("{} // {}", text, found->divisor);
    return text;
  }

  /// The same; what varies without being an extent is taken as it is at the exported size.
  std::string number(NodeId reader, const std::function<int64_t(const Graph&)>& of) {
    if (auto known = known_number(reader, of)) return *known;
    network_.fixed_size = true;
    return std::to_string(of(graph_));
  }

  /// Values whose extents a node may ask for: its own inputs, then the image, then what is still to be read anyway,
  /// then all others.
  std::vector<Value> extents_before(NodeId reader) const {
    std::vector<Value> values, gone;
    for (const Value& v : graph_.node(reader).inputs)
      if (names_.contains(v)) values.push_back(v);
    values.insert(values.end(), given_.begin(), given_.end());
    for (const NodeId id : nodes_) {
      if (id >= reader) break;
      const Value v{const_cast<Graph*>(&graph_), id, 0};
      if (!names_.contains(v)) continue;
      const auto readers = readers_.find(v);
      const bool alive = std::find(targets_.begin(), targets_.end(), v) != targets_.end() ||
                         (readers != readers_.end() && readers->second.back() >= reader);
      (alive ? values : gone).push_back(v);
    }
    values.insert(values.end(), gone.begin(), gone.end());
    return values;
  }

  /// After the module, or where no module stands for the node alone, after the function that is called.
  std::string new_name(const Node& node, const std::string& right) {
    std::string base = node.name;
    if (base.empty()) {
      const size_t from = right.find('.') + 1, to = right.find('(');
      base = right.starts_with("F.") || right.starts_with("torch.") ? right.substr(from, to - from) : node.op->name;
    }
    std::replace_if(
        base.begin(), base.end(), [](unsigned char c) { return !std::isalnum(c); }, '_');
    if (!is_identifier(base)) base = "x" + base;
    if (is_torch_function(base)) base += "_1";
    std::string name = base;
    for (int n = 2; !taken_.insert(name).second; ++n) name = fmt::format("{}_{}", base, n);
    return name;
  }

  void write_node(NodeId id);

  /// Variables that nobody reads behind statement s.
  std::vector<Value> ended_by(size_t s) const {
    std::vector<Value> ended;
    std::set<Value> candidates = statements_[s].reads;
    candidates.insert(statements_[s].writes.begin(), statements_[s].writes.end());
    for (const Value& v : candidates) {
      if (std::find(given_.begin(), given_.end(), v) != given_.end()) continue;
      if (std::find(targets_.begin(), targets_.end(), v) != targets_.end()) continue;
      bool later = false;
      for (size_t t = s + 1; t < statements_.size() && !later; ++t) later = statements_[t].reads.contains(v);
      if (!later) ended.push_back(v);
    }
    return ended;
  }

  const TorchTraces& traces_;
  const Graph& graph_;
  const std::vector<NodeId>& nodes_;
  const std::vector<Value>& targets_;
  std::map<Value, std::string> names_;
  TorchNetwork& network_;
  std::set<std::string> taken_ = {"self", "torch", "F", "math", "image", "target", "outputs"};
  std::vector<Value> given_;
  std::map<Value, std::vector<NodeId>> readers_;
  std::vector<Statement> statements_;
  std::set<Value> reads_;  // by the statement in work
};

class Call : public TorchCall {
 public:
  Call(Writer& writer, NodeId id) : writer_(writer), id_(id), node_(writer.graph_.node(id)) {}

  const Node& node() const override { return node_; }
  std::string input(int i) override { return writer_.expression(node_.inputs[static_cast<size_t>(i)]); }
  bool reads(int output) const override {
    const Value v{const_cast<Graph*>(&writer_.graph_), id_, output};
    return writer_.readers_.contains(v) ||
           std::find(writer_.targets_.begin(), writer_.targets_.end(), v) != writer_.targets_.end();
  }
  bool may_overwrite(int i) const override {
    const Value v = node_.inputs[static_cast<size_t>(i)];
    const auto& targets = writer_.targets_;
    return output_is_free(writer_.graph_.node(v.node).op->name) && writer_.readers_.at(v).size() == 1 &&
           std::find(targets.begin(), targets.end(), v) == targets.end();
  }
  std::string integer(const std::string& key) override {
    return writer_.number(id_, [&](const Graph& graph) { return graph.node(id_).attrs.integer(key); });
  }
  std::string real(const std::string& key) override {
    const double here = node_.attrs.real(key);
    const auto is_fixed = [&](const std::function<int64_t(const Graph&)>& count) {
      const auto same = writer_.traces_.at_each_size([&](const Graph& graph) {
        const double wanted = here * static_cast<double>(count(writer_.graph_)),
                     found = graph.node(id_).attrs.real(key) * static_cast<double>(count(graph));
        return static_cast<int64_t>(std::abs(found - wanted) <= 1e-12 * std::abs(wanted));
      });
      return std::all_of(same.begin(), same.end(), [](int64_t s) { return s != 0; });
    };
    const auto elements = [&](const Graph& graph) { return graph.node(id_).inputs[0].shape().count(); };
    if (is_fixed([](const Graph&) { return int64_t{1}; })) return python_real(here);
    if (is_fixed(elements))
      return fmt::format("{} / {}.numel()", python_real(here * static_cast<double>(elements(writer_.graph_))),
                         input(0));
    writer_.network_.fixed_size = true;
    return python_real(here);
  }
  std::string output_extent(int output, int dim) override {
    return writer_.number(
        id_, [&](const Graph& graph) { return graph.node(id_).outputs[static_cast<size_t>(output)].shape[dim]; });
  }
  std::string input_extent(int i, int dim) override {
    return writer_.number(
        id_, [&](const Graph& graph) { return graph.node(id_).inputs[static_cast<size_t>(i)].shape()[dim]; });
  }
  std::string output_shape(int output) override {
    std::string text;
    bool inferred = false;
    for (int dim = 0; dim < node_.outputs[static_cast<size_t>(output)].shape.rank(); ++dim) {
      const auto extent = [&](const Graph& graph) {
        return graph.node(id_).outputs[static_cast<size_t>(output)].shape[dim];
      };
      if (dim > 0) text += ", ";
      if (const auto known = writer_.known_number(id_, extent)) {
        text += *known;
      } else {
        text += inferred ? writer_.number(id_, extent) : "-1";
        inferred = true;
      }
    }
    return text;
  }
  std::string size(const std::string& height, const std::string& width) override {
    const std::string h = integer(height), w = integer(width), of_height = ".shape[2]", of_width = ".shape[3]";
    if (h.ends_with(of_height) && h.substr(0, h.size() - of_height.size()) + of_width == w && h[0] > '9')
      return h.substr(0, h.size() - of_height.size()) + ".shape[2:]";
    return fmt::format("({}, {})", h, w);
  }
  std::string norm_arguments() override {
    // bn_apply(x, mean, var, weight, bias)
    const auto name_of = [&](size_t i) { return writer_.graph_.node(node_.inputs[i].node).name; };
    const std::string weight = name_of(3), suffix = ".weight";
    CONVOY_CHECK(weight.ends_with(suffix), "{}: a batch norm whose weight is '{}' has no form in PyTorch", node_.name,
                 weight);
    const std::string path = weight.substr(0, weight.size() - suffix.size());
    const bool batch = node_.attrs.flag("batch_statistics");
    CONVOY_CHECK(name_of(4) == path + ".bias" && (batch || name_of(1) == path + ".running_mean") &&
                     (batch || name_of(2) == path + ".running_var"),
                 "{}: a batch norm whose parameters are not those of one module has no form in PyTorch", node_.name);
    const auto momentum = writer_.network_.momenta.find(path);
    const bool trains = momentum != writer_.network_.momenta.end();
    return fmt::format("{}, {}, {}", python_path(path), trains ? "self.training" : "False",
                       python_real(trains ? momentum->second : 0));
  }

 private:
  Writer& writer_;
  NodeId id_;
  const Node& node_;
};

void Writer::write_node(NodeId id) {
  const Node& node = graph_.node(id);
  const std::string& op = node.op->name;
  // Its reader, bn_apply, is written as the batch norm that torch has.
  if (op == "bn_stats") {
    for (const int output : {0, 1})
      for (const NodeId reader : readers_[{const_cast<Graph*>(&graph_), id, output}])
        CONVOY_CHECK(graph_.node(reader).op->name == "bn_apply",
                     "{}: {} reads batch statistics, which has no form in PyTorch", graph_.node(reader).name,
                     graph_.node(reader).op->name);
    return;
  }
  const auto form = torch_forms().find(op);
  CONVOY_CHECK(form != torch_forms().end(),
               "the node '{}' cannot be exported: the operator '{}' has no form in PyTorch yet (apps/torch_forms.cpp)",
               node.name, op);
  reads_.clear();
  Call call(*this, id);
  const std::string right = form->second(call);
  Statement statement{.node = id, .text = {}, .comment = {}, .reads = reads_, .writes = {}};
  std::vector<std::string> left;
  bool tuple = false;
  for (int o = 0; o < static_cast<int>(node.outputs.size()); ++o) {
    const Value v{const_cast<Graph*>(&graph_), id, o};
    if (!call.reads(o)) {
      left.emplace_back("_");
      continue;
    }
    tuple = tuple || o > 0;
    names_[v] = new_name(node, right);
    left.push_back(names_[v]);
    statement.writes.push_back(v);
  }
  if (!tuple) left.resize(1);
  statement.text = fmt::format("{} = {}", fmt::join(left, ", "), right);
  statement.comment = fmt::format("{}{}", node.name.empty() ? "" : node.name + " ", node.outputs[0].shape.str());
  statements_.push_back(std::move(statement));
}

}  // namespace

std::string python_path(const std::string& state_name) {
  std::string path = "self";
  for (size_t from = 0; from <= state_name.size();) {
    const size_t dot = std::min(state_name.find('.', from), state_name.size());
    const std::string word = state_name.substr(from, dot - from);
    if (is_number(word))
      path += "[" + word + "]";
    else
      path += is_identifier(word) ? "." + word : "[\"" + word + "\"]";
    from = dot + 1;
  }
  return path;
}

void TorchNetwork::learn_momenta(const Graph& graph) {
  for (NodeId id = 0; id < static_cast<NodeId>(graph.size()); ++id) {
    const Node& node = graph.node(id);
    if (node.op->name != "bn_update_running") continue;
    const std::string& mean = graph.node(node.inputs[2].node).name;  // PATH.running_mean
    momenta[mean.substr(0, mean.rfind('.'))] = node.attrs.real("momentum");
  }
}

std::string TorchNetwork::constant_name(const Tensor& tensor) {
  for (const auto& [name, known] : constants)
    if (known.shape() == tensor.shape() && known.dtype() == tensor.dtype() &&
        std::memcmp(known.view().data, tensor.view().data,
                    static_cast<size_t>(tensor.shape().count()) * dtype_size(tensor.dtype())) == 0)
      return "self." + name;
  constants.emplace_back(fmt::format("constant_{}", constants.size()), tensor);
  return "self." + constants.back().first;
}

std::string write_torch_lines(const TorchTraces& traces, const std::vector<NodeId>& nodes,
                              const std::vector<Value>& targets, const std::map<Value, std::string>& given,
                              TorchNetwork& network, std::vector<std::string>& target_names) {
  return Writer(traces, nodes, targets, given, network).write(target_names);
}

}  // namespace convoy
