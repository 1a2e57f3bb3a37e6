// Element-wise combination of two ranks' parts, the same wherever sums over ranks are formed.
#pragma once
#include <cstddef>
#include <cstdint>

namespace convoy {

struct Sum {
  float operator()(float a, float b) const { return a + b; }
  // Wraps, as hardware does, rather than being undefined.
  int64_t operator()(int64_t a, int64_t b) const {
    return static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
  }
};

struct Maximum {
  // NaN where either is.
  float operator()(float a, float b) const { return b > a || b != b ? b : a; }
  int64_t operator()(int64_t a, int64_t b) const { return b > a ? b : a; }
};

template <class T, class Operation>
void combine(T* to, const T* other, size_t size, Operation operation) {
#pragma omp simd
  for (size_t i = 0; i < size; ++i) to[i] = operation(to[i], other[i]);
}

}  // namespace convoy
