// Group and L2 normalisation. Bytes: group_norm reads x three times (sum, squares, apply) and writes y; its backward
// reads dy and x twice and writes dx; l2_norm reads x once from memory, its backward dy and x twice.
// Numerics: sums over pixels form chunks of 512 in float, merged in double; the mean is subtracted before squaring.
// Everything is cut by shape alone, so the number of threads is irrelevant.
#include "kernels/group_norm.h"

#include <cmath>

#include "kernels/pixel_groups.h"

namespace convoy::cpu::CONVOY_ISA {

/// Sums of `kSums` quantities over the pixels of each image and channel: make(n, b) gives the function (i, sums) that
/// adds those of the vector at offset i of block b. Sum s of channel c of image n ends in
/// result[(s * N + n) * pitch + c], with the channels padded to whole blocks as pitch.
template <int kSums, class Make>
static inline void sum_channels(const View& x, double* result, const Make& make) {
  const int64_t blocks = x.blocks();
  parallel_for(x.n * blocks, kSums * x.pixels() * kBlock, [&](int64_t task) {
    const auto add = make(task / blocks, task % blocks);
    DVec totals[kSums]{};
    for (int64_t first = 0; first < x.pixels(); first += kSumChunk) {
      Vec sums[kSums]{};
      const int64_t last = smaller(first + kSumChunk, x.pixels());
      for (int64_t i = first * kBlock; i < last * kBlock; i += kBlock) add(i, sums);
      for (int s = 0; s < kSums; ++s) totals[s] += to_double(sums[s]);
    }
    for (int s = 0; s < kSums; ++s) std::memcpy(result + (s * x.n * blocks + task) * kBlock, &totals[s], sizeof(DVec));
  });
}

/// The channels of block b of image n get their group's value, pad lanes zero.
static inline Vec of_groups(const float* values, int64_t channels, int64_t groups, int64_t n, int64_t b) {
  Vec v{};
  for (int64_t c = b * kBlock; c < smaller(channels, (b + 1) * kBlock); ++c)
    v[c - b * kBlock] = values[n * groups + c / (channels / groups)];
  return v;
}

/// Mean over a group of each image's terms term(n, c), which are sums over pixels: into means (N x groups).
template <class Term>
static inline void group_means(const View& x, int64_t groups, float* means, const Term& term) {
  const int64_t size = x.c / groups;
  for (int64_t i = 0; i < x.n * groups; ++i) {
    double total = 0;
    for (int64_t c = 0; c < size; ++c) total += term(i / groups, i % groups * size + c);
    means[i] = static_cast<float>(total / static_cast<double>(size * x.pixels()));
  }
}

void group_norm(const View& x, const float* weight, const float* bias, int64_t groups, float eps, const View& y,
                float* mean, float* rstd, double* workspace) {
  const int64_t pitch = x.blocks() * kBlock;
  const auto summed = [&](int64_t n, int64_t c) { return workspace[n * pitch + c]; };
  sum_channels<1>(x, workspace, [&](int64_t n, int64_t b) {
    return [in = block_at(x, n, b)](int64_t i, Vec* sums) { sums[0] += load(in + i); };
  });
  group_means(x, groups, mean, summed);
  sum_channels<1>(x, workspace, [&](int64_t n, int64_t b) {
    return [in = block_at(x, n, b), m = of_groups(mean, x.c, groups, n, b)](int64_t i, Vec* sums) {
      const Vec d = load(in + i) - m;
      sums[0] += d * d;
    };
  });
  group_means(x, groups, rstd, summed);
  for (int64_t i = 0; i < x.n * groups; ++i)
    rstd[i] = static_cast<float>(1 / std::sqrt(static_cast<double>(rstd[i]) + static_cast<double>(eps)));
  for_each_chunk(x, 2 * kSumChunk, [&](int64_t n, int64_t b, int64_t first, int64_t last) {
    const Vec m = of_groups(mean, x.c, groups, n, b), shift = load_channels(bias, x.c, b);
    const Vec factor = of_groups(rstd, x.c, groups, n, b) * load_channels(weight, x.c, b);
    const float* in = block_at(x, n, b);
    float* out = block_at(y, n, b);
    for (int64_t i = first * kBlock; i < last * kBlock; i += kBlock)
      store(out + i, (load(in + i) - m) * factor + shift);
  });
}

void group_norm_backward(const View& dy, const View& x, const float* mean, const float* rstd, const float* weight,
                         int64_t groups, const View& dx, float* dweight, float* dbias, double* workspace) {
  const int64_t pitch = x.blocks() * kBlock;
  const double *sums = workspace, *sums_xhat = workspace + x.n * pitch;
  auto* part = reinterpret_cast<float*>(workspace + 2 * x.n * pitch);  // mean over the group of weight * dy
  float* part_xhat = part + x.n * groups;                              // and of weight * dy * xhat
  sum_channels<2>(x, workspace, [&](int64_t n, int64_t b) {
    return [gradient = block_at(dy, n, b), in = block_at(x, n, b), m = of_groups(mean, x.c, groups, n, b),
            r = of_groups(rstd, x.c, groups, n, b)](int64_t i, Vec* s) {
      const Vec g = load(gradient + i);
      s[0] += g;
      s[1] += g * ((load(in + i) - m) * r);
    };
  });
  const auto weighted = [&](const double* of) {
    return [=](int64_t n, int64_t c) { return of[n * pitch + c] * static_cast<double>(weight[c]); };
  };
  group_means(x, groups, part, weighted(sums));
  group_means(x, groups, part_xhat, weighted(sums_xhat));
  for (int64_t c = 0; c < x.c; ++c) {
    double bias = 0, scale = 0;
    for (int64_t n = 0; n < x.n; ++n) {
      bias += sums[n * pitch + c];
      scale += sums_xhat[n * pitch + c];
    }
    dbias[c] = static_cast<float>(bias);
    dweight[c] = static_cast<float>(scale);
  }
  for_each_chunk(x, 2 * kSumChunk, [&](int64_t n, int64_t b, int64_t first, int64_t last) {
    const Vec m = of_groups(mean, x.c, groups, n, b), r = of_groups(rstd, x.c, groups, n, b);
    const Vec p = of_groups(part, x.c, groups, n, b), q = of_groups(part_xhat, x.c, groups, n, b);
    const Vec w = load_channels(weight, x.c, b);
    const float *gradient = block_at(dy, n, b), *in = block_at(x, n, b);
    float* out = block_at(dx, n, b);
    for (int64_t i = first * kBlock; i < last * kBlock; i += kBlock)
      store(out + i, r * (w * load(gradient + i) - p - (load(in + i) - m) * r * q));
  });
}

static inline Vec root(Vec v) {
  for (int l = 0; l < kBlock; ++l) v[l] = __builtin_sqrtf(v[l]);
  return v;
}

/// Norms of `count` pixels from `first` of image n.
static inline Vec norms_of(const View& x, int64_t n, int64_t first, int64_t count) {
  return root(sum_of_pixels(x.blocks(), count, [&](int64_t b, int64_t i) {
    const Vec v = load(block_at(x, n, b) + (first + i) * kBlock);
    return v * v;
  }));
}

void l2_norm(const View& x, const float* weight, float eps, const View& y) {
  for_each_group(x, [&](int64_t n, int64_t first, int64_t count) {
    const Vec factor = 1.0f / (norms_of(x, n, first, count) + eps);
    for (int64_t b = 0; b < x.blocks(); ++b) {
      const Vec w = load_channels(weight, x.c, b);
      const float* in = block_at(x, n, b) + first * kBlock;
      float* out = block_at(y, n, b) + first * kBlock;
      for (int64_t i = 0; i < count; ++i) store(out + i * kBlock, load(in + i * kBlock) * factor[i] * w);
    }
  });
}

void l2_norm_backward(const View& dy, const View& x, const float* weight, float eps, const View& dx, float* dweight,
                      float* workspace) {
  for_each_group(x, [&](int64_t n, int64_t first, int64_t count) {
    const Vec norms = norms_of(x, n, first, count), factor = 1.0f / (norms + eps);
    const Vec dots = sum_of_pixels(x.blocks(), count, [&](int64_t b, int64_t i) {
      const int64_t at = (first + i) * kBlock;
      return load(block_at(dy, n, b) + at) * load_channels(weight, x.c, b) * load(block_at(x, n, b) + at);
    });
    const Vec back = norms > 0.0f ? dots * factor * factor / norms : Vec{};
    store_partial(workspace + n * x.pixels() + first, factor, count);
    for (int64_t b = 0; b < x.blocks(); ++b) {
      const Vec w = load_channels(weight, x.c, b);
      const float *gradient = block_at(dy, n, b) + first * kBlock, *in = block_at(x, n, b) + first * kBlock;
      float* out = block_at(dx, n, b) + first * kBlock;
      for (int64_t i = 0; i < count; ++i)
        store(out + i * kBlock, w * load(gradient + i * kBlock) * factor[i] - load(in + i * kBlock) * back[i]);
    }
  });
  parallel_for(x.blocks(), 2 * x.n * x.pixels() * kBlock, [&](int64_t b) {
    DVec total{};
    for (int64_t n = 0; n < x.n; ++n) {
      const float *gradient = block_at(dy, n, b), *in = block_at(x, n, b), *factor = workspace + n * x.pixels();
      for (int64_t first = 0; first < x.pixels(); first += kSumChunk) {
        Vec s{};
        for (int64_t p = first; p < smaller(first + kSumChunk, x.pixels()); ++p)
          s += load(gradient + p * kBlock) * load(in + p * kBlock) * factor[p];
        total += to_double(s);
      }
    }
    store_channels(dweight, x.c, b, to_float(total));
  });
}

}  // namespace convoy::cpu::CONVOY_ISA
