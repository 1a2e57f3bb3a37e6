// Flat-array kernels of the optimizer.
// Bytes: an update reads value, gradient and one or two states and writes all but the gradient (20 or 28 B per element,
// 2 B more for a copy); the reductions read 4 B.
// Numerics: float updates, one fused multiply-add per term; sum_of_squares squares and adds in double.
#include "kernels/optimizer.h"

#include <limits>

#include "kernels/blocked.h"
#include "kernels/narrow.h"

namespace convoy::cpu::CONVOY_ISA {

constexpr int64_t kPiece = 16384;

/// Calls body(first, last) for pieces of a flat array.
template <class Body>
static inline void for_each_piece(int64_t count, const Body& body) {
  parallel_for(ceil_div(count, kPiece), smaller(count, kPiece),
               [&](int64_t i) { body(i * kPiece, smaller((i + 1) * kPiece, count)); });
}

static inline Vec square_root(Vec v) {
  for (int l = 0; l < kBlock; ++l) v[l] = __builtin_sqrtf(v[l]);
  return v;
}

/// A block of elements on its way through an update.
struct Elements {
  Vec value, gradient, states[2];
};

static void store_copy(const UpdateArrays& arrays, int64_t at, Vec value, int64_t count) {
  auto* to = static_cast<uint16_t*>(arrays.copy) + at;
  for (int64_t l = 0; l < count; ++l)
    to[l] = arrays.copy_type == DType::kF16 ? to_f16_bits(value[l]) : to_bf16_bits(value[l]);
}

/// Applies step(Elements&) to a run. The factor is a product of its own only where there is one, so that no rounding
/// depends on whether it is asked for.
template <int kStates, class Step>
static inline void update_run(const UpdateArrays& arrays, const UpdateRun& run, const float* factor, const Step& step) {
  for_each_piece(run.count, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; i += kBlock) {
      const int64_t at = run.offset + i, rest = smaller(last - i, kBlock);
      Elements e{};
      if (rest == kBlock) {
        e.value = load(arrays.values + at);
        e.gradient = load(arrays.gradients + at);
        for (int k = 0; k < kStates; ++k) e.states[k] = load(arrays.states[k] + at);
      } else {
        e.value = load_partial(arrays.values + at, rest);
        e.gradient = load_partial(arrays.gradients + at, rest);
        for (int k = 0; k < kStates; ++k) e.states[k] = load_partial(arrays.states[k] + at, rest);
      }
      if (factor) e.gradient *= *factor;
      step(e);
      if (rest == kBlock) {
        store(arrays.values + at, e.value);
        for (int k = 0; k < kStates; ++k) store(arrays.states[k] + at, e.states[k]);
      } else {
        store_partial(arrays.values + at, e.value, rest);
        for (int k = 0; k < kStates; ++k) store_partial(arrays.states[k] + at, e.states[k], rest);
      }
      if (arrays.copy) store_copy(arrays, at, e.value, rest);
    }
  });
}

static void update_run(const UpdateArrays& arrays, const UpdateRun& run, const UpdateRule& rule, const float* factor) {
  const UpdateScalars s(rule);
  const float rate = static_cast<float>(s.rate * run.lr_factor), decay = static_cast<float>(run.weight_decay);
  const float shrink = static_cast<float>(1 - s.lr * run.lr_factor * run.weight_decay);
  const auto adam = [&](Elements& e) {
    e.states[0] += (e.gradient - e.states[0]) * s.beta1_rest;
    e.states[1] = e.states[1] * s.beta2 + e.gradient * e.gradient * s.beta2_rest;
    e.value -= e.states[0] / (square_root(e.states[1]) * s.root_scale + s.eps) * rate;
  };
  switch (rule.kind) {
    case UpdateKind::kSgd: {
      const float old_share = s.first ? 0.0f : s.momentum;
      return update_run<1>(arrays, run, factor, [&](Elements& e) {
        e.gradient += e.value * decay;
        e.states[0] = s.first ? e.gradient : e.states[0] * old_share + e.gradient;
        e.value -= (s.nesterov ? e.gradient + e.states[0] * s.momentum : e.states[0]) * rate;
      });
    }
    case UpdateKind::kAdam:
      return update_run<2>(arrays, run, factor, [&](Elements& e) {
        e.gradient += e.value * decay;
        adam(e);
      });
    case UpdateKind::kAdamW:
      return update_run<2>(arrays, run, factor, [&](Elements& e) {
        e.value *= shrink;
        adam(e);
      });
    case UpdateKind::kRmsprop: {
      const auto direction = [&](Elements& e) {
        e.gradient += e.value * decay;
        e.states[0] = e.states[0] * s.alpha + e.gradient * e.gradient * s.alpha_rest;
        return e.gradient / (square_root(e.states[0]) + s.eps);
      };
      if (s.momentum == 0)
        return update_run<1>(arrays, run, factor, [&](Elements& e) { e.value -= direction(e) * rate; });
      return update_run<2>(arrays, run, factor, [&](Elements& e) {
        e.states[1] = e.states[1] * s.momentum + direction(e);
        e.value -= e.states[1] * rate;
      });
    }
    case UpdateKind::kAdadelta:
      return update_run<2>(arrays, run, factor, [&](Elements& e) {
        e.gradient += e.value * decay;
        e.states[0] = e.states[0] * s.alpha + e.gradient * e.gradient * s.alpha_rest;
        const Vec step = square_root(e.states[1] + s.eps) / square_root(e.states[0] + s.eps) * e.gradient;
        e.value -= step * rate;
        e.states[1] = e.states[1] * s.alpha + step * step * s.alpha_rest;
      });
  }
}

void update_parameters(const UpdateArrays& arrays, const UpdateRun* runs, int64_t run_count, const UpdateRule& rule,
                       const float* factor) {
  if (factor && *factor != *factor) return;
  for (int64_t r = 0; r < run_count; ++r) update_run(arrays, runs[r], rule, factor);
}

void gradient_factor(const double* sum_of_squares, float unscale, float max_norm, float* factor) {
  const double norm = static_cast<double>(unscale) * std::sqrt(*sum_of_squares), limit = static_cast<double>(max_norm);
  const double share = max_norm > 0 ? limit / (norm + 1e-6) : 1;
  *factor = norm <= std::numeric_limits<double>::max() ? static_cast<float>(unscale * (share < 1 ? share : 1)) : NAN;
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
