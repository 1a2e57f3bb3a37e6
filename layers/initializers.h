// Rules for initial weights that several modules share.
#pragma once
#include <cmath>

#include "engine/param_store.h"

namespace convoy {

/// PyTorch's default for weights and biases of linear maps: uniform in +-1/sqrt(fan_in).
inline Initializer uniform_by_fan_in(int64_t fan_in) {
  return {.kind = Initializer::Kind::kUniform, .a = 1 / std::sqrt(static_cast<double>(fan_in))};
}

inline Initializer constant_init(double value) {
  return {.kind = Initializer::Kind::kConstant, .a = value};
}

}  // namespace convoy
