// Vector mathematics for the files compiled per instruction set.
#pragma once
#include "kernels/simd.h"

namespace convoy::cpu::CONVOY_ISA {

/// A channel block in double precision, for merging partial sums.
using DVec = double __attribute__((vector_size(kBlock * sizeof(double))));

static inline DVec to_double(Vec v) {
  return __builtin_convertvector(v, DVec);
}
static inline Vec to_float(DVec v) {
  return __builtin_convertvector(v, Vec);
}

/// exp(x) to 2 ulp over the whole range, subnormal results included; exp(-inf) = 0, exp(inf) = inf, NaN stays NaN.
/// x = n ln2 + r with |r| <= ln2/2; exp(r) by its Taylor polynomial of degree 7 (remainder below 6e-9).
static inline Vec exp(Vec x) {
  x = x < -110.0f ? splat(-110.0f) : x;
  x = x > 90.0f ? splat(90.0f) : x;
  constexpr float kRound = 0x1.8p23f;  // adding it leaves the nearest integer in the low bits
  const Vec shifted = x * 1.44269504f + kRound;
  const Vec n = shifted - kRound;
  const Vec r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  Vec p = r * (1.0f / 5040) + (1.0f / 720);
  p = p * r + (1.0f / 120);
  p = p * r + (1.0f / 24);
  p = p * r + (1.0f / 6);
  p = p * r + 0.5f;
  p = p * r * r + r + 1.0f;
  // 2^n in two factors, each a normal number, so that the product may overflow or go subnormal gracefully.
  IVec bits;
  std::memcpy(&bits, &shifted, sizeof bits);
  const IVec exponent = bits - 0x4b400000;
  const IVec half = exponent >> 1;
  const IVec first = (half + 127) << 23, second = (exponent - half + 127) << 23;
  Vec a, b;
  std::memcpy(&a, &first, sizeof a);
  std::memcpy(&b, &second, sizeof b);
  const Vec result = p * a * b;
  return x == x ? result : x;
}

}  // namespace convoy::cpu::CONVOY_ISA
