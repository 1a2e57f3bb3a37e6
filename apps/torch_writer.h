// The lines of one pass: nodes of a trace as Python statements.
#pragma once
#include <map>
#include <set>
#include <string>
#include <vector>

#include "apps/torch_trace.h"

namespace convoy {

/// "self.encoder.layer1[0].weight"
std::string python_path(const std::string& state_name);

/// What the passes of a network share.
struct TorchNetwork {
  /// Momentum of the running statistics by the module's path, as far as training moves them.
  std::map<std::string, double> momenta;
  /// Graph constants with more than one element, by what __init__ calls them.
  std::vector<std::pair<std::string, Tensor>> constants;
  /// A size was written as a number though it follows from the image's.
  bool fixed_size = false;

  /// The momenta that a trace in training mode tells.
  void learn_momenta(const Graph& graph);
  /// Name of a constant: an equal one is kept once.
  std::string constant_name(const Tensor& tensor);
};

/// Statements that compute `targets` from nodes of the traces, one per node, indented by 8; variables that are not read
/// again are deleted. `given` are the names of values that are there already.
std::string write_torch_lines(const TorchTraces& traces, const std::vector<NodeId>& nodes,
                              const std::vector<Value>& targets, const std::map<Value, std::string>& given,
                              TorchNetwork& network, std::vector<std::string>& target_names);

}  // namespace convoy
