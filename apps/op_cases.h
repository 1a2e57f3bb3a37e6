// The built-in set of `convoy bench op`: every operator on a feature map of usual size.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "engine/graph.h"

namespace convoy {

/// Makes the inputs of a case.
class CaseBuilder {
 public:
  /// `map`: the feature map (N,C,H,W) that cases start from.
  CaseBuilder(Graph& graph, const Shape& map) : graph_(graph), map_(map) {}

  /// A new input; gradients to f32 ones are part of the case.
  Value input(const Shape& shape, DType dtype = DType::kF32);
  /// The feature map, in the layout that convolutions leave it in. `divisor` makes height and width smaller.
  Value map(int64_t channels = 0, int64_t divisor = 1);
  /// Another image in that layout.
  Value image(const Shape& shape);
  const Shape& shape() const { return map_; }
  const std::vector<Value>& wanted() const { return wanted_; }

 private:
  Graph& graph_;
  Shape map_;
  std::vector<Value> wanted_;
  int inputs_ = 0;
};

struct BenchmarkCase {
  std::string name;
  std::function<std::vector<Value>(CaseBuilder&)> build;
  bool differentiable = true;
};

const std::vector<BenchmarkCase>& benchmark_cases();

}  // namespace convoy
