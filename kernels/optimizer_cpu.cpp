// Flat-array kernels of the optimizer.
// Bytes: sgd reads param, grad, velocity and writes param, velocity (20 B per element); the reductions read 4 B.
// Numerics: float updates, one fused multiply-add per term; sum_of_squares squares and adds in double.
#include "kernels/optimizer.h"

#include "kernels/blocked.h"

namespace convoy::cpu::CONVOY_ISA {

constexpr int64_t kPiece = 16384;

/// Calls body(first, last) for pieces of a flat array.
template <class Body>
static inline void for_each_piece(int64_t count, const Body& body) {
  parallel_for(ceil_div(count, kPiece), smaller(count, kPiece),
               [&](int64_t i) { body(i * kPiece, smaller((i + 1) * kPiece, count)); });
}

void sgd_momentum(float* param, const float* grad, float* velocity, int64_t count, float lr, float momentum,
                  float weight_decay, bool nesterov, bool first_step) {
  const float old_share = first_step ? 0.0f : momentum;
  for_each_piece(count, [&](int64_t first, int64_t last) {
    const auto step = [&](Vec p, Vec g, Vec v, Vec& new_v) {
      g += p * weight_decay;
      new_v = first_step ? g : v * old_share + g;
      return p - (nesterov ? g + new_v * momentum : new_v) * lr;
    };
    int64_t i = first;
    for (; i + kBlock <= last; i += kBlock) {
      Vec v;
      store(param + i, step(load(param + i), load(grad + i), load(velocity + i), v));
      store(velocity + i, v);
    }
    if (i < last) {
      Vec v;
      const int64_t rest = last - i;
      store_partial(
          param + i,
          step(load_partial(param + i, rest), load_partial(grad + i, rest), load_partial(velocity + i, rest), v), rest);
      store_partial(velocity + i, v, rest);
    }
  });
}

double sum_of_squares(const float* x, int64_t count) {
  constexpr int64_t kParts = 256;
  const int64_t part = ceil_div(ceil_div(count, kParts), kBlock) * kBlock;
  double sums[kParts] = {};
  parallel_for(kParts, part, [&](int64_t k) {
    const int64_t last = smaller((k + 1) * part, count);
    double lanes[kBlock] = {};
    int64_t i = k * part;
    for (; i + kBlock <= last; i += kBlock)
      for (int l = 0; l < kBlock; ++l) lanes[l] += static_cast<double>(x[i + l]) * static_cast<double>(x[i + l]);
    for (int l = 0; i + l < last; ++l) lanes[l] += static_cast<double>(x[i + l]) * static_cast<double>(x[i + l]);
    for (const double s : lanes) sums[k] += s;
  });
  double total = 0;
  for (const double s : sums) total += s;
  return total;
}

bool all_finite(const float* x, int64_t count) {
  const int64_t pieces = ceil_div(count, kPiece);
  bool finite = true;
#pragma omp parallel for schedule(static) reduction(&& : finite) if (pieces > 2)
  for (int64_t k = 0; k < pieces; ++k) {
    const int64_t last = smaller((k + 1) * kPiece, count);
    Vec poison{};  // x - x is 0 for finite x, else NaN
    for (int64_t i = k * kPiece; i < last; i += kBlock) {
      const Vec v = i + kBlock <= last ? load(x + i) : load_partial(x + i, last - i);
      poison += v - v;
    }
    finite = finite && sum(poison) == 0.0f;
  }
  return finite;
}

}  // namespace convoy::cpu::CONVOY_ISA
