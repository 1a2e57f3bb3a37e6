// Atomics, cached loads, bit operations and device maths; the tail of device_language.h.
#pragma once

namespace convoy::emulator {

/// *p = f(*p) as one step for every OS thread; returns the old value.
template <class T, class F>
CONVOY_UNCHECKED T atomic_update(T* p, F f) {
  using Word = std::conditional_t<sizeof(T) == 2, uint16_t, std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>>;
  note_atomic(p, sizeof(T));
  Word* word = reinterpret_cast<Word*>(p);
  Word old = __atomic_load_n(word, __ATOMIC_RELAXED), want;
  do want = static_cast<Word>(bits_of(f(from_bits<T>(old))));
  while (!__atomic_compare_exchange_n(word, &old, want, false, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED));
  return from_bits<T>(old);
}

}  // namespace convoy::emulator

#define CONVOY_ATOMIC(name, constraint, expression)                                                     \
  template <class T>                                                                                    \
  T name(T* p, std::type_identity_t<T> v) {                                                             \
    static_assert(constraint);                                                                          \
    return convoy::emulator::atomic_update(p, [=]([[maybe_unused]] T old) -> T { return expression; }); \
  }
CONVOY_ATOMIC(atomicAdd, true, static_cast<T>(old + v))
CONVOY_ATOMIC(atomicSub, true, static_cast<T>(old - v))
CONVOY_ATOMIC(atomicMax, std::is_integral_v<T>, old < v ? v : old)
CONVOY_ATOMIC(atomicMin, std::is_integral_v<T>, v < old ? v : old)
CONVOY_ATOMIC(atomicExch, true, v)
CONVOY_ATOMIC(atomicAnd, std::is_integral_v<T>, static_cast<T>(old& v))
CONVOY_ATOMIC(atomicOr, std::is_integral_v<T>, static_cast<T>(old | v))
CONVOY_ATOMIC(atomicXor, std::is_integral_v<T>, static_cast<T>(old ^ v))
#undef CONVOY_ATOMIC
template <class T>
T atomicCAS(T* p, std::type_identity_t<T> compare, std::type_identity_t<T> v) {
  static_assert(std::is_integral_v<T>);
  return convoy::emulator::atomic_update(p, [=](T old) { return old == compare ? v : old; });
}
inline unsigned atomicInc(unsigned* p, unsigned limit) {
  return convoy::emulator::atomic_update(p, [=](unsigned old) { return old >= limit ? 0u : old + 1; });
}

template <class T>
T __ldg(const T* p) {
  return *p;
}
template <class T>
T __ldcs(const T* p) {
  return *p;
}
template <class T>
T __ldcg(const T* p) {
  return *p;
}
template <class T>
void __stcs(T* p, std::type_identity_t<T> v) {
  *p = v;
}

inline int __float_as_int(float f) {
  return convoy::emulator::from_bits<int>(convoy::emulator::bits_of(f));
}
inline unsigned __float_as_uint(float f) {
  return static_cast<unsigned>(convoy::emulator::bits_of(f));
}
inline float __int_as_float(int i) {
  return convoy::emulator::from_bits<float>(convoy::emulator::bits_of(i));
}
inline float __uint_as_float(unsigned i) {
  return convoy::emulator::from_bits<float>(i);
}
inline int __popc(unsigned v) {
  return __builtin_popcount(v);
}
inline int __popcll(unsigned long long v) {
  return __builtin_popcountll(v);
}
inline int __clz(int v) {
  return v ? __builtin_clz(static_cast<unsigned>(v)) : 32;
}
inline int __ffs(int v) {
  return __builtin_ffs(v);
}
inline int __ffsll(long long v) {
  return __builtin_ffsll(v);
}
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>((static_cast<uint64_t>(a) * b) >> 32);
}
inline unsigned __brev(unsigned v) {
  unsigned r = 0;
  for (int i = 0; i < 32; ++i) r |= ((v >> i) & 1u) << (31 - i);
  return r;
}

using std::isinf;
using std::isnan;
template <class A, class B>
requires(std::is_arithmetic_v<A>&& std::is_arithmetic_v<B>) constexpr auto min(A a, B b) {
  using C = std::common_type_t<A, B>;
  return static_cast<C>(b) < static_cast<C>(a) ? static_cast<C>(b) : static_cast<C>(a);
}
template <class A, class B>
requires(std::is_arithmetic_v<A>&& std::is_arithmetic_v<B>) constexpr auto max(A a, B b) {
  using C = std::common_type_t<A, B>;
  return static_cast<C>(a) < static_cast<C>(b) ? static_cast<C>(b) : static_cast<C>(a);
}
// The device's fast forms are rounded here like the exact ones.
inline float rsqrtf(float x) {
  return 1.f / std::sqrt(x);
}
inline double rsqrt(double x) {
  return 1. / std::sqrt(x);
}
inline float __saturatef(float x) {
  return x > 0.f ? (x < 1.f ? x : 1.f) : 0.f;
}
inline float __frcp_rn(float x) {
  return 1.f / x;
}
inline float __fdividef(float a, float b) {
  return a / b;
}
inline float __fmaf_rn(float a, float b, float c) {
  return std::fma(a, b, c);
}
inline float __fadd_rn(float a, float b) {
  return a + b;
}
inline float __fmul_rn(float a, float b) {
  return a * b;
}
inline float __fsqrt_rn(float x) {
  return std::sqrt(x);
}
inline int __float2int_rn(float x) {
  return static_cast<int>(std::nearbyint(x));
}
inline int __float2int_rd(float x) {
  return static_cast<int>(std::floor(x));
}
inline int __float2int_rz(float x) {
  return static_cast<int>(x);
}
#define __expf expf  // macros, because glibc declares functions of these names
#define __logf logf
#define __log2f log2f
#define __sinf sinf
#define __cosf cosf
#define __powf powf
