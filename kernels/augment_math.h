// One pixel of an augmented image, as both twins make it.
#pragma once
#include <cmath>

#include "kernels/augment.h"

#ifdef __CUDACC__
#define CONVOY_AUGMENT_FUNCTION __host__ __device__ inline
#else
#define CONVOY_AUGMENT_FUNCTION inline
#endif

namespace convoy {

struct Rgb {
  int channel[3];
};

/// A colour chain as a kernel takes it.
struct ColorChain {
  int steps;
  ColorStep step[4];
};

// Always inlined, so that files compiled for one instruction set leave no copy of these that others would call.

/// Rounded fixed-point sum to a byte, with the bits of kResampleBits.
[[gnu::always_inline]] CONVOY_AUGMENT_FUNCTION int resampled_byte(int32_t sum) {
  const int value = sum >> 22;
  return value < 0 ? 0 : value > 255 ? 255 : value;
}

/// Pixel (y,x) of the resized image: the horizontal pass rounded to bytes, then the vertical one.
[[gnu::always_inline]] CONVOY_AUGMENT_FUNCTION Rgb resampled(const uint8_t* image, const AugmentAxis& rows,
                                                             const AugmentAxis& columns, bool mirrored, int64_t y,
                                                             int64_t x) {
  constexpr int32_t kHalf = 1 << 21;
  const int32_t *down = rows.weights + y * rows.taps, *across = columns.weights + x * columns.taps;
  const int64_t start = mirrored ? columns.source - 1 - columns.first[x] : columns.first[x], step = mirrored ? -3 : 3;
  int32_t total[3] = {kHalf, kHalf, kHalf};
  for (int64_t k = 0; k < rows.taps; ++k) {
    if (down[k] == 0) continue;
    const uint8_t* pixel = image + ((rows.first[y] + k) * columns.source + start) * 3;
    int32_t sum[3] = {kHalf, kHalf, kHalf};
    for (int64_t j = 0; j < columns.taps; ++j, pixel += step) {
      if (across[j] == 0) continue;
      for (int c = 0; c < 3; ++c) sum[c] += across[j] * pixel[c];
    }
    for (int c = 0; c < 3; ++c) total[c] += down[k] * resampled_byte(sum[c]);
  }
  return {{resampled_byte(total[0]), resampled_byte(total[1]), resampled_byte(total[2])}};
}

/// ITU-R 601-2 luma in 16-bit fixed point.
[[gnu::always_inline]] CONVOY_AUGMENT_FUNCTION int luma_of(const Rgb& p) {
  return (19595 * p.channel[0] + 38470 * p.channel[1] + 7471 * p.channel[2] + 0x8000) >> 16;
}

/// factor * pixel + (1 - factor) * base in fp32, the fraction dropped. In double and rounded after each operation,
/// which makes the same numbers whether or not products and sums are fused.
[[gnu::always_inline]] CONVOY_AUGMENT_FUNCTION int blended(int base, double factor, int pixel) {
  const auto product = static_cast<float>(static_cast<double>(static_cast<float>(factor)) * (pixel - base));
  const auto value = static_cast<float>(static_cast<double>(product) + base);
  return static_cast<int>(value < 0.f ? 0.f : value > 255.f ? 255.f : value);
}

/// Turns the hue by sixths of the colour circle, value and chroma kept (hexagon model).
[[gnu::always_inline]] CONVOY_AUGMENT_FUNCTION Rgb hue_turned(const Rgb& p, double turn) {
  const int *rgb = p.channel, r = rgb[0], g = rgb[1], b = rgb[2];
  const int high = r > g ? (r > b ? r : b) : (g > b ? g : b), low = r < g ? (r < b ? r : b) : (g < b ? g : b);
  const double chroma = high - low;
  if (chroma == 0) return p;
  const double sector = high == r ? (g - b) / chroma : high == g ? 2 + (b - r) / chroma : 4 + (r - g) / chroma;
  Rgb to{};
  for (int c = 0; c < 3; ++c) {
    double distance = sector + turn - 2 * c + 18;
    distance -= 6 * floor(distance / 6);
    distance = distance < 6 - distance ? distance : 6 - distance;
    const double part = distance - 1 < 0 ? 0 : distance - 1 > 1 ? 1 : distance - 1;
    const double value = high - chroma * part;
    to.channel[c] = static_cast<int>((value < 0 ? 0 : value > 255 ? 255 : value) + 0.5);
  }
  return to;
}

/// Steps [0, steps) of a chain; `mean` is the luma that contrast blends with.
[[gnu::always_inline]] CONVOY_AUGMENT_FUNCTION Rgb colored(Rgb p, const ColorChain& chain, int steps, int mean) {
  for (int s = 0; s < steps; ++s) {
    const ColorStep& step = chain.step[s];
    if (step.kind == ColorStep::Kind::kHue) {
      p = hue_turned(p, step.amount);
      continue;
    }
    const int base = step.kind == ColorStep::Kind::kBrightness ? 0
                     : step.kind == ColorStep::Kind::kContrast ? mean
                                                               : luma_of(p);
    for (int c = 0; c < 3; ++c) p.channel[c] = blended(base, step.amount, p.channel[c]);
  }
  return p;
}

[[gnu::always_inline]] CONVOY_AUGMENT_FUNCTION int mean_luma(int64_t sum, int64_t pixels) {
  return static_cast<int>(static_cast<double>(sum) / static_cast<double>(pixels) + 0.5);
}

/// Steps before the one of contrast, -1 without one.
inline int steps_before_contrast(const ColorChain& chain) {
  for (int s = 0; s < chain.steps; ++s)
    if (chain.step[s].kind == ColorStep::Kind::kContrast) return s;
  return -1;
}

inline ColorChain color_chain(const Augmentation& a) {
  ColorChain chain{a.steps, {}};
  for (int s = 0; s < a.steps; ++s) chain.step[s] = a.step[static_cast<size_t>(s)];
  return chain;
}

}  // namespace convoy
