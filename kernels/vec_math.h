// exp and log on vectors, for the files compiled per instruction set. NaN in, NaN out.
#pragma once
#include "kernels/simd.h"

namespace convoy::cpu::CONVOY_ISA {

static inline Vec bits_to_float(IVec v) {
  Vec r;
  std::memcpy(&r, &v, sizeof r);
  return r;
}
static inline IVec float_to_bits(Vec v) {
  IVec r;
  std::memcpy(&r, &v, sizeof r);
  return r;
}

/// e^x for x <= 88, within 2 ulp; exactly 0 below -87. Range reduction to |r| <= ln(2)/2, then a polynomial of degree
/// 6 (the minimax coefficients of the Cephes library's expf).
static inline Vec exp_nonpositive(Vec x) {
  const Vec clamped = x < -87.0f ? splat(-87.0f) : x;
  const Vec shifted = clamped * 1.44269504088896341f + 12582912.0f;  // 1.5 * 2^23: the integer lands in the low bits
  const Vec n = shifted - 12582912.0f;
  const Vec r = (clamped - n * 0.693359375f) + n * 2.12194440e-4f;
  Vec p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  const Vec scale = bits_to_float((float_to_bits(shifted) - 0x4b400000 + 127) << 23);
  return x < -87.0f ? Vec{} : p * scale;
}

/// Natural logarithm of a positive finite x, within 2 ulp (Cephes logf).
static inline Vec log_positive(Vec x) {
  const IVec bits = float_to_bits(x);
  IVec e = (bits >> 23) - 126;
  Vec m = bits_to_float((bits & 0x007fffff) | 0x3f000000);  // in [0.5, 1)
  const IVec small = m < 0.707106781186547524f;
  e += small;  // true is -1
  m = small ? m + m - 1.0f : m - 1.0f;
  const Vec z = m * m;
  Vec p = m * 7.0376836292e-2f - 1.1514610310e-1f;
  p = p * m + 1.1676998740e-1f;
  p = p * m - 1.2420140846e-1f;
  p = p * m + 1.4249322787e-1f;
  p = p * m - 1.6668057665e-1f;
  p = p * m + 2.0000714765e-1f;
  p = p * m - 2.4999993993e-1f;
  p = p * m + 3.3333331174e-1f;
  const Vec ef = __builtin_convertvector(e, Vec);
  const Vec r = m + (m * z * p - ef * 2.12194440e-4f - z * 0.5f) + ef * 0.693359375f;
  return x == x ? r : x;
}

template <class Combine>
static inline Vec all_lanes(Vec v, Combine combine) {
#if defined(__AVX512F__)
  v = combine(v, __builtin_shuffle(v, IVec{8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7}));
  v = combine(v, __builtin_shuffle(v, IVec{4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11}));
  v = combine(v, __builtin_shuffle(v, IVec{2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13}));
  return combine(v, __builtin_shuffle(v, IVec{1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14}));
#else
  v = combine(v, __builtin_shuffle(v, IVec{4, 5, 6, 7, 0, 1, 2, 3}));
  v = combine(v, __builtin_shuffle(v, IVec{2, 3, 0, 1, 6, 7, 4, 5}));
  return combine(v, __builtin_shuffle(v, IVec{1, 0, 3, 2, 5, 4, 7, 6}));
#endif
}

/// The largest lane, and the sum of the lanes, in every lane.
static inline Vec max_lanes(Vec v) {
  return all_lanes(v, [](Vec a, Vec b) { return max(a, b); });
}
static inline Vec sum_lanes(Vec v) {
  return all_lanes(v, [](Vec a, Vec b) { return a + b; });
}

}  // namespace convoy::cpu::CONVOY_ISA
