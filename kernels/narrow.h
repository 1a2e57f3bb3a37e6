// float to the 16-bit types on the host, to the nearest, ties to even, and back, which is exact.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

namespace convoy {

inline uint32_t float_bits(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

/// bfloat16. NaN stays NaN.
inline uint16_t to_bf16_bits(float x) {
  const uint32_t bits = float_bits(x);
  if (x != x) return 0x7fff;
  return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

/// IEEE binary16. NaN stays NaN, too large values become infinite.
inline uint16_t to_f16_bits(float x) {
  const auto sign = static_cast<uint16_t>(float_bits(x) >> 16 & 0x8000u);
  const float size = std::fabs(x);
  if (x != x) return 0x7fff;
  if (size >= 65520.0f) return static_cast<uint16_t>(sign | 0x7c00u);
  // Below 2^-14 values are multiples of 2^-24, which the sum's own rounding finds.
  if (size < 0x1p-14f) return static_cast<uint16_t>(sign | (float_bits(size + 0.5f) - float_bits(0.5f)));
  const uint32_t bits = float_bits(size);
  return static_cast<uint16_t>(sign | ((bits - (112u << 23) + 0xfffu + (bits >> 13 & 1u)) >> 13));
}

inline float float_of_bits(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

inline float from_bf16_bits(uint16_t bits) {
  return float_of_bits(static_cast<uint32_t>(bits) << 16);
}

inline float from_f16_bits(uint16_t bits) {
  const uint32_t sign = (bits & 0x8000u) << 16, size = bits & 0x7fffu;
  if (size >= 0x7c00u) return float_of_bits(sign | 0x7f800000u | size << 13);  // infinite or NaN
  if (size >= 0x400u) return float_of_bits(sign | ((size << 13) + (112u << 23)));
  return float_of_bits(sign | float_bits(static_cast<float>(size) * 0x1p-24f));
}

}  // namespace convoy
