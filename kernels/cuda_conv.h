// Geometry that the kernels of convolutions share. Included by *.cu only.
#pragma once
#include "kernels/conv2d.h"
#include "kernels/cuda_common.h"

namespace convoy::CONVOY_DEVICE {

/// One axis of a convolution, seen from the tensor that a kernel writes: which position of the source meets position
/// `at` of the target under kernel position k. Forward the target is y; backward, with the input's gradient, it is dx.
struct ConvAxis {
  int source, target;  ///< extents
  int kernel, stride, pad, dilation;
  bool backward;

  /// -1 where there is none.
  __device__ int position(int at, int k) const {
    const int p = backward ? at + pad - k * dilation : at * stride - pad + k * dilation;
    if (!backward || stride == 1) return static_cast<unsigned>(p) < static_cast<unsigned>(source) ? p : -1;
    if (p < 0 || p % stride != 0) return -1;
    return p / stride < source ? p / stride : -1;
  }
};

/// Rows (.h) and columns (.w) of a pass from `source` to `target`.
struct ConvAxes {
  ConvAxis h, w;
};

inline ConvAxes conv_axes(const View& source, const View& target, int64_t kernel_h, int64_t kernel_w,
                          const Conv2dParams& p, bool backward) {
  const auto axis = [&](int64_t from, int64_t to, int64_t kernel, int64_t stride, int64_t pad, int64_t dilation) {
    return ConvAxis{static_cast<int>(from),
                    static_cast<int>(to),
                    static_cast<int>(kernel),
                    static_cast<int>(stride),
                    static_cast<int>(pad),
                    static_cast<int>(dilation),
                    backward};
  };
  return {axis(source.h, target.h, kernel_h, p.stride_h, p.pad_h, p.dilation_h),
          axis(source.w, target.w, kernel_w, p.stride_w, p.pad_w, p.dilation_w)};
}

/// Largest grid extents in y and z.
constexpr int64_t kMostGridYZ = 65535;

}  // namespace convoy::CONVOY_DEVICE
