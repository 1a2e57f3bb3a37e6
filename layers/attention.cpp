#include "layers/attention.h"

#include <cmath>

namespace convoy {

namespace {

constexpr int64_t kProjectionFactor = 8;

Conv2d pointwise(const Scope& scope, int64_t in, int64_t out) {
  return {scope, in, out, ConvOptions::square(1).with_bias()};
}

void add_gamma(const Scope& scope) {
  scope.store.add_parameter(scope.path + ".gamma", {1}, {.kind = Initializer::Kind::kConstant, .a = 0});
}

Value weighted(Value attention, Value gamma, Value x) {
  return add(scale_by(attention, gamma), x);
}

}  // namespace

Value criss_cross_attention(Value x, Value query, Value key, Value value, Value gamma) {
  return weighted(ca_map(softmax(ca_weight(query, key), 1), value), gamma, x);
}

Value se_gate(Value x, Value w1, Value b1, Value w2, Value b2) {
  const Value hidden = relu(conv2d(global_avg_pool(x), as_image(w1), b1));
  return mul_channel(x, sigmoid(conv2d(hidden, as_image(w2), b2)));
}

AttentionProjections::AttentionProjections(const Scope& scope, int64_t channels)
    : gamma_((add_gamma(scope), scope.path + ".gamma")),
      query_(pointwise(scope / "query_conv", channels, channels / kProjectionFactor)),
      key_(pointwise(scope / "key_conv", channels, channels / kProjectionFactor)),
      value_(pointwise(scope / "value_conv", channels, channels)) {}

Value AttentionProjections::gamma(Builder& b) const {
  return b.graph.parameter(gamma_);
}

CrissCrossAttention::CrissCrossAttention(const Scope& scope, int64_t channels)
    : path_(scope.path), projections_(scope, channels) {}

Value CrissCrossAttention::operator()(Builder& b, Value x) const {
  const Value query = projections_.query(b, x), key = projections_.key(b, x), value = projections_.value(b, x);
  const Graph::Scope scope(b.graph, path_);
  return criss_cross_attention(x, query, key, value, projections_.gamma(b));
}

PositionAttention::PositionAttention(const Scope& scope, int64_t channels)
    : path_(scope.path), projections_(scope, channels) {}

Value PositionAttention::operator()(Builder& b, Value x) const {
  const Value query = projections_.query(b, x), key = projections_.key(b, x), value = projections_.value(b, x);
  const Graph::Scope scope(b.graph, path_);
  return weighted(position_attention(query, key, value), projections_.gamma(b), x);
}

ChannelAttention::ChannelAttention(const Scope& scope) : path_(scope.path) {
  add_gamma(scope);
}

Value ChannelAttention::operator()(Builder& b, Value x) const {
  const Graph::Scope scope(b.graph, path_);
  return weighted(channel_attention(x), b.graph.parameter(path_ + ".gamma"), x);
}

Encoding::Encoding(const Scope& scope, int64_t channels, int64_t codewords) : path_(scope.path) {
  const double bound = 1 / std::sqrt(static_cast<double>(codewords * channels));
  scope.store.add_parameter(path_ + ".codewords", {codewords, channels},
                            {.kind = Initializer::Kind::kUniform, .a = bound});
  scope.store.add_parameter(path_ + ".scale", {codewords},
                            {.kind = Initializer::Kind::kUniform, .a = 0.5, .mean = -0.5});
}

Value Encoding::operator()(Builder& b, Value x) const {
  const Graph::Scope scope(b.graph, path_);
  return encnet_encoding(x, b.graph.parameter(path_ + ".codewords"), b.graph.parameter(path_ + ".scale"));
}

SeGate::SeGate(const Scope& scope, int64_t channels, int64_t reduction) : path_(scope.path) {
  register_linear(scope / "fc" / 0, channels, channels / reduction);
  register_linear(scope / "fc" / 2, channels / reduction, channels);
}

Value SeGate::operator()(Builder& b, Value x) const {
  const Graph::Scope scope(b.graph, path_);
  const auto parameter = [&](const char* name) { return b.graph.parameter(path_ + name); };
  return se_gate(x, parameter(".fc.0.weight"), parameter(".fc.0.bias"), parameter(".fc.2.weight"),
                 parameter(".fc.2.bias"));
}

}  // namespace convoy
