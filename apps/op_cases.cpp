#include "apps/op_cases.h"

#include "engine/ops.h"

namespace convoy {

namespace {

using Values = std::vector<Value>;
constexpr int64_t kClasses = 19, kIgnore = -1;

/// A convolution of the map to `out` channels, k x k.
BenchmarkCase conv(const std::string& name, int64_t out, int64_t k, const Conv2dOptions& options, bool bias = false) {
  return {name, [=](CaseBuilder& b) {
            const Value x = b.map();
            const Value weight = b.input({out, x.shape()[1] / options.groups, k, k});
            return Values{conv2d(x, weight, bias ? b.input({out}) : Value{}, options)};
          }};
}

BenchmarkCase unary(const std::string& name, std::function<Value(Value)> op) {
  return {name, [op = std::move(op)](CaseBuilder& b) { return Values{op(b.map())}; }};
}

BenchmarkCase batch_norm(const std::string& name, bool residual, bool frozen) {
  return {name,
          [=](CaseBuilder& b) {
            const Value x = b.map();
            const Shape channels{x.shape()[1]};
            Value mean, var;
            if (frozen)
              mean = b.input(channels), var = b.input(channels);
            else
              std::tie(mean, var) = bn_stats(x);
            const Value y = bn_apply(x, mean, var, b.input(channels), b.input(channels), 1e-5, !frozen);
            return Values{relu(residual ? add(y, b.map()) : y)};
          },
          !frozen};
}

Value target(CaseBuilder& b, int64_t factor) {
  return b.input({b.shape()[0], b.shape()[2] * factor, b.shape()[3] * factor}, DType::kI32);
}

/// A loss of logits of 19 classes, at the labels' size or `factor` times smaller.
BenchmarkCase loss(const std::string& name, int64_t factor, std::function<Value(Value logits, Value target)> of) {
  return {name, [=](CaseBuilder& b) {
            const Value logits = b.map(kClasses);
            const Value t = target(b, factor);
            return Values{of(factor == 1 ? logits : resize_bilinear(logits, t.shape()[1], t.shape()[2]), t)};
          }};
}

void add_image_cases(std::vector<BenchmarkCase>& cases) {
  cases.push_back(conv("convolution 3x3", 64, 3, {.pad_h = 1, .pad_w = 1}));
  cases.push_back(conv("convolution 3x3, stride 2", 128, 3, {.stride_h = 2, .stride_w = 2, .pad_h = 1, .pad_w = 1}));
  cases.push_back(
      conv("convolution 3x3, dilation 2", 64, 3, {.pad_h = 2, .pad_w = 2, .dilation_h = 2, .dilation_w = 2}));
  cases.push_back(conv("convolution 1x1 with bias", 128, 1, {}, true));
  cases.push_back(conv("grouped convolution", 64, 3, {.pad_h = 1, .pad_w = 1, .groups = 4}));
  cases.push_back(conv("depthwise 3x3", 64, 3, {.pad_h = 1, .pad_w = 1, .groups = 64}));
  cases.push_back(
      conv("depthwise 5x5, stride 2", 64, 5, {.stride_h = 2, .stride_w = 2, .pad_h = 2, .pad_w = 2, .groups = 64}));
  cases.push_back(batch_norm("batch norm, relu", false, false));
  cases.push_back(batch_norm("batch norm, residual, relu", true, false));
  cases.push_back(batch_norm("frozen batch norm, relu", false, true));
  cases.push_back(
      {"group norm", [](CaseBuilder& b) { return Values{group_norm(b.map(), b.input({64}), b.input({64}), 32)}; }});
  cases.push_back({"l2 norm", [](CaseBuilder& b) { return Values{l2_norm(b.map(), b.input({64}))}; }});
  cases.push_back(unary("relu", relu));
  cases.push_back(unary("relu6", relu6));
  cases.push_back(unary("sigmoid", sigmoid));
  cases.push_back(unary("leaky relu", [](Value x) { return leaky_relu(x); }));
  cases.push_back(unary("hardswish", hardswish));
  cases.push_back({"prelu", [](CaseBuilder& b) { return Values{prelu(b.map(), b.input({64}))}; }});
  cases.push_back(unary("softmax", [](Value x) { return softmax(x, 1); }));
  cases.push_back({"add", [](CaseBuilder& b) { return Values{add(b.map(), b.map())}; }});
  cases.push_back({"mul", [](CaseBuilder& b) { return Values{mul(b.map(), b.map())}; }});
  cases.push_back(unary("scale", [](Value x) { return scale(x, 0.5); }));
  cases.push_back({"channel gate", [](CaseBuilder& b) {
                     return Values{mul_channel(b.map(), b.input({b.shape()[0], 64, 1, 1}))};
                   }});
  const PoolOptions k3s2{.kernel_h = 3, .kernel_w = 3, .stride_h = 2, .stride_w = 2, .pad_h = 1, .pad_w = 1};
  cases.push_back(unary("max pool 3x3, stride 2", [=](Value x) { return max_pool2d(x, k3s2).first; }));
  cases.push_back(unary("average pool 3x3, stride 2", [=](Value x) { return avg_pool2d(x, k3s2); }));
  cases.push_back(unary("global average pool", global_avg_pool));
  cases.push_back(unary("adaptive average pool 6x6", [](Value x) { return adaptive_avg_pool2d(x, 6, 6); }));
  cases.push_back(unary("max unpool 2x2", [](Value x) {
    const auto [y, index] = max_pool2d(x, {});
    return max_unpool2d(y, index, x.shape()[2], x.shape()[3]);
  }));
  cases.push_back(
      unary("bilinear resize x2", [](Value x) { return resize_bilinear(x, x.shape()[2] * 2, x.shape()[3] * 2); }));
  cases.push_back(
      unary("nearest resize x2", [](Value x) { return resize_nearest(x, x.shape()[2] * 2, x.shape()[3] * 2); }));
  cases.push_back({"grid sample", [](CaseBuilder& b) {
                     return Values{grid_sample(b.map(), b.input({b.shape()[0], b.shape()[2], b.shape()[3], 2}), true)};
                   }});
  cases.push_back(unary("pixel shuffle", [](Value x) { return pixel_shuffle(x, 2); }));
  cases.push_back(unary("channel shuffle", [](Value x) { return channel_shuffle(x, 4); }));
  cases.push_back({"concat, unaligned", [](CaseBuilder& b) { return Values{concat({b.map(19), b.map()})}; }});
  cases.push_back(unary("slice, unaligned", [](Value x) { return scale(slice_channels(x, 5, 19), 0.5); }));
  cases.push_back(unary("dropout", [](Value x) { return dropout(x, 0.1); }));
}

void add_attention_cases(std::vector<BenchmarkCase>& cases) {
  cases.push_back({"criss-cross attention",
                   [](CaseBuilder& b) { return Values{ca_map(ca_weight(b.map(8, 2), b.map(8, 2)), b.map(0, 2))}; }});
  cases.push_back({"position attention",
                   [](CaseBuilder& b) { return Values{position_attention(b.map(8, 4), b.map(8, 4), b.map(0, 4))}; }});
  cases.push_back({"channel attention", [](CaseBuilder& b) { return Values{channel_attention(b.map(0, 4))}; }});
  cases.push_back({"encoding", [](CaseBuilder& b) {
                     return Values{encnet_encoding(b.map(0, 4), b.input({32, 64}), b.input({32}))};
                   }});
}

void add_loss_cases(std::vector<BenchmarkCase>& cases) {
  const auto cross_entropy = [](Value x, Value t) {
    return softmax_cross_entropy(x, t, label_weight_sum(t, kClasses, kIgnore), kIgnore);
  };
  cases.push_back(loss("cross entropy", 1, cross_entropy));
  cases.push_back(loss("cross entropy behind a resize x4", 4, cross_entropy));
  cases.push_back(loss("focal loss", 1, [](Value x, Value t) {
    return focal_cross_entropy(x, t, label_weight_sum(t, kClasses, kIgnore), {}, kIgnore);
  }));
  cases.push_back(loss("dice loss", 1, [](Value x, Value t) { return dice_loss(x, t, kIgnore); }));
  cases.push_back(loss("Lovasz loss", 1, [](Value x, Value t) { return lovasz_softmax_loss(x, t, kIgnore); }));
  cases.push_back({"probability of the label",
                   [](CaseBuilder& b) { return Values{label_probability(b.map(kClasses), target(b, 1), kIgnore)}; },
                   false});
  cases.push_back({"binary cross entropy", [](CaseBuilder& b) {
                     const Shape s{b.shape()[0], kClasses};
                     return Values{bce_with_logits(b.input(s), b.input(s), 1)};
                   }});
  cases.push_back({"smooth L1", [](CaseBuilder& b) {
                     const Shape s{b.shape()[0], 8732, 4};
                     return Values{smooth_l1(b.input(s), b.input(s), 1, 1)};
                   }});
  cases.push_back(
      {"labels by class", [](CaseBuilder& b) { return Values{label_counts(target(b, 1), kClasses)}; }, false});
}

}  // namespace

Value CaseBuilder::input(const Shape& shape, DType dtype) {
  const Value v = graph_.input("input" + std::to_string(inputs_++), dtype, shape);
  if (dtype == DType::kF32) wanted_.push_back(v);
  return v;
}

Value CaseBuilder::map(int64_t channels, int64_t divisor) {
  const Shape s{map_[0], channels ? channels : map_[1], std::max<int64_t>(1, map_[2] / divisor),
                std::max<int64_t>(1, map_[3] / divisor)};
  return image(s);
}

Value CaseBuilder::image(const Shape& shape) {
  // A pooling of single pixels stands for the layer in front.
  return avg_pool2d(input(shape), {.kernel_h = 1, .kernel_w = 1, .stride_h = 1, .stride_w = 1});
}

const std::vector<BenchmarkCase>& benchmark_cases() {
  static const std::vector<BenchmarkCase> cases = [] {
    std::vector<BenchmarkCase> all;
    add_image_cases(all);
    add_attention_cases(all);
    add_loss_cases(all);
    return all;
  }();
  return cases;
}

}  // namespace convoy
