// One axis of a resize, for the files compiled per instruction set: which source pixels an output pixel reads.
#pragma once
#include "kernels/resize_bilinear.h"
#include "kernels/simd.h"

namespace convoy::cpu::CONVOY_ISA {

/// Output pixel = (1 - weight) source[index] + weight source[index + 1]; weight is 0 at the last source pixel.
struct Source {
  int32_t index;
  float weight;
};

struct Axis {
  int64_t in, out;
  float scale;  // source pixels per output pixel
  bool align_corners, nearest;

  Source source(int64_t o) const {
    if (in == out && (align_corners || scale == 1.0f)) return {static_cast<int32_t>(o), 0};
    const float position = static_cast<float>(o);
    float at = nearest || align_corners ? position * scale : (position + 0.5f) * scale - 0.5f;
    if (at < 0) at = 0;
    Source s{static_cast<int32_t>(at), 0};
    if (s.index >= in - 1)
      s.index = static_cast<int32_t>(in - 1);
    else if (!nearest)
      s.weight = at - static_cast<float>(s.index);
    return s;
  }

  /// First output pixel whose source index is at least i; `out` where there is none. Indices never decrease.
  int64_t first_reaching(int64_t i) const {
    int64_t o = scale > 0 ? static_cast<int64_t>(static_cast<float>(i) / scale) : 0;
    if (o > out) o = out;
    while (o > 0 && source(o - 1).index >= i) --o;
    while (o < out && source(o).index < i) ++o;
    return o;
  }
};

static inline Axis make_axis(int64_t in, int64_t out, bool align_corners, double factor, bool nearest) {
  Axis axis{in, out, 0, align_corners && !nearest, nearest};
  if (axis.align_corners)
    axis.scale = out > 1 ? static_cast<float>(in - 1) / static_cast<float>(out - 1) : 0.0f;
  else
    axis.scale = factor > 0 ? static_cast<float>(1.0 / factor) : static_cast<float>(in) / static_cast<float>(out);
  return axis;
}

}  // namespace convoy::cpu::CONVOY_ISA
