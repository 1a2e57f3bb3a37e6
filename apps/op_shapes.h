// Operators with the shapes, layouts and attributes that they have in plans: what `convoy bench op` measures.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "engine/context.h"
#include "engine/graph.h"
#include "engine/plan.h"
#include "nets/network.h"

namespace convoy {

/// A launch of a plan, once for all launches that are like it.
struct OpShape {
  std::string id;  ///< "relu act=1 : 2x64x32x64b16 -> 2x64x32x64b16"
  std::string op, attrs;
  const Node* node = nullptr;  ///< null for a reorder, which the plan has added
  Kernel kernel;
  std::vector<View> in, out;  ///< geometry; n is 0 for an output that nobody reads
  Cost cost;
  int64_t occurrences = 1;
};

struct OpSetOptions {
  NetworkOptions network;  ///< name empty: the built-in set of cases
  int64_t height = 0, width = 0, batch = 0;
};

/// The shapes of a network's training step, or of a built-in set of cases for every operator with its gradients.
/// Effects (running statistics, gradient stores) and exchanges are left out.
class OpSet {
 public:
  /// Plans are made for the context's device. Throws Error when it has no kernel for an operator of the network.
  OpSet(Context& context, const OpSetOptions& options);
  ~OpSet();

  const std::vector<OpShape>& shapes() const { return shapes_; }
  /// Cases of the built-in set without a kernel on the device: what the plan says.
  const std::vector<std::string>& missing() const { return missing_; }

 private:
  struct Source;
  void add_network(const OpSetOptions& options);
  void add_cases(const OpSetOptions& options);
  void add(Source& source, std::vector<Value> targets);

  Context& context_;
  std::vector<std::unique_ptr<Source>> sources_;
  std::vector<OpShape> shapes_;
  std::vector<std::string> missing_;
};

}  // namespace convoy
