#include "layers/linear_maps.h"

#include "layers/initializers.h"

namespace convoy {

namespace {

void register_map(const Scope& scope, const Shape& weight, int64_t fan_in, int64_t out, bool bias) {
  scope.store.add_parameter(scope.path + ".weight", weight, uniform_by_fan_in(fan_in));
  if (bias) scope.store.add_parameter(scope.path + ".bias", {out}, uniform_by_fan_in(fan_in));
}

Value weight_of(Builder& b, const std::string& path) {
  return b.graph.parameter(path + ".weight");
}
Value bias_of(Builder& b, const std::string& path, bool bias) {
  return bias ? b.graph.parameter(path + ".bias") : Value{};
}

}  // namespace

ConvTranspose2d::ConvTranspose2d(const Scope& scope, int64_t in, int64_t out, int64_t kernel,
                                 const ConvTranspose2dOptions& options, bool bias)
    : path_(scope.path), options_(options), bias_(bias) {
  const int64_t outputs = out / options.geometry.groups;
  register_map(scope, {in, outputs, kernel, kernel}, outputs * kernel * kernel, out, bias);
}

Value ConvTranspose2d::operator()(Builder& b, Value x) const {
  const Graph::Scope scope(b.graph, path_);
  return conv_transpose2d(x, weight_of(b, path_), bias_of(b, path_, bias_), options_);
}

Conv1d::Conv1d(const Scope& scope, int64_t in, int64_t out, int64_t kernel, const Conv1dOptions& options, bool bias)
    : path_(scope.path), options_(options), bias_(bias) {
  const int64_t inputs = in / options.groups;
  register_map(scope, {out, inputs, kernel}, inputs * kernel, out, bias);
}

Value Conv1d::operator()(Builder& b, Value x) const {
  const Graph::Scope scope(b.graph, path_);
  return conv1d(x, weight_of(b, path_), bias_of(b, path_, bias_), options_);
}

Linear::Linear(const Scope& scope, int64_t in, int64_t out, bool bias) : path_(scope.path), bias_(bias) {
  register_map(scope, {out, in}, in, out, bias);
}

Value Linear::operator()(Builder& b, Value x) const {
  const Graph::Scope scope(b.graph, path_);
  const bool image = x.shape().rank() == 4;
  const Value y = linear(image ? flatten(x) : x, weight_of(b, path_), bias_of(b, path_, bias_));
  return image ? as_image(y) : y;
}

DupSampling::DupSampling(const Scope& scope, int64_t in, int64_t out, int64_t factor)
    : path_(scope.path), factor_(factor) {
  register_map(scope, {out * factor * factor, in, 1, 1}, in, 0, false);
}

Value DupSampling::operator()(Builder& b, Value x) const {
  const Graph::Scope scope(b.graph, path_);
  return dupsampling(x, weight_of(b, path_), factor_);
}

}  // namespace convoy
