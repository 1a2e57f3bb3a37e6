// Parametric ReLU. Bytes: forward reads x and writes y, backward reads dy and x and writes dx, once each.
// Numerics: sums of the slope's gradient form chunks of 512 pixels in float, merged in double in a fixed order.
#include "kernels/prelu.h"

#include "kernels/blocked.h"

namespace convoy::cpu::CONVOY_ISA {

static_assert(kPreluChunk == kSumChunk);

static inline Vec slope_of(const float* slope, int64_t slopes, int64_t b) {
  return slopes == 1 ? splat(*slope) : load_channels(slope, slopes, b);
}

void prelu(const View& x, const float* slope, int64_t slopes, const View& y) {
  for_each_chunk(x, 2 * kSumChunk, [&](int64_t n, int64_t b, int64_t first, int64_t last) {
    const Vec a = slope_of(slope, slopes, b);
    const float* in = block_at(x, n, b);
    float* out = block_at(y, n, b);
    for (int64_t i = first * kBlock; i < last * kBlock; i += kBlock) {
      const Vec v = load(in + i);
      store(out + i, v > 0.0f ? v : a * v);
    }
  });
}

void prelu_backward(const View& dy, const View& x, const float* slope, int64_t slopes, const View& dx, float* dslope,
                    float* workspace) {
  const int64_t blocks = x.blocks(), chunks = ceil_div(x.pixels(), kSumChunk);
  for_each_chunk(x, kSumChunk, [&](int64_t n, int64_t b, int64_t first, int64_t last) {
    const Vec a = slope_of(slope, slopes, b);
    const float *gradient = block_at(dy, n, b), *in = block_at(x, n, b);
    float* out = block_at(dx, n, b);
    Vec total{};
    for (int64_t i = first * kBlock; i < last * kBlock; i += kBlock) {
      const Vec g = load(gradient + i), v = load(in + i);
      const IVec positive = v > 0.0f;
      total += positive ? Vec{} : g * v;
      store(out + i, positive ? g : a * g);
    }
    store(workspace + ((b * x.n + n) * chunks + first / kSumChunk) * kBlock, total);
  });
  double all = 0;
  for (int64_t b = 0; b < blocks; ++b) {
    DVec total{};
    for (int64_t i = 0; i < x.n * chunks; ++i) total += to_double(load(workspace + (b * x.n * chunks + i) * kBlock));
    if (slopes != 1) store_channels(dslope, slopes, b, to_float(total));
    for (int l = 0; l < kBlock; ++l) all += total[l];
  }
  if (slopes == 1) *dslope = static_cast<float>(all);
}

}  // namespace convoy::cpu::CONVOY_ISA
