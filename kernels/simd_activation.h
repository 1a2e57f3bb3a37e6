// Activations on vectors, for the files compiled per instruction set.
#pragma once
#include "kernels/activation.h"
#include "kernels/simd_math.h"

namespace convoy::cpu::CONVOY_ISA {

/// The comparisons are written so that NaN passes through.
template <Activation kAct>
static inline Vec activate(Vec x) {
  if constexpr (kAct == Activation::kRelu || kAct == Activation::kRelu6) x = x < 0.0f ? Vec{} : x;
  if constexpr (kAct == Activation::kRelu6) x = x > 6.0f ? splat(6.0f) : x;
  if constexpr (kAct == Activation::kSigmoid) x = 1.0f / (1.0f + exp(-x));
  return x;
}

/// dy times the derivative, from the activation's output y.
template <Activation kAct>
static inline Vec activate_backward(Vec dy, Vec y) {
  if constexpr (kAct == Activation::kRelu) return y > 0.0f ? dy : Vec{};
  if constexpr (kAct == Activation::kRelu6) return ((y > 0.0f) & (y < 6.0f)) ? dy : Vec{};
  if constexpr (kAct == Activation::kSigmoid) return dy * (y * (1.0f - y));
  return dy;
}

}  // namespace convoy::cpu::CONVOY_ISA
