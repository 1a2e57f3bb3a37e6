#include "layers/norms.h"

#include <algorithm>

#include "layers/initializers.h"

namespace convoy {

Value BatchNorm1d::operator()(Builder& b, Value x) const {
  return reshape(norm_(b, as_image(x)), x.shape());
}

GroupNorm::GroupNorm(const Scope& scope, int64_t channels, double eps)
    : path_(scope.path), groups_(std::min<int64_t>(32, channels)), eps_(eps) {
  CONVOY_CHECK(channels % groups_ == 0, "{}: {} channels cannot be split into {} groups", path_, channels, groups_);
  scope.store.add_parameter(path_ + ".weight", {channels}, constant_init(1));
  scope.store.add_parameter(path_ + ".bias", {channels}, constant_init(0));
}

Value GroupNorm::operator()(Builder& b, Value x) const {
  const Graph::Scope scope(b.graph, path_);
  return group_norm(x, b.graph.parameter(path_ + ".weight"), b.graph.parameter(path_ + ".bias"), groups_, eps_);
}

L2Norm::L2Norm(const Scope& scope, int64_t channels, double scale) : path_(scope.path) {
  scope.store.add_parameter(path_ + ".weight", {channels}, constant_init(scale));
}

Value L2Norm::operator()(Builder& b, Value x) const {
  const Graph::Scope scope(b.graph, path_);
  return l2_norm(x, b.graph.parameter(path_ + ".weight"));
}

PRelu::PRelu(const Scope& scope, int64_t slopes) : path_(scope.path) {
  scope.store.add_parameter(path_ + ".weight", {slopes}, constant_init(0.25));
}

Value PRelu::operator()(Builder& b, Value x) const {
  const Graph::Scope scope(b.graph, path_);
  return prelu(x, b.graph.parameter(path_ + ".weight"));
}

}  // namespace convoy
