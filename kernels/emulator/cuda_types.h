// CUDA's data types for g++: dim3, the short vectors, half and bfloat16. Own definitions, so that the emulator builds
// on machines without a CUDA toolkit. The subset and the rounding are CUDA's; what is missing here does not compile.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

#define CONVOY_VECTOR_TYPES(type, name, align2, align4)              \
  struct alignas(align2) name##2 {                                   \
    type x, y;                                                       \
  };                                                                 \
  struct name##3 {                                                   \
    type x, y, z;                                                    \
  };                                                                 \
  struct alignas(align4) name##4 {                                   \
    type x, y, z, w;                                                 \
  };                                                                 \
  constexpr name##2 make_##name##2(type x, type y) {                 \
    return {x, y};                                                   \
  }                                                                  \
  constexpr name##3 make_##name##3(type x, type y, type z) {         \
    return {x, y, z};                                                \
  }                                                                  \
  constexpr name##4 make_##name##4(type x, type y, type z, type w) { \
    return {x, y, z, w};                                             \
  }
CONVOY_VECTOR_TYPES(float, float, 8, 16)
CONVOY_VECTOR_TYPES(int, int, 8, 16)
CONVOY_VECTOR_TYPES(unsigned, uint, 8, 16)
CONVOY_VECTOR_TYPES(unsigned char, uchar, 2, 4)
CONVOY_VECTOR_TYPES(short, short, 4, 8)
CONVOY_VECTOR_TYPES(unsigned short, ushort, 4, 8)
#undef CONVOY_VECTOR_TYPES
struct alignas(16) double2 {
  double x, y;
};
constexpr double2 make_double2(double x, double y) {
  return {x, y};
}

