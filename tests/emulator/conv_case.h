// A convolution for the tests of its CUDA twins.
#pragma once
#include "kernels/conv2d.h"
#include "tests/emulator/twins.h"

namespace convoy::test {

struct ConvTwin {
  Shape x;
  int64_t out, kernel_h, kernel_w;
  Conv2dParams p;

  Shape y() const {
    return {x.n, out, conv_extent(x.h, kernel_h, p.stride_h, p.pad_h, p.dilation_h),
            conv_extent(x.w, kernel_w, p.stride_w, p.pad_w, p.dilation_w)};
  }
  int64_t weights() const { return out * (x.c / p.groups) * kernel_h * kernel_w; }
  std::string text() const {
    const auto pair = [](int64_t h, int64_t w) { return std::to_string(h) + "x" + std::to_string(w); };
    return x.text() + " to " + std::to_string(out) + " kernel " + pair(kernel_h, kernel_w) + " stride " +
           pair(p.stride_h, p.stride_w) + " pad " + pair(p.pad_h, p.pad_w) + " dilation " +
           pair(p.dilation_h, p.dilation_w) + " groups " + std::to_string(p.groups);
  }
};

inline ConvTwin square_conv(Shape x, int64_t out, int64_t kernel, int64_t stride, int64_t pad, int64_t dilation = 1,
                            int64_t groups = 1) {
  return {x, out, kernel, kernel, {stride, stride, pad, pad, dilation, dilation, groups}};
}

}  // namespace convoy::test
