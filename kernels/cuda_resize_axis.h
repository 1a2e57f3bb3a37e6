// One axis of a bilinear resize, for the CUDA kernels: which source pixels an output pixel reads, and which output
// pixels read a source pixel. Coordinates are formed without fused operations, so that all kernels and devices agree on
// them. Included by *.cu only.
#pragma once
#include "kernels/cuda_compat.h"

namespace convoy::CONVOY_DEVICE {

/// Output pixel = (1 - weight) source[low] + weight source[high].
struct Source {
  int64_t low, high;
  float weight;
};

struct Range {
  int64_t begin, end;
};

struct Axis {
  int64_t in, out;
  float scale;  ///< source pixels per output pixel
  bool align_corners;

  __device__ int64_t low(int64_t o, float* weight) const {
    const float position = static_cast<float>(o);
    float at = align_corners ? __fmul_rn(position, scale) : __fadd_rn(__fmul_rn(position + 0.5f, scale), -0.5f);
    if (at < 0.f) at = 0.f;
    const auto index = static_cast<int64_t>(at);
    *weight = index >= in - 1 ? 0.f : at - static_cast<float>(index);
    return index >= in - 1 ? in - 1 : index;
  }
  __device__ Source source(int64_t o) const {
    Source s;
    s.low = low(o, &s.weight);
    s.high = s.low + 1 < in ? s.low + 1 : s.low;
    return s;
  }
  /// The part of output pixel o that comes from source pixel i, which is its low or its high one.
  __device__ float weight_of(int64_t i, int64_t o) const {
    float weight;
    return low(o, &weight) == i ? 1.f - weight : weight;
  }
  /// The first output pixel whose low source pixel is at least i; `out` where there is none. They never decrease, so an
  /// estimate can be corrected by steps.
  __device__ int64_t first_reaching(int64_t i) const {
    float unused;
    const float estimate = scale > 0.f ? __fdividef(static_cast<float>(i), scale) : 0.f;
    int64_t o = estimate < static_cast<float>(out) ? static_cast<int64_t>(estimate) : out;
    while (o > 0 && low(o - 1, &unused) >= i) --o;
    while (o < out && low(o, &unused) < i) ++o;
    return o;
  }
  /// The output pixels whose low or high source pixel is i.
  __device__ Range readers(int64_t i) const { return {first_reaching(i > 0 ? i - 1 : 0), first_reaching(i + 1)}; }
};

inline Axis make_axis(int64_t in, int64_t out, bool align_corners, double factor) {
  float scale = static_cast<float>(in) / static_cast<float>(out);
  if (align_corners)
    scale = out > 1 ? static_cast<float>(in - 1) / static_cast<float>(out - 1) : 0.f;
  else if (factor > 0)
    scale = static_cast<float>(1.0 / factor);
  return {in, out, scale, align_corners};
}

}  // namespace convoy::CONVOY_DEVICE