namespace convoy::emulator {

/// The bytes of a value of up to 8 bytes, zeros behind them.
template <class T>
uint64_t bits_of(T v) {
  static_assert(sizeof(T) <= 8 && std::is_trivially_copyable_v<T>);
  uint64_t bits = 0;
  std::memcpy(&bits, &v, sizeof v);
  return bits;
}
template <class T>
T from_bits(uint64_t bits) {
  T v;
  std::memcpy(static_cast<void*>(&v), &bits, sizeof v);
  return v;
}

/// IEEE binary16 from float, to nearest even. Overflow gives infinity, NaN the canonical 0x7fff, as on the device.
inline uint16_t half_bits(float f) {
  const auto u = static_cast<uint32_t>(bits_of(f));
  const auto sign = static_cast<uint16_t>(u >> 16 & 0x8000u);
  const uint32_t magnitude = u & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return 0x7fff;
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // 65520 and more round to infinity
  if (magnitude < 0x38800000u) {  // below 2^-14: the float unit rounds at the subnormals' spacing of 2^-24
    const float shifted = std::fabs(f) + 0.5f;
    return static_cast<uint16_t>(sign | (static_cast<uint32_t>(bits_of(shifted)) - 0x3f000000u));
  }
  const uint32_t rounded = magnitude + 0xfffu + (magnitude >> 13 & 1u);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}
inline float half_value(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16, exponent = h >> 10 & 31u, fraction = h & 0x3ffu;
  if (exponent == 0) {
    const float value = static_cast<float>(fraction) * 0x1p-24f;
    return sign ? -value : value;
  }
  return from_bits<float>(sign | (exponent == 31 ? 0x7f800000u : (exponent + 112) << 23) | fraction << 13);
}
/// bfloat16 from float, to nearest even; NaN gives the canonical 0x7fff.
inline uint16_t bfloat16_bits(float f) {
  const auto u = static_cast<uint32_t>(bits_of(f));
  if ((u & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
  return static_cast<uint16_t>((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}
inline float bfloat16_value(uint16_t b) {
  return from_bits<float>(static_cast<uint64_t>(b) << 16);
}

}  // namespace convoy::emulator

struct __half {
  uint16_t bits;
  __half() = default;
  explicit __half(float f) : bits(convoy::emulator::half_bits(f)) {}
  explicit operator float() const { return convoy::emulator::half_value(bits); }
};
struct __nv_bfloat16 {
  uint16_t bits;
  __nv_bfloat16() = default;
  explicit __nv_bfloat16(float f) : bits(convoy::emulator::bfloat16_bits(f)) {}
  explicit operator float() const { return convoy::emulator::bfloat16_value(bits); }
};
struct alignas(4) __half2 {
  __half x, y;
};
struct alignas(4) __nv_bfloat162 {
  __nv_bfloat16 x, y;
};
using half = __half;
using half2 = __half2;
using nv_bfloat16 = __nv_bfloat16;
using nv_bfloat162 = __nv_bfloat162;

inline __half __float2half(float f) {
  return __half(f);
}
inline __half __float2half_rn(float f) {
  return __half(f);
}
inline float __half2float(__half h) {
  return static_cast<float>(h);
}
inline __nv_bfloat16 __float2bfloat16(float f) {
  return __nv_bfloat16(f);
}
inline __nv_bfloat16 __float2bfloat16_rn(float f) {
  return __nv_bfloat16(f);
}
inline float __bfloat162float(__nv_bfloat16 b) {
  return static_cast<float>(b);
}
inline __half2 __floats2half2_rn(float x, float y) {
  return {__half(x), __half(y)};
}
inline float2 __half22float2(__half2 v) {
  return {static_cast<float>(v.x), static_cast<float>(v.y)};
}
inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) {
  return {__nv_bfloat16(x), __nv_bfloat16(y)};
}
inline float2 __bfloat1622float2(__nv_bfloat162 v) {
  return {static_cast<float>(v.x), static_cast<float>(v.y)};
}

// One operation in float and one rounding is the correctly rounded result for + - * / of both formats.
#define CONVOY_SHORT_FLOAT(type)                                                                \
  inline type operator+(type a, type b) {                                                       \
    return type(static_cast<float>(a) + static_cast<float>(b));                                 \
  }                                                                                             \
  inline type operator-(type a, type b) {                                                       \
    return type(static_cast<float>(a) - static_cast<float>(b));                                 \
  }                                                                                             \
  inline type operator*(type a, type b) {                                                       \
    return type(static_cast<float>(a) * static_cast<float>(b));                                 \
  }                                                                                             \
  inline type operator/(type a, type b) {                                                       \
    return type(static_cast<float>(a) / static_cast<float>(b));                                 \
  }                                                                                             \
  inline type operator-(type a) {                                                               \
    return type(-static_cast<float>(a));                                                        \
  }                                                                                             \
  inline type& operator+=(type& a, type b) {                                                    \
    return a = a + b;                                                                           \
  }                                                                                             \
  inline bool operator==(type a, type b) {                                                      \
    return static_cast<float>(a) == static_cast<float>(b);                                      \
  }                                                                                             \
  inline bool operator!=(type a, type b) {                                                      \
    return static_cast<float>(a) != static_cast<float>(b);                                      \
  }                                                                                             \
  inline bool operator<(type a, type b) {                                                       \
    return static_cast<float>(a) < static_cast<float>(b);                                       \
  }                                                                                             \
  inline bool operator>(type a, type b) {                                                       \
    return static_cast<float>(a) > static_cast<float>(b);                                       \
  }                                                                                             \
  inline bool operator<=(type a, type b) {                                                      \
    return static_cast<float>(a) <= static_cast<float>(b);                                      \
  }                                                                                             \
  inline bool operator>=(type a, type b) {                                                      \
    return static_cast<float>(a) >= static_cast<float>(b);                                      \
  }                                                                                             \
  inline type __hadd(type a, type b) {                                                          \
    return a + b;                                                                               \
  }                                                                                             \
  inline type __hsub(type a, type b) {                                                          \
    return a - b;                                                                               \
  }                                                                                             \
  inline type __hmul(type a, type b) {                                                          \
    return a * b;                                                                               \
  }                                                                                             \
  inline type __hfma(type a, type b, type c) {                                                  \
    return type(std::fma(static_cast<float>(a), static_cast<float>(b), static_cast<float>(c))); \
  }
CONVOY_SHORT_FLOAT(__half)
CONVOY_SHORT_FLOAT(__nv_bfloat16)
#undef CONVOY_SHORT_FLOAT
