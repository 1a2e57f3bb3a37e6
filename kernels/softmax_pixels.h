// Softmax over the channels of pixels of a blocked tensor, for the files compiled per instruction set.
#pragma once
#include "kernels/blocked.h"
#include "kernels/vec_math.h"

namespace convoy::cpu::CONVOY_ISA {

/// One image of blocked logits (N,C,H,W).
struct PixelLogits {
  const float* image;
  int64_t channels, pixels, blocks;
  IVec channels_of_last;  ///< all ones in the lanes of the last block that are channels

  PixelLogits(const View& x, int64_t n)
      : image(x.f32() + n * x.image_stride()),
        channels(x.c),
        pixels(x.pixels()),
        blocks(x.blocks()),
        channels_of_last(channel_mask(x.c, x.blocks() - 1)) {}
  int64_t width() const { return blocks * kBlock; }
  float at(int64_t channel, int64_t pixel) const {
    return image[(channel / kBlock * pixels + pixel) * kBlock + channel % kBlock];
  }
};

/// probabilities[i * width + c] = softmax over c of pixel at[i], for kBlock pixels; zero in pad lanes. Returns their
/// logarithms of the sum of exponentials.
static inline Vec softmax_pixels(const PixelLogits& x, const int64_t* at, float* probabilities) {
  constexpr float kAbsent = -1e30f;
  const int64_t width = x.width();
  Vec parts[kBlock];
  float highest[kBlock], inverse[kBlock];
  for (int i = 0; i < kBlock; ++i) {
    float* to = probabilities + i * width;
    Vec high = splat(kAbsent);
    for (int64_t b = 0; b < x.blocks; ++b) {
      Vec v = load(x.image + (b * x.pixels + at[i]) * kBlock);
      if (b == x.blocks - 1) v = x.channels_of_last ? v : splat(kAbsent);
      store(to + b * kBlock, v);
      high = max(v, high);
    }
    parts[i] = high;
  }
  const Vec high = reduce_each(parts, [](Vec a, Vec b) { return max(a, b); });
  store(highest, high);
  for (int i = 0; i < kBlock; ++i) {
    float* to = probabilities + i * width;
    Vec total{};
    for (int64_t c = 0; c < width; c += kBlock) {
      const Vec e = exp_nonpositive(load(to + c) - highest[i]);
      store(to + c, e);
      total += e;
    }
    parts[i] = total;
  }
  const Vec sum = reduce_each(parts, [](Vec a, Vec b) { return a + b; });
  store(inverse, 1.0f / sum);
  for (int i = 0; i < kBlock; ++i) {
    float* to = probabilities + i * width;
    for (int64_t c = 0; c < width; c += kBlock) store(to + c, load(to + c) * inverse[i]);
  }
  return high + log_positive(sum);
}

}  // namespace convoy::cpu::CONVOY_ISA
