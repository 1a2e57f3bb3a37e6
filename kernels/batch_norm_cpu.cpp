// Batch normalisation on blocked tensors.
// Bytes: stats reads x once (4 B per element); apply reads x (and the residual) and writes y; backward reduce reads dy,
// x (and y); backward apply reads the same and writes dx (and d_residual). All are bound by memory.
// Numerics: a chunk of 512 pixels fits into the first-level cache and is read twice there: its mean, then the sum and
// the squares of the deviations from it (corrected two-pass); chunks are merged in double by Chan, Golub, LeVeque 1979
// in a fixed order. Normalisation subtracts the mean first, so a large mean costs no digits. The chunks depend on the
// shape only, so the results are the same for any number of threads.
#include "kernels/batch_norm.h"

#include <cmath>

#include "kernels/blocked.h"
#include "kernels/simd_activation.h"

namespace convoy::cpu::CONVOY_ISA {

static_assert(kBnChunk == kSumChunk);

/// Partial sums of chunk k of image n of block b: `values` vectors each.
static inline float* partial(const View& x, float* workspace, int64_t values, int64_t n, int64_t b, int64_t k) {
  const int64_t chunks = ceil_div(x.pixels(), kBnChunk);
  return workspace + ((b * x.n + n) * chunks + k) * values * kBlock;
}

void bn_stats(const View& x, float* mean, float* var, float* workspace) {
  for_each_chunk(x, kBnChunk, [&](int64_t n, int64_t b, int64_t first, int64_t last) {
    const float* p = block_at(x, n, b) + first * kBlock;
    const int64_t count = last - first;
    const Vec center = sum_pixels(p, count) * (1.0f / static_cast<float>(count));
    Vec s0{}, s1{}, q0{}, q1{};
    int64_t i = 0;
    for (; i + 2 <= count; i += 2) {
      const Vec d0 = load(p + i * kBlock) - center, d1 = load(p + (i + 1) * kBlock) - center;
      s0 += d0;
      q0 += d0 * d0;
      s1 += d1;
      q1 += d1 * d1;
    }
    if (i < count) {
      const Vec d = load(p + i * kBlock) - center;
      s0 += d;
      q0 += d * d;
    }
    float* out = partial(x, workspace, 3, n, b, first / kBnChunk);
    store(out, center);
    store(out + kBlock, s0 + s1);
    store(out + 2 * kBlock, q0 + q1);
  });
  const int64_t chunks = ceil_div(x.pixels(), kBnChunk);
  parallel_for(x.blocks(), 3 * x.n * chunks * kBlock, [&](int64_t b) {
    const float* parts = partial(x, workspace, 3, 0, b, 0);
    const auto pixels_of = [&](int64_t i) {
      return static_cast<double>(smaller(kBnChunk, x.pixels() - i % chunks * kBnChunk));
    };
    const auto part = [&](int64_t i, int64_t value) { return to_double(load(parts + (3 * i + value) * kBlock)); };
    DVec total{};
    for (int64_t i = 0; i < x.n * chunks; ++i) total += part(i, 0) * pixels_of(i) + part(i, 1);
    const double count = static_cast<double>(x.n * x.pixels());
    const DVec m = total / count;
    DVec squares{};
    for (int64_t i = 0; i < x.n * chunks; ++i) {
      const double pixels = pixels_of(i);
      const DVec s = part(i, 1), offset = part(i, 0) + s / pixels - m;
      squares += part(i, 2) - s * s / pixels + offset * offset * pixels;
    }
    const DVec v = squares / count;
    store_channels(mean, x.c, b, to_float(m));
    store_channels(var, x.c, b, to_float(v > 0.0 ? v : (v != v ? v : DVec{})));
  });
}

/// 1 / sqrt(var + eps), zeros in the pad lanes.
static Vec inverse_deviation(const float* var, int64_t channels, int64_t b, float eps) {
  Vec r{};
  for (int l = 0; l < kBlock && b * kBlock + l < channels; ++l)
    r[l] = static_cast<float>(1 / std::sqrt(static_cast<double>(var[b * kBlock + l]) + static_cast<double>(eps)));
  return r;
}

constexpr int64_t kApplyChunk = 1024;

template <Activation kAct, bool kResidual>
static void apply(const View& x, const View* residual, const float* mean, const float* var, const float* gamma,
                  const float* beta, float eps, const View& y) {
  for_each_chunk(x, kApplyChunk, [&](int64_t n, int64_t b, int64_t first, int64_t last) {
    const Vec m = load_channels(mean, x.c, b), shift = load_channels(beta, x.c, b);
    const Vec scale = load_channels(gamma, x.c, b) * inverse_deviation(var, x.c, b, eps);
    const float* in = block_at(x, n, b);
    const float* add = kResidual ? block_at(*residual, n, b) : nullptr;
    float* out = block_at(y, n, b);
    for (int64_t i = first * kBlock; i < last * kBlock; i += kBlock) {
      Vec v = (load(in + i) - m) * scale + shift;
      if constexpr (kResidual) v += load(add + i);
      store(out + i, activate<kAct>(v));
    }
  });
}

template <Activation kAct>
static void apply(const View& x, const View* residual, const float* mean, const float* var, const float* gamma,
                  const float* beta, float eps, const View& y) {
  if (residual != nullptr)
    apply<kAct, true>(x, residual, mean, var, gamma, beta, eps, y);
  else
    apply<kAct, false>(x, residual, mean, var, gamma, beta, eps, y);
}

void bn_apply(const View& x, const View* residual, const float* mean, const float* var, const float* gamma,
              const float* beta, float eps, Activation act, const View& y) {
  if (act == Activation::kRelu)
    apply<Activation::kRelu>(x, residual, mean, var, gamma, beta, eps, y);
  else if (act == Activation::kRelu6)
    apply<Activation::kRelu6>(x, residual, mean, var, gamma, beta, eps, y);
  else
    apply<Activation::kNone>(x, residual, mean, var, gamma, beta, eps, y);
}

void bn_update_running(const float* mean, const float* var, int64_t count, float momentum, float* running_mean,
                       float* running_var, int64_t* num_batches_tracked, int64_t channels) {
  const double m = momentum, unbiased = static_cast<double>(count) / static_cast<double>(count - 1);
  for (int64_t c = 0; c < channels; ++c) {
    running_mean[c] = static_cast<float>((1 - m) * running_mean[c] + m * mean[c]);
    running_var[c] = static_cast<float>((1 - m) * running_var[c] + m * unbiased * var[c]);
  }
  *num_batches_tracked += 1;
}

template <Activation kAct>
static void backward_reduce(const View& dy, const View* y, const View& x, const float* mean, float* workspace) {
  for_each_chunk(x, kBnChunk, [&](int64_t n, int64_t b, int64_t first, int64_t last) {
    const Vec m = load_channels(mean, x.c, b);
    const float* in = block_at(x, n, b);
    const float* gradient = block_at(dy, n, b);
    const float* out = kAct == Activation::kNone ? nullptr : block_at(*y, n, b);
    Vec s0{}, s1{}, q0{}, q1{};
    const auto add = [&](int64_t p, Vec& s, Vec& q) {
      Vec g = load(gradient + p * kBlock);
      if constexpr (kAct != Activation::kNone) g = activate_backward<kAct>(g, load(out + p * kBlock));
      s += g;
      q += g * (load(in + p * kBlock) - m);
    };
    int64_t p = first;
    for (; p + 2 <= last; p += 2) {
      add(p, s0, q0);
      add(p + 1, s1, q1);
    }
    if (p < last) add(p, s0, q0);
    float* sums = partial(x, workspace, 2, n, b, first / kBnChunk);
    store(sums, s0 + s1);
    store(sums + kBlock, q0 + q1);
  });
}

void bn_backward_reduce(const View& dy, const View* y, const View& x, const float* mean, const float* var, float eps,
                        Activation act, float* sum_dy, float* sum_dy_xhat, float* workspace) {
  if (act == Activation::kRelu)
    backward_reduce<Activation::kRelu>(dy, y, x, mean, workspace);
  else if (act == Activation::kRelu6)
    backward_reduce<Activation::kRelu6>(dy, y, x, mean, workspace);
  else
    backward_reduce<Activation::kNone>(dy, y, x, mean, workspace);
  const int64_t parts = x.n * ceil_div(x.pixels(), kBnChunk);
  parallel_for(x.blocks(), 2 * parts * kBlock, [&](int64_t b) {
    const float* sums = partial(x, workspace, 2, 0, b, 0);
    DVec s{}, q{};
    for (int64_t i = 0; i < parts; ++i) {
      s += to_double(load(sums + 2 * i * kBlock));
      q += to_double(load(sums + (2 * i + 1) * kBlock));
    }
    store_channels(sum_dy, x.c, b, to_float(s));
    store_channels(sum_dy_xhat, x.c, b, to_float(q * to_double(inverse_deviation(var, x.c, b, eps))));
  });
}

/// What bn_backward_apply needs of its arguments: dx = scale * g + slope * (x - mean) + offset.
struct BackwardArguments {
  const View& dy;
  const View* y;
  const View& x;
  const float* mean;
  const float* var;
  const float* gamma;
  float eps;
  const float* sum_dy;
  const float* sum_dy_xhat;
  int64_t count;
  const View& dx;
  const View* d_residual;
};

template <Activation kAct, bool kFrozen>
static void backward_apply(const BackwardArguments& a) {
  const View& x = a.x;
  for_each_chunk(x, kApplyChunk, [&](int64_t n, int64_t b, int64_t first, int64_t last) {
    const Vec deviation = inverse_deviation(a.var, x.c, b, a.eps);
    const Vec scale = load_channels(a.gamma, x.c, b) * deviation;
    Vec m{}, slope{}, offset{};
    if constexpr (!kFrozen) {
      const Vec share = scale * (1.0f / static_cast<float>(a.count));
      m = load_channels(a.mean, x.c, b);
      slope = -share * deviation * load_channels(a.sum_dy_xhat, x.c, b);
      offset = -share * load_channels(a.sum_dy, x.c, b);
    }
    const float* gradient = block_at(a.dy, n, b);
    const float* in = kFrozen ? nullptr : block_at(x, n, b);
    const float* out = kAct == Activation::kNone ? nullptr : block_at(*a.y, n, b);
    float* dx = block_at(a.dx, n, b);
    float* d_residual = a.d_residual == nullptr ? nullptr : block_at(*a.d_residual, n, b);
    for (int64_t i = first * kBlock; i < last * kBlock; i += kBlock) {
      Vec g = load(gradient + i);
      if constexpr (kAct != Activation::kNone) g = activate_backward<kAct>(g, load(out + i));
      Vec d = g * scale;
      if constexpr (!kFrozen) d += (load(in + i) - m) * slope + offset;
      if (d_residual != nullptr) store(d_residual + i, g);
      store(dx + i, d);
    }
  });
}

void bn_backward_apply(const View& dy, const View* y, const View& x, const float* mean, const float* var,
                       const float* gamma, float eps, Activation act, const float* sum_dy, const float* sum_dy_xhat,
                       int64_t count, const View& dx, const View* d_residual) {
  const BackwardArguments a{dy, y, x, mean, var, gamma, eps, sum_dy, sum_dy_xhat, count, dx, d_residual};
  const bool frozen = sum_dy == nullptr;
  if (act == Activation::kRelu)
    frozen ? backward_apply<Activation::kRelu, true>(a) : backward_apply<Activation::kRelu, false>(a);
  else if (act == Activation::kRelu6)
    frozen ? backward_apply<Activation::kRelu6, true>(a) : backward_apply<Activation::kRelu6, false>(a);
  else
    frozen ? backward_apply<Activation::kNone, true>(a) : backward_apply<Activation::kNone, false>(a);
}

}  // namespace convoy::cpu::CONVOY_ISA
