// Convolution in double precision on plain NCHW arrays, straight from the definition.
#pragma once
#include <vector>

#include "kernels/conv2d.h"

namespace convoy::test {

struct ConvCase {
  int64_t n, c, h, w, out_c, kernel_h, kernel_w;
  Conv2dParams p;
  int64_t out_h() const { return conv_extent(h, kernel_h, p.stride_h, p.pad_h, p.dilation_h); }
  int64_t out_w() const { return conv_extent(w, kernel_w, p.stride_w, p.pad_w, p.dilation_w); }
  int64_t weight_count() const { return out_c * (c / p.groups) * kernel_h * kernel_w; }
};

/// Calls f(y index, x index, w index) for every product of the convolution.
template <class F>
void for_each_product(const ConvCase& k, F f) {
  const int64_t in_per_group = k.c / k.p.groups, out_per_group = k.out_c / k.p.groups;
  const int64_t oh_count = k.out_h(), ow_count = k.out_w();
  for (int64_t n = 0; n < k.n; ++n)
    for (int64_t o = 0; o < k.out_c; ++o)
      for (int64_t oh = 0; oh < oh_count; ++oh)
        for (int64_t ow = 0; ow < ow_count; ++ow)
          for (int64_t i = 0; i < in_per_group; ++i)
            for (int64_t kh = 0; kh < k.kernel_h; ++kh)
              for (int64_t kw = 0; kw < k.kernel_w; ++kw) {
                const int64_t ih = oh * k.p.stride_h - k.p.pad_h + kh * k.p.dilation_h;
                const int64_t iw = ow * k.p.stride_w - k.p.pad_w + kw * k.p.dilation_w;
                if (ih < 0 || ih >= k.h || iw < 0 || iw >= k.w) continue;
                const int64_t ci = o / out_per_group * in_per_group + i;
                f(static_cast<size_t>(((n * k.out_c + o) * oh_count + oh) * ow_count + ow),
                  static_cast<size_t>(((n * k.c + ci) * k.h + ih) * k.w + iw),
                  static_cast<size_t>(((o * in_per_group + i) * k.kernel_h + kh) * k.kernel_w + kw));
              }
}

struct ConvGradients {
  std::vector<double> y, dx, dw, dbias;
};

inline ConvGradients conv_reference(const ConvCase& k, const std::vector<float>& x, const std::vector<float>& w,
                                    const std::vector<float>& bias, const std::vector<float>& dy) {
  ConvGradients r;
  r.y.assign(dy.size(), 0);
  r.dx.assign(x.size(), 0);
  r.dw.assign(w.size(), 0);
  r.dbias.assign(static_cast<size_t>(k.out_c), 0);
  const size_t pixels = static_cast<size_t>(k.out_h() * k.out_w()), channels = static_cast<size_t>(k.out_c);
  for (size_t i = 0; i < dy.size(); ++i) {
    const size_t o = i / pixels % channels;
    if (!bias.empty()) r.y[i] = static_cast<double>(bias[o]);
    r.dbias[o] += static_cast<double>(dy[i]);
  }
  for_each_product(k, [&](size_t yi, size_t xi, size_t wi) {
    r.y[yi] += static_cast<double>(x[xi]) * static_cast<double>(w[wi]);
    r.dx[xi] += static_cast<double>(dy[yi]) * static_cast<double>(w[wi]);
    r.dw[wi] += static_cast<double>(dy[yi]) * static_cast<double>(x[xi]);
  });
  return r;
}

/// Shapes that meet every branch: channels beside the block, strides, dilations, groups, maps of one pixel.
inline const std::vector<ConvCase>& conv_cases() {
  static const std::vector<ConvCase> cases = {
      {2, 3, 9, 13, 8, 3, 3, {1, 1, 1, 1, 1, 1, 1}},    {1, 1, 7, 5, 1, 3, 3, {1, 1, 1, 1, 1, 1, 1}},
      {2, 19, 12, 17, 33, 3, 3, {2, 2, 1, 1, 1, 1, 1}}, {3, 33, 1, 1, 19, 1, 1, {1, 1, 0, 0, 1, 1, 1}},
      {1, 64, 10, 21, 64, 3, 3, {1, 1, 1, 1, 1, 1, 1}}, {1, 16, 11, 10, 19, 3, 3, {1, 1, 4, 4, 4, 4, 1}},
      {2, 3, 23, 30, 16, 7, 7, {2, 2, 3, 3, 1, 1, 1}},  {1, 33, 8, 9, 64, 1, 1, {2, 2, 0, 0, 1, 1, 1}},
      {2, 16, 6, 14, 24, 1, 3, {1, 1, 0, 1, 1, 1, 1}},  {1, 19, 14, 6, 16, 3, 1, {1, 1, 5, 0, 5, 1, 1}},
      {1, 8, 9, 11, 12, 3, 3, {1, 2, 2, 0, 2, 1, 4}},   {2, 6, 7, 6, 6, 3, 3, {1, 1, 1, 1, 1, 1, 6}},
      {1, 64, 9, 9, 64, 3, 3, {1, 1, 1, 1, 1, 1, 2}},   {1, 4, 5, 5, 5, 5, 5, {3, 3, 2, 2, 1, 1, 1}},
      {1, 32, 4, 40, 48, 2, 2, {2, 2, 0, 0, 1, 1, 1}},  {1, 16, 5, 7, 16, 3, 3, {1, 1, 12, 12, 12, 12, 1}},
      {2, 64, 5, 5, 32, 5, 5, {1, 1, 0, 0, 1, 1, 1}},   {1, 64, 33, 33, 19, 1, 1, {1, 1, 0, 0, 1, 1, 1}},
      {1, 3, 2, 2, 4, 1, 1, {4, 4, 0, 0, 1, 1, 1}},
  };
  return cases;
}

}  // namespace convoy::test
