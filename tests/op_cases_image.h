// Operator cases of layers on images beyond convolution, batch norm and pooling.
#pragma once
#include "tests/op_case.h"

namespace convoy::test {

inline void add_image_op_cases(std::vector<OpCase>& t) {
  t.push_back(unary("reshape of an image", sym("x", {2, 19, 3, 4}), [](Value x) { return reshape(x, {2, 3, 19, 4}); }));
  t.push_back(unary("reshape of a computed value", sym("x", {2, 19, 3, 4}), [](Value x) {
    return scale(reshape(scale(flatten(x), 2), {19, 24}), 0.5);
  }));

  const auto deconv = [&](const std::string& name, const Shape& x, int64_t out, int64_t k,
                          const ConvTranspose2dOptions& o, bool bias) {
    OpCase c{.name = "conv_transpose2d " + name,
             .inputs = {sym("x", x), sym("weight", {x[1], out / o.geometry.groups, k, k})},
             .build = [o](Graph&, const std::vector<Value>& v) {
               return std::vector<Value>{conv_transpose2d(v[0], v[1], v.size() > 2 ? v[2] : Value{}, o)};
             }};
    if (bias) c.inputs.push_back(sym("bias", {out}));
    t.push_back(std::move(c));
  };
  deconv("2x2 stride 2", {2, 33, 4, 5}, 19, 2, {.geometry = {.stride_h = 2, .stride_w = 2}}, false);
  deconv("3x3 stride 2, output padding, bias", {2, 19, 4, 5}, 33, 3,
         {.geometry = {.stride_h = 2, .stride_w = 2, .pad_h = 1, .pad_w = 1}, .output_pad_h = 1, .output_pad_w = 1},
         true);
  deconv("few channels, dilation 2, unequal strides", {1, 3, 5, 4}, 2, 3,
         {.geometry = {.stride_h = 3, .stride_w = 2, .pad_h = 1, .dilation_h = 2, .dilation_w = 2}, .output_pad_h = 2},
         true);
  deconv("grouped", {1, 32, 5, 4}, 16, 3,
         {.geometry = {.stride_h = 2, .stride_w = 2, .pad_h = 1, .pad_w = 1, .groups = 2}}, true);
  deconv("depthwise", {2, 19, 5, 4}, 19, 4,
         {.geometry = {.stride_h = 2, .stride_w = 2, .pad_h = 1, .pad_w = 1, .groups = 19}}, true);

  const auto weighted = [&](const std::string& name, std::vector<OpInput> inputs,
                            std::function<Value(const std::vector<Value>&)> op) {
    t.push_back(
        {.name = name, .inputs = std::move(inputs), .build = [op = std::move(op)](Graph&, const std::vector<Value>& v) {
           return std::vector<Value>{op(v)};
         }});
  };
  weighted("conv1d", {sym("x", {2, 19, 11}), sym("weight", {33, 19, 3}), sym("bias", {33})},
           [](const auto& v) { return conv1d(v[0], v[1], v[2], {.stride = 2, .pad = 1}); });
  weighted("conv1d 1, no bias", {sym("x", {2, 5, 40}), sym("weight", {7, 5, 1})},
           [](const auto& v) { return conv1d(v[0], v[1], {}); });
  weighted("linear", {sym("x", {4, 33}), sym("weight", {19, 33}), sym("bias", {19})},
           [](const auto& v) { return linear(v[0], v[1], v[2]); });
  weighted("linear, one image, no bias", {sym("x", {1, 5}), sym("weight", {3, 5})},
           [](const auto& v) { return linear(v[0], v[1], {}); });

  for (const auto& [channels, groups] : {std::pair<int64_t, int64_t>{64, 32}, {33, 3}, {19, 1}, {3, 3}})
    weighted("group_norm " + std::to_string(channels) + " in " + std::to_string(groups),
             {sym("x", {2, channels, 5, 7}, 2), between("weight", {channels}, 0.5, 1.5), sym("bias", {channels})},
             [g = groups](const auto& v) { return group_norm(v[0], v[1], v[2], g); });
  weighted("group_norm, many pixels", {sym("x", {1, 6, 24, 25}, 2), between("weight", {6}, 0.5, 1.5), sym("bias", {6})},
           [](const auto& v) { return group_norm(v[0], v[1], v[2], 2); });
  weighted("l2_norm", {between("x", {2, 33, 5, 7}, 0.5, 2), between("weight", {33}, 0.5, 1.5)},
           [](const auto& v) { return l2_norm(v[0], v[1]); });
  weighted("l2_norm, three channels", {between("x", {1, 3, 9, 8}, 0.5, 2), between("weight", {3}, 0.5, 1.5)},
           [](const auto& v) { return l2_norm(v[0], v[1]); });

  weighted("prelu, a slope per channel", {spaced("x", {2, 19, 5, 7}), between("slope", {19}, 0.1, 0.5)},
           [](const auto& v) { return prelu(v[0], v[1]); });
  weighted("prelu, one slope, many pixels", {spaced("x", {2, 33, 24, 25}), between("slope", {1}, 0.1, 0.5)},
           [](const auto& v) { return prelu(v[0], v[1]); });
  t.push_back(unary("leaky_relu", spaced("x", {2, 19, 5, 7}), [](Value x) { return leaky_relu(x, 0.2); }));
  t.push_back(unary("leaky_relu on a matrix", spaced("x", {5, 7}), [](Value x) { return leaky_relu(x); }));
  t.push_back(unary("hardswish", spaced("x", {2, 33, 5, 7}), hardswish));
  t.push_back(unary("hardswish on a matrix", spaced("x", {5, 7}), hardswish));

  for (const bool log : {false, true}) {
    const std::string name = log ? "log_softmax" : "softmax";
    const auto over = [log](int dim) { return [=](Value x) { return log ? log_softmax(x, dim) : softmax(x, dim); }; };
    for (const int64_t channels : {3, 19, 33, 64})
      t.push_back(
          unary(name + " over " + std::to_string(channels) + " channels", sym("x", {2, channels, 5, 7}, 3), over(1)));
    t.push_back(unary(name + " over rows", sym("x", {2, 3, 37}, 3), over(2)));
    t.push_back(unary(name + " over the rows of an image", sym("x", {2, 3, 4, 5}, 3), over(3)));
  }

  for (const bool corners : {true, false})
    t.push_back(unary("resize_bilinear by factors" + std::string(corners ? " corners" : " centres"),
                      sym("x", {2, 19, 11, 9}), [=](Value x) { return resize_bilinear_by(x, 0.5, 1.7, corners); }));
  t.push_back(unary("resize_nearest by factors", sym("x", {2, 19, 11, 9}),
                    [](Value x) { return resize_nearest_by(x, 0.4, 1.7); }));

  t.push_back(binary("max_unpool2d", spaced("x", {2, 19, 8, 10}), sym("z", {2, 19, 4, 5}), [](Value x, Value z) {
    const auto [y, index] = max_pool2d(x, {});
    return max_unpool2d(mul(z, y), index, 8, 10);
  }));
  // Places between pixels, well inside and outside of the image: the bilinear surface has kinks at pixels.
  for (const bool corners : {true, false})
    t.push_back(binary("grid_sample" + std::string(corners ? " corners" : " centres"), sym("x", {2, 19, 4, 4}),
                       cycle("grid", {2, 3, 4, 2},
                             corners ? std::vector<float>{-0.6f, -0.1f, 0.2f, 0.7f, 1.4f, -1.25f}
                                     : std::vector<float>{-0.5f, 0.05f, 0.55f, -0.45f, 1.55f, 0.f}),
                       [=](Value x, Value grid) { return grid_sample(x, grid, corners); }));
  t.push_back(binary("grid_sample, nearest", sym("x", {1, 33, 6, 7}), constant(sym("grid", {1, 5, 3, 2}, 1.1)),
                     [](Value x, Value grid) { return grid_sample(x, grid, false, true); }));

  t.push_back(unary("pixel_shuffle", sym("x", {2, 36, 3, 4}), [](Value x) { return pixel_shuffle(x, 2); }));
  t.push_back(unary("pixel_shuffle by 3", sym("x", {1, 171, 2, 3}), [](Value x) { return pixel_shuffle(x, 3); }));
  weighted("dupsampling", {sym("x", {2, 33, 3, 4}), sym("weight", {76, 33, 1, 1})},
           [](const auto& v) { return dupsampling(v[0], v[1], 2); });
  t.push_back(unary("channel_shuffle", sym("x", {2, 38, 5, 3}), [](Value x) { return channel_shuffle(x, 2); }));
  t.push_back(unary("channel_shuffle of 64", sym("x", {1, 64, 5, 3}), [](Value x) { return channel_shuffle(x, 4); }));
}

}  // namespace convoy::test
