// The emulator's half and bfloat16 against the processor's conversions and against the formats' definitions.
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "kernels/emulator/cuda_types.h"

namespace convoy::emulator {
namespace {

// The nearest of two neighbours, by distance in double; ties to the even bit pattern.
template <class Value>
uint16_t nearest(float f, uint16_t largest_finite, uint16_t infinity, double overflow, Value value) {
  const double magnitude = std::fabs(f);
  const uint16_t sign = std::signbit(f) ? 0x8000 : 0;
  if (magnitude >= overflow) return sign | infinity;
  uint16_t low = 0, high = largest_finite;
  while (low < high) {  // the largest pattern at or below the magnitude
    const auto middle = static_cast<uint16_t>((low + high + 1) / 2);
    if (value(middle) <= magnitude)
      low = middle;
    else
      high = static_cast<uint16_t>(middle - 1);
  }
  if (low == largest_finite) return sign | low;
  const double below = magnitude - value(low), above = value(static_cast<uint16_t>(low + 1)) - magnitude;
  const bool up = above < below || (above == below && (low & 1));
  return static_cast<uint16_t>(sign | (low + up));
}

// Floats around every rounding boundary: each 16-bit pattern of the upper half with a few lower halves.
template <class F>
void for_many_floats(F f) {
  for (uint32_t upper = 0; upper < 0x10000; upper += 7)
    for (const uint32_t lower :
         {0x0000u, 0x0001u, 0x0fffu, 0x1000u, 0x1001u, 0x2fffu, 0x7fffu, 0x8000u, 0x8001u, 0xf000u})
      f(from_bits<float>(upper << 16 | lower));
}

TEST_CASE("half rounds to nearest even") {
  int wrong = 0;
  for_many_floats([&](float f) {
    const uint16_t want = std::isnan(f) ? 0x7fff : nearest(f, 0x7bff, 0x7c00, 65520., [](uint16_t h) {
      return static_cast<double>(half_value(h));
    });
    wrong += half_bits(f) != want;
  });
  CHECK(wrong == 0);
}

TEST_CASE("bfloat16 rounds to nearest even") {
  int wrong = 0;
  for_many_floats([&](float f) {
    const uint16_t want = std::isnan(f) ? 0x7fff : nearest(f, 0x7f7f, 0x7f80, 0x1.ffp127, [](uint16_t h) {
      return static_cast<double>(bfloat16_value(h));
    });
    wrong += bfloat16_bits(f) != want;
  });
  CHECK(wrong == 0);
}

TEST_CASE("every half and bfloat16 survives the way to float and back") {
  int wrong = 0;
  for (uint32_t b = 0; b < 0x10000; ++b) {
    const auto bits = static_cast<uint16_t>(b);
    if (!std::isnan(half_value(bits))) wrong += half_bits(half_value(bits)) != bits;
    if (!std::isnan(bfloat16_value(bits))) wrong += bfloat16_bits(bfloat16_value(bits)) != bits;
  }
  CHECK(wrong == 0);
  CHECK(half_value(0x3c00) == 1.f);
  CHECK(half_value(0x0001) == 0x1p-24f);
  CHECK(half_value(0x7bff) == 65504.f);
  CHECK(half_value(0xfc00) == -std::numeric_limits<float>::infinity());
  CHECK(std::isnan(half_value(0x7e00)));
  CHECK(bfloat16_value(0x3f80) == 1.f);
}

}  // namespace
}  // namespace convoy::emulator
