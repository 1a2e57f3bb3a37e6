// Softmax over channels (blocked images) and along rows. Bytes: x is read once from memory and y written once; the
// further passes over a group of pixels or a row find them in the cache.
// Numerics: float, the maximum subtracted first; every lane sums its own terms, lanes are merged by a tree. One pixel
// or row is the work of one thread, so the number of threads is irrelevant.
#include "kernels/softmax.h"

#include "kernels/pixel_groups.h"

namespace convoy::cpu::CONVOY_ISA {

constexpr float kLowest = -__builtin_inff();

template <bool kLog>
static void forward_channels(const View& x, const View& y) {
  for_each_group(x, [&](int64_t n, int64_t first, int64_t count) {
    const int64_t blocks = x.blocks(), at = first * kBlock;
    const Vec high = fold_pixels(
        blocks, count, splat(kLowest),
        [&](int64_t b, int64_t i) {
          const Vec v = load(block_at(x, n, b) + at + i * kBlock);
          return b + 1 < blocks ? v : (channel_mask(x.c, b) ? v : splat(kLowest));
        },
        [](Vec a, Vec b) { return max(a, b); });
    const Vec sums = sum_of_pixels(blocks, count, [&](int64_t b, int64_t i) {
      const Vec e = exp_nonpositive(load(block_at(x, n, b) + at + i * kBlock) - high[i]);
      const Vec kept = b + 1 < blocks ? e : zero_pads(e, channel_mask(x.c, b));
      if constexpr (!kLog) store(block_at(y, n, b) + at + i * kBlock, kept);
      return kept;
    });
    const Vec shift = kLog ? high + log_positive(sums) : Vec{}, factor = 1.0f / sums;
    for (int64_t b = 0; b < blocks; ++b) {
      const IVec mask = channel_mask(x.c, b);
      const float* in = block_at(x, n, b) + at;
      float* out = block_at(y, n, b) + at;
      for (int64_t i = 0; i < count; ++i) {
        if constexpr (kLog)
          store(out + i * kBlock, zero_pads(load(in + i * kBlock) - shift[i], mask));
        else
          store(out + i * kBlock, zero_pads(load(out + i * kBlock) * factor[i], mask));
      }
    }
  });
}

void softmax_channels(const View& x, bool log, const View& y) {
  log ? forward_channels<true>(x, y) : forward_channels<false>(x, y);
}

template <bool kLog>
static void backward_channels(const View& dy, const View& y, const View& dx) {
  for_each_group(dy, [&](int64_t n, int64_t first, int64_t count) {
    const int64_t blocks = dy.blocks(), at = first * kBlock;
    const Vec sums = sum_of_pixels(blocks, count, [&](int64_t b, int64_t i) {
      const Vec g = load(block_at(dy, n, b) + at + i * kBlock);
      return kLog ? g : g * load(block_at(y, n, b) + at + i * kBlock);
    });
    for (int64_t b = 0; b < blocks; ++b) {
      const IVec mask = channel_mask(dy.c, b);
      const float *gradient = block_at(dy, n, b) + at, *out = block_at(y, n, b) + at;
      float* to = block_at(dx, n, b) + at;
      for (int64_t i = 0; i < count; ++i) {
        const Vec g = load(gradient + i * kBlock), v = load(out + i * kBlock);
        store(to + i * kBlock, zero_pads(kLog ? g - exp_nonpositive(v) * sums[i] : v * (g - sums[i]), mask));
      }
    }
  });
}

void softmax_channels_backward(const View& dy, const View& y, bool log, const View& dx) {
  log ? backward_channels<true>(dy, y, dx) : backward_channels<false>(dy, y, dx);
}

/// Vector i of a row, `fill` behind its end.
static inline Vec row_vector(const float* row, int64_t i, int64_t length, float fill) {
  if (i + kBlock <= length) return load(row + i);
  const Vec v = load_partial(row + i, length - i);
  return channel_mask(length - i, 0) ? v : splat(fill);
}

template <class Body>
static inline void for_each_row_of(int64_t rows, int64_t length, const Body& body) {
  const int64_t together = larger(1, 4096 / larger(length, 1));
  parallel_for(ceil_div(rows, together), 3 * together * length, [&](int64_t task) {
    for (int64_t r = task * together; r < smaller((task + 1) * together, rows); ++r) body(r * length);
  });
}

void softmax_rows(const float* x, int64_t rows, int64_t length, bool log, float* y) {
  for_each_row_of(rows, length, [&](int64_t start) {
    const float* in = x + start;
    float* out = y + start;
    Vec highs = splat(kLowest), sums{};
    for (int64_t i = 0; i < length; i += kBlock) highs = max(highs, row_vector(in, i, length, kLowest));
    float high = highs[0];
    for (int l = 1; l < kBlock; ++l) high = highs[l] > high ? highs[l] : high;
    for (int64_t i = 0; i < length; i += kBlock) {
      const Vec e = exp_nonpositive(row_vector(in, i, length, kLowest) - high);
      sums += e;
      if (!log) store_partial(out + i, e, length - i);
    }
    const float total = sum(sums);
    const float shift = log ? high + log_positive(splat(total))[0] : 0, factor = 1.0f / total;
    for (int64_t i = 0; i < length; i += kBlock)
      store_partial(out + i, log ? row_vector(in, i, length, 0) - shift : row_vector(out, i, length, 0) * factor,
                    length - i);
  });
}

void softmax_rows_backward(const float* dy, const float* y, int64_t rows, int64_t length, bool log, float* dx) {
  for_each_row_of(rows, length, [&](int64_t start) {
    Vec sums{};
    for (int64_t i = 0; i < length; i += kBlock) {
      const Vec g = row_vector(dy + start, i, length, 0);
      sums += log ? g : g * row_vector(y + start, i, length, 0);
    }
    const float total = sum(sums);
    for (int64_t i = 0; i < length; i += kBlock) {
      const Vec g = row_vector(dy + start, i, length, 0), v = row_vector(y + start, i, length, 0);
      store_partial(dx + start + i, log ? g - exp_nonpositive(v) * total : v * (g - total), length - i);
    }
  });
}

}  // namespace convoy::cpu::CONVOY_ISA
