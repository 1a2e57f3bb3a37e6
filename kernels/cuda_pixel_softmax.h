// The softmax of one pixel of an nhwc image by one thread. Included by *.cu only.
#pragma once
#include "kernels/cuda_common.h"
#include "kernels/cuda_reduce.h"

namespace convoy::CONVOY_DEVICE {

/// Probability of a class = expf(logit - high) * inverse; the logarithm of the sum of exponentials is high + logf(sum).
struct PixelSoftmax {
  float high, sum, inverse;
  __device__ float probability(float logit) const { return expf(logit - high) * inverse; }
};

/// Reads the pixel's logits once; the sum is rescaled whenever a larger logit comes.
template <int kLanes, class T>
__device__ PixelSoftmax pixel_softmax(const Operand<const T>& x, const Rows& shape, int64_t row) {
  PixelSoftmax s{-1e30f, 0.f, 0.f};
  for (int64_t c = 0; c < shape.channels; c += kLanes) {
    float v[kLanes];
    load_lanes<kLanes>(x, shape, row, c, v);
    float high = s.high;
#pragma unroll
    for (int j = 0; j < kLanes; ++j)
      if (c + j < shape.channels) high = fmaxf(high, v[j]);
    s.sum *= expf(s.high - high);
    s.high = high;
#pragma unroll
    for (int j = 0; j < kLanes; ++j)
      if (c + j < shape.channels) s.sum += expf(v[j] - high);
  }
  s.inverse = __fdividef(1.f, s.sum);
  return s;
}

/// A pixel's label, -1 where it is to be ignored or is no class, which goes to *fault (where that is not null).
__device__ inline int32_t class_of(const int32_t* __restrict__ target, int64_t pixel, int64_t classes,
                                   int32_t ignore_index, int64_t* fault) {
  const int32_t label = target[pixel];
  if (label == ignore_index) return -1;
  if (label >= 0 && label < classes) return label;
  if (fault) report_fault(fault, pixel);
  return -1;
}

}  // namespace convoy::CONVOY_DEVICE
