#include "layers/module.h"

#include <cmath>
#include <tuple>

#include "layers/initializers.h"

namespace convoy {

ConvOptions ConvOptions::square(int64_t kernel, int64_t stride, std::optional<int64_t> pad, int64_t dilation,
                                int64_t groups) {
  const int64_t p = pad.value_or(dilation * (kernel - 1) / 2);
  return {.kernel_h = kernel,
          .kernel_w = kernel,
          .geometry = {.stride_h = stride,
                       .stride_w = stride,
                       .pad_h = p,
                       .pad_w = p,
                       .dilation_h = dilation,
                       .dilation_w = dilation,
                       .groups = groups}};
}

ConvOptions ConvOptions::with_bias() const {
  ConvOptions o = *this;
  o.bias = true;
  return o;
}

Conv2d::Conv2d(const Scope& scope, int64_t in, int64_t out, const ConvOptions& options)
    : path_(scope.path), options_(options) {
  const int64_t area = options.kernel_h * options.kernel_w;
  const int64_t fan_in = in / options.geometry.groups * area, fan_out = out * area;  // PyTorch's fan-out ignores groups
  const Initializer weight =
      scope.conv_init == ConvInit::kKaimingFanOut
          ? Initializer{.kind = Initializer::Kind::kNormal, .a = std::sqrt(2.0 / static_cast<double>(fan_out))}
          : uniform_by_fan_in(fan_in);
  scope.store.add_parameter(path_ + ".weight", {out, in / options.geometry.groups, options.kernel_h, options.kernel_w},
                            weight);
  if (options.bias) scope.store.add_parameter(path_ + ".bias", {out}, uniform_by_fan_in(fan_in));
}

Value Conv2d::operator()(Builder& b, Value x) const {
  const Graph::Scope scope(b.graph, path_);
  return conv2d(x, b.graph.parameter(path_ + ".weight"), options_.bias ? b.graph.parameter(path_ + ".bias") : Value{},
                options_.geometry);
}

BatchNorm2d::BatchNorm2d(const Scope& scope, int64_t channels)
    : path_(scope.path), eps_(scope.bn_eps), momentum_(scope.bn_momentum) {
  scope.store.add_parameter(path_ + ".weight", {channels}, constant_init(1));
  scope.store.add_parameter(path_ + ".bias", {channels}, constant_init(0));
  scope.store.add_buffer(path_ + ".running_mean", Tensor::zeros(DType::kF32, {channels}));
  scope.store.add_buffer(path_ + ".running_var",
                         Tensor::of({channels}, std::vector<float>(static_cast<size_t>(channels), 1.0f)));
  scope.store.add_buffer(path_ + ".num_batches_tracked", Tensor::zeros(DType::kI64, {}));
}

Value BatchNorm2d::operator()(Builder& b, Value x) const {
  const Graph::Scope scope(b.graph, path_);
  const Value weight = b.graph.parameter(path_ + ".weight"), bias = b.graph.parameter(path_ + ".bias");
  const Value running_mean = b.graph.buffer(path_ + ".running_mean"),
              running_var = b.graph.buffer(path_ + ".running_var");
  if (b.mode != Mode::kTrain) return bn_apply(x, running_mean, running_var, weight, bias, eps_, false);
  auto [mean, var] = bn_stats(x);
  Value moved_mean = mean, moved_var = var;  // what running statistics move towards
  if (const GlobalBatch& batch = b.graph.global_batch(); batch.shared()) switch (batch.statistics) {
      case GlobalBatch::Statistics::kAll:
        std::tie(mean, var) = sync_bn_stats(x, mean, var);
        moved_mean = mean, moved_var = var;
        break;
      case GlobalBatch::Statistics::kLane: {
        const double lanes = static_cast<double>(batch.images) / static_cast<double>(x.shape()[0]);
        const std::vector<Value> means = sum_over_lanes({mean, var}, 1 / lanes);
        moved_mean = means[0], moved_var = means[1];
        break;
      }
      case GlobalBatch::Statistics::kRank:
        std::tie(moved_mean, moved_var) = of_first_rank(mean, var);
    }
  bn_update_running(x, moved_mean, moved_var, running_mean, running_var, b.graph.buffer(path_ + ".num_batches_tracked"),
                    momentum_);
  return bn_apply(x, mean, var, weight, bias, eps_, true);
}

void register_linear(const Scope& scope, int64_t in, int64_t out) {
  scope.store.add_parameter(scope.path + ".weight", {out, in}, uniform_by_fan_in(in));
  scope.store.add_parameter(scope.path + ".bias", {out}, uniform_by_fan_in(in));
}

ConvBnAct::ConvBnAct(const Scope& scope, int64_t in, int64_t out, const ConvOptions& options, Activation act)
    : conv_(scope / "conv", in, out, options), bn_(scope / "bn", out), act_(act) {}

Value ConvBnAct::operator()(Builder& b, Value x) const {
  const Value y = bn_(b, conv_(b, x));
  return act_ == Activation::kNone ? y : activation(y, act_);
}

SeparableConv::SeparableConv(const Scope& scope, int64_t in, int64_t out, const SeparableConvOptions& options)
    : relu_first_(options.relu_first),
      depthwise_(scope / "block" / "depthwise", in, in,
                 ConvOptions::square(3, options.stride, options.dilation, options.dilation, in)),
      bn_depth_(scope / "block" / "bn_depth", in),
      pointwise_(scope / "block" / "pointwise", in, out, ConvOptions::square(1)),
      bn_point_(scope / "block" / "bn_point", out) {}

Value SeparableConv::operator()(Builder& b, Value x) const {
  if (relu_first_) return bn_point_(b, pointwise_(b, bn_depth_(b, depthwise_(b, relu(x)))));
  x = relu(bn_depth_(b, depthwise_(b, x)));
  return relu(bn_point_(b, pointwise_(b, x)));
}

// The reference keeps the expansion, the depthwise convolution, the projection and its norm in one list, "conv".
InvertedResidual::InvertedResidual(const Scope& scope, int64_t in, int64_t out, int64_t stride, int64_t expand,
                                   int64_t dilation)
    : shortcut_(stride == 1 && in == out),
      convs_([&] {
        const int64_t hidden = in * expand;
        std::vector<ConvBnAct> convs;
        if (expand != 1) convs.emplace_back(scope / "conv" / 0, in, hidden, ConvOptions::square(1), Activation::kRelu6);
        convs.emplace_back(scope / "conv" / static_cast<int>(convs.size()), hidden, hidden,
                           ConvOptions::square(3, stride, dilation, dilation, hidden), Activation::kRelu6);
        return convs;
      }()),
      project_(scope / "conv" / static_cast<int>(convs_.size()), in * expand, out, ConvOptions::square(1)),
      project_bn_(scope / "conv" / static_cast<int>(convs_.size() + 1), out) {}

Value InvertedResidual::operator()(Builder& b, Value x) const {
  Value y = x;
  for (const ConvBnAct& conv : convs_) y = conv(b, y);
  y = project_bn_(b, project_(b, y));
  return shortcut_ ? add(x, y) : y;
}

Value dropout(Builder& b, const std::string& path, Value x, double p, bool whole_channels) {
  if (b.mode != Mode::kTrain || !b.dropout || p == 0) return x;
  const Graph::Scope scope(b.graph, path);
  return dropout(x, p, whole_channels);
}

Value resize_to(Value x, Value like, bool align_corners) {
  return resize_bilinear(x, like.shape()[2], like.shape()[3], align_corners);
}

}  // namespace convoy
