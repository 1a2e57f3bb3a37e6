// A vector of one channel block, for the files compiled per instruction set (kernels/isa.h). The compiler's vector
// type carries + - * / and comparisons, so kernels read like scalar code.
#pragma once
#include <cstdint>
#include <cstring>

#ifndef CONVOY_ISA
#error "kernels/simd.h belongs into *_cpu.cpp files, which the build compiles once per instruction set"
#endif

namespace convoy::cpu::CONVOY_ISA {

#if defined(__AVX512F__)
constexpr int kBlock = 16;
#else
constexpr int kBlock = 8;
#endif

using Vec = float __attribute__((vector_size(kBlock * sizeof(float))));
using IVec = int32_t __attribute__((vector_size(kBlock * sizeof(int32_t))));

static inline Vec load(const float* p) {
  Vec v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
static inline void store(float* p, Vec v) {
  std::memcpy(p, &v, sizeof v);
}
static inline Vec splat(float x) {
  return x - Vec{};
}
static inline Vec max(Vec a, Vec b) {
  return a > b ? a : b;
}
static inline Vec min(Vec a, Vec b) {
  return a < b ? a : b;
}
/// The first `count` elements of p, zeros behind them.
static inline Vec load_partial(const float* p, int64_t count) {
  Vec v{};
  std::memcpy(&v, p, static_cast<size_t>(count < kBlock ? count : kBlock) * sizeof(float));
  return v;
}
/// Sum of the lanes, always in the same order.
static inline float sum(Vec v) {
  float s = 0;
  for (int i = 0; i < kBlock; ++i) s += v[i];
  return s;
}

}  // namespace convoy::cpu::CONVOY_ISA
