// One entry per operator case: inputs and how the operator is built. Every check of operators (finite differences,
// agreement of implementations, threads, slices) and every bench of them reads this table.
#pragma once
#include "tests/op_case.h"
#include "tests/op_cases_attention.h"
#include "tests/op_cases_image.h"
#include "tests/op_cases_losses.h"

namespace convoy::test {

namespace detail {

using Values = std::vector<Value>;

inline OpCase conv(const std::string& name, const Shape& x, int64_t out, int64_t kh, int64_t kw,
                   const Conv2dOptions& o = {}, bool bias = false) {
  OpCase c{
      .name = "conv2d " + name,
      .inputs = {sym("x", x), sym("weight", {out, x[1] / o.groups, kh, kw})},
      .build = [o](Graph&, const Values& v) { return Values{conv2d(v[0], v[1], v.size() > 2 ? v[2] : Value{}, o)}; }};
  if (bias) c.inputs.push_back(sym("bias", {out}));
  return c;
}

struct BnCase {
  bool batch = true;
  bool residual = false;
  Activation act = Activation::kNone;
};

// Weights are small and biases far from the activations' kinks, so that no output crosses one.
inline OpCase bn(const std::string& name, const Shape& x, const BnCase& bn) {
  const Shape channels{x[1]};
  OpCase c{.name = "bn_apply " + name,
           .inputs = {sym("x", x, 2), between("weight", channels, 0.1, 0.4), cycle("bias", channels, {3, -3, 9})},
           .build = [bn](Graph&, const Values& v) {
             Value mean, var;
             if (bn.batch)
               std::tie(mean, var) = bn_stats(v[0]);
             else
               mean = v[3], var = v[4];
             Value y = bn_apply(v[0], mean, var, v[1], v[2], 1e-5, bn.batch);
             if (bn.residual) y = add(y, v.back());
             return Values{bn.act == Activation::kNone ? y : activation(y, bn.act)};
           }};
  if (!bn.batch) {
    c.inputs.push_back(constant(sym("mean", channels, 0.5)));
    c.inputs.push_back(constant(between("var", channels, 0.75, 1.25)));
  }
  if (bn.residual) c.inputs.push_back(sym("residual", x, 0.5));
  return c;
}

/// Cross entropy of logits, behind a resize where the labels are larger.
inline OpCase ce(const std::string& name, const Shape& logits, int64_t h, int64_t w, int64_t ignore, bool weighted,
                 bool align_corners = true) {
  const int64_t classes = logits[1];
  OpCase c{.name = name,
           .inputs = {sym("logits", logits, 3), labels({logits[0], h, w}, classes, ignore)},
           .build = [=](Graph&, const Values& v) {
             const Value weight = weighted ? v[2] : Value{};
             const Value full = logits[2] == h && logits[3] == w ? v[0] : resize_bilinear(v[0], h, w, align_corners);
             const Value normalizer = label_weight_sum(v[1], classes, ignore, weight);
             return Values{softmax_cross_entropy(full, v[1], normalizer, ignore, weight)};
           }};
  if (weighted) c.inputs.push_back(constant(between("class_weight", {classes}, 0.5, 1.5)));
  return c;
}

}  // namespace detail

/// The table. Channels are 1, 3, 19, 33, 64 and the like: less than a block, no whole number of them, several.
inline std::vector<OpCase> op_cases() {
  using namespace detail;
  std::vector<OpCase> t;
  t.push_back(conv("3x3", {2, 19, 7, 9}, 33, 3, 3, {.pad_h = 1, .pad_w = 1}));
  t.push_back(conv("3x3 bias", {2, 64, 6, 5}, 19, 3, 3, {.pad_h = 1, .pad_w = 1}, true));
  t.push_back(conv("image stem 3x3 stride 2", {2, 3, 11, 13}, 32, 3, 3, {.stride_h = 2, .stride_w = 2}));
  t.push_back(conv("image stem 7x7 stride 2", {2, 3, 15, 18}, 64, 7, 7,
                   {.stride_h = 2, .stride_w = 2, .pad_h = 3, .pad_w = 3}));
  t.push_back(conv("one channel", {1, 1, 6, 7}, 1, 3, 3, {.pad_h = 1, .pad_w = 1}, true));
  t.push_back(conv("1x1", {2, 33, 5, 6}, 64, 1, 1));
  t.push_back(conv("1x1 bias, 1x1 map", {2, 64, 1, 1}, 19, 1, 1, {}, true));
  t.push_back(conv("1x1 stride 2", {2, 33, 7, 9}, 19, 1, 1, {.stride_h = 2, .stride_w = 2}, true));
  t.push_back(conv("3x3 on a 1x1 map", {3, 19, 1, 1}, 33, 3, 3, {.pad_h = 1, .pad_w = 1}));
  t.push_back(conv("3x3 stride 2", {1, 33, 8, 7}, 48, 3, 3, {.stride_h = 2, .stride_w = 2, .pad_h = 1, .pad_w = 1}));
  t.push_back(conv("3x3 dilation 2", {1, 19, 9, 10}, 16, 3, 3,
                   {.pad_h = 2, .pad_w = 2, .dilation_h = 2, .dilation_w = 2}, true));
  t.push_back(conv("dilation beyond the map", {1, 16, 5, 6}, 16, 3, 3,
                   {.pad_h = 12, .pad_w = 12, .dilation_h = 12, .dilation_w = 12}));
  t.push_back(conv("1x3", {1, 19, 5, 8}, 19, 1, 3, {.pad_w = 1}));
  t.push_back(conv("unequal strides", {1, 19, 9, 8}, 33, 3, 5, {.stride_h = 2, .stride_w = 1, .pad_h = 1, .pad_w = 2}));
  t.push_back(conv("grouped", {2, 32, 6, 7}, 64, 3, 3, {.pad_h = 1, .pad_w = 1, .groups = 2}, true));
  t.push_back(conv("grouped, odd channels", {1, 6, 7, 6}, 4, 3, 3, {.pad_h = 1, .pad_w = 1, .groups = 2}, true));
  t.push_back(conv("depthwise", {2, 33, 8, 9}, 33, 3, 3, {.pad_h = 1, .pad_w = 1, .groups = 33}));
  t.push_back(conv("depthwise stride 2 bias", {2, 19, 9, 8}, 19, 3, 3,
                   {.stride_h = 2, .stride_w = 2, .pad_h = 1, .pad_w = 1, .groups = 19}, true));
  t.push_back(conv("depthwise dilation 4", {1, 64, 11, 10}, 64, 3, 3,
                   {.pad_h = 4, .pad_w = 4, .dilation_h = 4, .dilation_w = 4, .groups = 64}));
  t.push_back(conv("depthwise three channels", {1, 3, 6, 7}, 3, 3, 3, {.pad_h = 1, .pad_w = 1, .groups = 3}));
  t.push_back(conv("depthwise on a 1x1 map", {2, 33, 1, 1}, 33, 3, 3, {.pad_h = 1, .pad_w = 1, .groups = 33}));
  t.push_back(conv("depthwise with multiplier 2", {1, 19, 7, 8}, 38, 3, 3, {.pad_h = 1, .pad_w = 1, .groups = 19}));

  t.push_back(bn("batch statistics", {2, 19, 5, 7}, {}));
  t.push_back(bn("batch statistics, 1x1 map", {4, 33, 1, 1}, {}));
  t.push_back(bn("batch statistics, one channel", {2, 1, 9, 8}, {}));
  t.push_back(bn("batch statistics, relu", {2, 33, 6, 5}, {.act = Activation::kRelu}));
  t.push_back(bn("batch statistics, relu6", {2, 19, 6, 5}, {.act = Activation::kRelu6}));
  t.push_back(bn("batch statistics, sigmoid", {2, 19, 6, 5}, {.act = Activation::kSigmoid}));
  t.push_back(bn("batch statistics, residual", {2, 64, 4, 5}, {.residual = true}));
  t.push_back(bn("batch statistics, residual, relu", {2, 19, 4, 5}, {.residual = true, .act = Activation::kRelu}));
  t.push_back(bn("batch statistics, residual, relu6", {3, 3, 4, 5}, {.residual = true, .act = Activation::kRelu6}));
  t.push_back(bn("frozen", {2, 19, 5, 7}, {.batch = false}));
  t.push_back(bn("frozen, relu6", {1, 33, 5, 7}, {.batch = false, .act = Activation::kRelu6}));
  t.push_back(
      bn("frozen, residual, relu", {1, 64, 5, 3}, {.batch = false, .residual = true, .act = Activation::kRelu}));

  t.push_back(unary("activation relu", spaced("x", {2, 19, 5, 7}), relu));
  t.push_back(unary("activation relu6", spaced("x", {2, 33, 5, 7}), relu6));
  t.push_back(unary("activation sigmoid", sym("x", {2, 3, 5, 7}, 4), sigmoid));
  t.push_back(unary("activation relu on a matrix", spaced("x", {5, 7}), relu));
  t.push_back(binary("add", sym("a", {2, 19, 5, 7}), sym("b", {2, 19, 5, 7}), add));
  t.push_back(unary("add x to itself", sym("x", {1, 33, 3, 4}), [](Value x) { return add(x, x); }));
  t.push_back(binary("mul", sym("a", {2, 33, 3, 4}), sym("b", {2, 33, 3, 4}), mul));
  t.push_back(unary("mul x by itself", sym("x", {1, 19, 3, 4}), [](Value x) { return mul(x, x); }));
  t.push_back(unary("scale", sym("x", {2, 19, 5, 7}), [](Value x) { return scale(x, -1.75); }));
  t.push_back(binary("scale_by", sym("x", {2, 19, 5, 7}), between("factor", {}, 0.5, 1.5), scale_by));
  t.push_back(
      binary("scale_by, a factor of rank 1", sym("x", {2, 3, 5, 7}), between("factor", {1}, 0.5, 1.5), scale_by));
  t.push_back(binary("mul_channel", sym("x", {2, 33, 5, 7}), sym("gate", {2, 33, 1, 1}), mul_channel));
  t.push_back(binary("mul_channel on a 1x1 map", sym("x", {2, 19, 1, 1}), sym("gate", {2, 19, 1, 1}), mul_channel));
  t.push_back(binary("dot", sym("a", {2, 19, 5, 7}), sym("b", {2, 19, 5, 7}), dot));

  const auto max = [](const PoolOptions& o) { return [o](Value x) { return max_pool2d(x, o).first; }; };
  const auto avg = [](const PoolOptions& o) { return [o](Value x) { return avg_pool2d(x, o); }; };
  const PoolOptions k3s2p1{.kernel_h = 3, .kernel_w = 3, .stride_h = 2, .stride_w = 2, .pad_h = 1, .pad_w = 1};
  PoolOptions ceil_exclusive = k3s2p1;
  ceil_exclusive.ceil_mode = true;
  ceil_exclusive.count_include_pad = false;
  t.push_back(unary("max_pool2d 3x3 stride 2", spaced("x", {2, 19, 9, 12}), max(k3s2p1)));
  t.push_back(unary("max_pool2d 2x2", spaced("x", {1, 33, 7, 8}), max({})));
  t.push_back(unary("max_pool2d 2x2 ceil", spaced("x", {1, 3, 7, 9}), max({.ceil_mode = true})));
  t.push_back(unary("avg_pool2d 3x3 stride 2", sym("x", {2, 19, 9, 12}), avg(k3s2p1)));
  t.push_back(unary("avg_pool2d ceil, padding not counted", sym("x", {1, 33, 8, 11}), avg(ceil_exclusive)));
  for (const auto& [h, w] : {std::pair<int64_t, int64_t>{1, 1}, {2, 2}, {3, 3}, {6, 6}, {5, 7}})
    t.push_back(unary("adaptive_avg_pool2d " + std::to_string(h) + "x" + std::to_string(w),
                      sym("x", {2, h == 6 ? 64 : 19, 7, 11}),
                      [h, w](Value x) { return adaptive_avg_pool2d(x, h, w); }));
  t.push_back(
      unary("adaptive_avg_pool2d up", sym("x", {2, 3, 3, 4}), [](Value x) { return adaptive_avg_pool2d(x, 6, 6); }));

  for (const bool corners : {true, false}) {
    const std::string mode = corners ? " corners" : " centres";
    const auto to = [corners](int64_t h, int64_t w) {
      return [=](Value x) { return resize_bilinear(x, h, w, corners); };
    };
    t.push_back(unary("resize_bilinear up" + mode, sym("x", {2, 19, 5, 7}), to(13, 17)));
    t.push_back(unary("resize_bilinear down" + mode, sym("x", {1, 33, 13, 17}), to(5, 7)));
    t.push_back(unary("resize_bilinear x4" + mode, sym("x", {1, 64, 3, 5}), to(12, 20)));
    t.push_back(unary("resize_bilinear from 1x1" + mode, sym("x", {2, 3, 1, 1}), to(4, 5)));
    t.push_back(unary("resize_bilinear to 1x1" + mode, sym("x", {1, 1, 6, 5}), to(1, 1)));
    t.push_back(unary("resize_bilinear same" + mode, sym("x", {1, 19, 5, 6}), to(5, 6)));
  }
  t.push_back(unary("resize_nearest up", sym("x", {2, 19, 5, 7}), [](Value x) { return resize_nearest(x, 11, 13); }));
  t.push_back(unary("resize_nearest down", sym("x", {1, 33, 11, 13}), [](Value x) { return resize_nearest(x, 4, 5); }));

  const auto join = [](Graph&, const Values& v) { return Values{concat(v)}; };
  t.push_back({.name = "concat aligned",
               .inputs = {sym("a", {2, 32, 5, 7}), sym("b", {2, 16, 5, 7}), sym("c", {2, 19, 5, 7})},
               .build = join});
  t.push_back({.name = "concat unaligned",
               .inputs = {sym("a", {2, 3, 5, 7}), sym("b", {2, 19, 5, 7}), sym("c", {2, 1, 5, 7})},
               .build = join});
  t.push_back({.name = "concat of a value with itself",
               .inputs = {sym("a", {1, 16, 3, 4})},
               .build = [](Graph&, const Values& v) {
                 return Values{concat({v[0], v[0]})};
               }});
  t.push_back({.name = "concat of concats, parts computed",
               .inputs = {sym("a", {1, 16, 3, 4}), sym("b", {1, 32, 3, 4}), sym("c", {1, 33, 3, 4})},
               .build = [](Graph&, const Values& v) {
                 const Value inner = concat({scale(v[0], 2), scale(v[1], 3)});
                 return Values{scale(concat({inner, scale(v[2], 0.5)}), 0.7)};
               }});
  const auto slice = [](int64_t first, int64_t count) {
    return [=](Value x) { return slice_channels(x, first, count); };
  };
  t.push_back(unary("slice_channels aligned", sym("x", {2, 64, 5, 3}), slice(16, 32)));
  t.push_back(unary("slice_channels to the end", sym("x", {2, 35, 5, 3}), slice(16, 19)));
  t.push_back(unary("slice_channels aligned, part of a block", sym("x", {2, 64, 5, 3}), slice(16, 3)));
  t.push_back(unary("slice_channels unaligned", sym("x", {2, 33, 5, 3}), slice(5, 19)));
  t.push_back(unary("slice_channels of a computed value, then a convolution", sym("x", {1, 64, 4, 5}), [](Value x) {
    const Value part = slice_channels(scale(x, 2), 16, 5);
    return avg_pool2d(add(part, scale(part, 0.5)), {});
  }));

  t.push_back(unary("dropout", sym("x", {2, 19, 5, 7}), [](Value x) { return dropout(x, 0.3); }));
  t.push_back(unary("dropout of channels", sym("x", {2, 33, 3, 4}), [](Value x) { return dropout(x, 0.5, true); }));

  t.push_back(ce("softmax_ce", {2, 19, 7, 9}, 7, 9, -1, false));
  t.push_back(ce("softmax_ce, class weights, ignore 255", {2, 19, 7, 9}, 7, 9, 255, true));
  t.push_back(ce("softmax_ce, two classes", {1, 2, 5, 6}, 5, 6, -1, false));
  t.push_back(ce("softmax_ce, 33 classes on a 1x1 map", {2, 33, 1, 1}, 1, 1, -1, true));
  t.push_back(ce("upsample_softmax_ce corners", {2, 19, 5, 6}, 17, 23, -1, false));
  t.push_back(ce("upsample_softmax_ce centres, class weights, ignore 255", {1, 19, 4, 5}, 16, 20, 255, true, false));
  t.push_back(ce("upsample_softmax_ce from 1x1, 33 classes", {2, 33, 1, 1}, 6, 7, -1, true));
  add_image_op_cases(t);
  add_attention_op_cases(t);
  add_loss_op_cases(t);
  return t;
}

}  // namespace convoy::test
