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
  const Vec shifted = x * 1.44269504088896341f + 12582912.0f;  // 1.5 * 2^23: the integer lands in the low bits
  const Vec n = shifted - 12582912.0f;
  const Vec r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
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

/// Combines vectors a and b, of which every group of lanes holds partial results, into one of half as many groups each.
template <class Combine>
static inline Vec merge_pairs(Vec a, Vec b, Combine combine, IVec low, IVec high) {
  return combine(__builtin_shuffle(a, b, low), __builtin_shuffle(a, b, high));
}

/// Lane i of the result combines the lanes of v[i]; a transposing tree, always in the same order. v is overwritten.
template <class Combine>
static inline Vec reduce_each(Vec* v, Combine combine) {
#if defined(__AVX512F__)
  constexpr IVec kLow1{0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29};
  constexpr IVec kHigh1{2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31};
  constexpr IVec kLow2{0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29};
  constexpr IVec kHigh2{2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31};
  constexpr IVec kLow3{0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23};
  constexpr IVec kHigh3{8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31};
  constexpr IVec kLow4{0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27};
  constexpr IVec kHigh4{4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31};
#else
  constexpr IVec kLow1{0, 8, 1, 9, 4, 12, 5, 13}, kHigh1{2, 10, 3, 11, 6, 14, 7, 15};
  constexpr IVec kLow2{0, 1, 8, 9, 4, 5, 12, 13}, kHigh2{2, 3, 10, 11, 6, 7, 14, 15};
  constexpr IVec kLow3{0, 1, 2, 3, 8, 9, 10, 11}, kHigh3{4, 5, 6, 7, 12, 13, 14, 15};
#endif
#pragma GCC unroll 8
  for (int i = 0; i < kBlock / 2; ++i) v[i] = merge_pairs(v[2 * i], v[2 * i + 1], combine, kLow1, kHigh1);
#pragma GCC unroll 8
  for (int i = 0; i < kBlock / 4; ++i) v[i] = merge_pairs(v[2 * i], v[2 * i + 1], combine, kLow2, kHigh2);
#pragma GCC unroll 8
  for (int i = 0; i < kBlock / 8; ++i) v[i] = merge_pairs(v[2 * i], v[2 * i + 1], combine, kLow3, kHigh3);
#if defined(__AVX512F__)
  v[0] = merge_pairs(v[0], v[1], combine, kLow4, kHigh4);
#endif
  return v[0];
}

}  // namespace convoy::cpu::CONVOY_ISA
