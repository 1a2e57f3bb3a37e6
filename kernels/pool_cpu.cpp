// Pooling on blocked tensors, one row of outputs (or of input gradients) of one channel block at a time.
// Bytes: forward reads x once from memory (the rows of overlapping windows stay in the cache) and writes y (and index,
// 4 B); the backward kernels gather the rows of windows over
// a row of dx, which stays in the first-level cache: they read dy (and index) and write dx once.
// Numerics: windows are summed in float in row-major order; bins of adaptive pooling form chunks of 512 pixels in
// float and merge them in double. Divisions are by multiplication with the reciprocal (1 ulp).
#include "kernels/pool.h"

#include "kernels/blocked.h"

namespace convoy::cpu::CONVOY_ISA {

/// Calls body(n, b, row) for every row of every channel block.
template <class Body>
static inline void for_each_row(const View& x, int64_t elements, const Body& body) {
  const int64_t blocks = x.blocks();
  parallel_for(x.n * blocks * x.h, elements, [&](int64_t i) { body(i / x.h / blocks, i / x.h % blocks, i % x.h); });
}

struct Range {
  int64_t first, last;
  int64_t count() const { return last - first; }
};

/// The input positions of window o, clipped to the input; `padded` is its extent clipped to the padded input.
struct Window {
  Range inside;
  int64_t padded;
};
static inline Window window(int64_t o, int kernel, int stride, int pad, int64_t extent) {
  const int64_t start = o * stride - pad, end = smaller(start + kernel, extent + pad);
  return {{larger(start, 0), smaller(end, extent)}, end - start};
}
/// The windows that cover input position i.
static inline Range windows_over(int64_t i, int kernel, int stride, int pad, int64_t windows) {
  const int64_t first = i + pad < kernel ? 0 : (i + pad - kernel) / stride + 1;
  return {first, smaller((i + pad) / stride + 1, windows)};
}
template <bool kIndex>
static void max_pool_rows(const View& x, const Pool2d& pool, const View& y, const View* index) {
  for_each_row(y, y.w * kBlock * pool.kernel_h * pool.kernel_w, [&](int64_t n, int64_t b, int64_t oy) {
    const IVec mask = channel_mask(y.c, b);
    const float* in = block_at(x, n, b);
    float* out = block_at(y, n, b) + oy * y.w * kBlock;
    float* where = kIndex ? block_at(*index, n, b) + oy * y.w * kBlock : nullptr;
    const Range rows = window(oy, pool.kernel_h, pool.stride_h, pool.pad_h, x.h).inside;
    for (int64_t ox = 0; ox < y.w; ++ox) {
      const Range columns = window(ox, pool.kernel_w, pool.stride_w, pool.pad_w, x.w).inside;
      Vec best = splat(-__builtin_inff());
      IVec position = IVec{} + static_cast<int32_t>(rows.first * x.w + columns.first);
      for (int64_t h = rows.first; h < rows.last; ++h) {
        for (int64_t w = columns.first; w < columns.last; ++w) {
          const Vec v = load(in + (h * x.w + w) * kBlock);
          const IVec better = (v > best) | (v != v);
          best = better ? v : best;
          if constexpr (kIndex) position = better ? IVec{} + static_cast<int32_t>(h * x.w + w) : position;
        }
      }
      store(out + ox * kBlock, zero_pads(best, mask));
      if constexpr (kIndex) {
        position &= mask;
        std::memcpy(where + ox * kBlock, &position, sizeof position);
      }
    }
  });
}

void max_pool(const View& x, const Pool2d& pool, const View& y, const View* index) {
  index != nullptr ? max_pool_rows<true>(x, pool, y, index) : max_pool_rows<false>(x, pool, y, index);
}

void max_pool_backward(const View& dy, const View& index, const Pool2d& pool, const View& dx) {
  for_each_row(dx, dx.w * kBlock * 4, [&](int64_t n, int64_t b, int64_t h) {
    const float* gradient = block_at(dy, n, b);
    const float* where = block_at(index, n, b);
    float* out = block_at(dx, n, b) + h * dx.w * kBlock;
    const Range rows = windows_over(h, pool.kernel_h, pool.stride_h, pool.pad_h, dy.h);
    for (int64_t w = 0; w < dx.w; ++w) store(out + w * kBlock, Vec{});
    for (int64_t oy = rows.first; oy < rows.last; ++oy) {
      for (int64_t ox = 0; ox < dy.w; ++ox) {
        const Range columns = window(ox, pool.kernel_w, pool.stride_w, pool.pad_w, dx.w).inside;
        const Vec g = load(gradient + (oy * dy.w + ox) * kBlock);
        IVec position;
        std::memcpy(&position, where + (oy * dy.w + ox) * kBlock, sizeof position);
        position -= static_cast<int32_t>(h * dx.w);
        for (int64_t w = columns.first; w < columns.last; ++w)
          store(out + w * kBlock, load(out + w * kBlock) + (position == static_cast<int32_t>(w) ? g : Vec{}));
      }
    }
  });
}

/// 1 / the number of pixels that the average over the window divides by.
static inline float reciprocal_area(const Pool2d& pool, const Window& rows, const Window& columns) {
  const int64_t area =
      pool.count_include_pad ? rows.padded * columns.padded : rows.inside.count() * columns.inside.count();
  return 1.0f / static_cast<float>(area);
}

void avg_pool(const View& x, const Pool2d& pool, const View& y) {
  for_each_row(y, y.w * kBlock * pool.kernel_h * pool.kernel_w, [&](int64_t n, int64_t b, int64_t oy) {
    const float* in = block_at(x, n, b);
    float* out = block_at(y, n, b) + oy * y.w * kBlock;
    const Window rows = window(oy, pool.kernel_h, pool.stride_h, pool.pad_h, x.h);
    for (int64_t ox = 0; ox < y.w; ++ox) {
      const Window columns = window(ox, pool.kernel_w, pool.stride_w, pool.pad_w, x.w);
      Vec total{};
      for (int64_t h = rows.inside.first; h < rows.inside.last; ++h)
        for (int64_t w = columns.inside.first; w < columns.inside.last; ++w) total += load(in + (h * x.w + w) * kBlock);
      store(out + ox * kBlock, total * reciprocal_area(pool, rows, columns));
    }
  });
}

void avg_pool_backward(const View& dy, const Pool2d& pool, const View& dx) {
  for_each_row(dx, dx.w * kBlock * 4, [&](int64_t n, int64_t b, int64_t h) {
    const float* gradient = block_at(dy, n, b);
    float* out = block_at(dx, n, b) + h * dx.w * kBlock;
    const Range over_rows = windows_over(h, pool.kernel_h, pool.stride_h, pool.pad_h, dy.h);
    for (int64_t w = 0; w < dx.w; ++w) store(out + w * kBlock, Vec{});
    for (int64_t oy = over_rows.first; oy < over_rows.last; ++oy) {
      const Window rows = window(oy, pool.kernel_h, pool.stride_h, pool.pad_h, dx.h);
      for (int64_t ox = 0; ox < dy.w; ++ox) {
        const Window columns = window(ox, pool.kernel_w, pool.stride_w, pool.pad_w, dx.w);
        const Vec g = load(gradient + (oy * dy.w + ox) * kBlock) * reciprocal_area(pool, rows, columns);
        for (int64_t w = columns.inside.first; w < columns.inside.last; ++w)
          store(out + w * kBlock, load(out + w * kBlock) + g);
      }
    }
  });
}

/// Input positions of bin o, and the bins that cover input position i.
static inline Range bin(int64_t o, int64_t extent, int64_t bins) {
  return {o * extent / bins, ceil_div((o + 1) * extent, bins)};
}
static inline Range bins_over(int64_t i, int64_t extent, int64_t bins) {
  if (bins == 1) return {0, 1};
  return {i * bins / extent, ceil_div((i + 1) * bins, extent)};
}

void adaptive_avg_pool(const View& x, const View& y) {
  for_each_row(y, x.pixels() / y.h * kBlock, [&](int64_t n, int64_t b, int64_t oy) {
    const float* in = block_at(x, n, b);
    float* out = block_at(y, n, b) + oy * y.w * kBlock;
    const Range rows = bin(oy, x.h, y.h);
    for (int64_t ox = 0; ox < y.w; ++ox) {
      const Range columns = bin(ox, x.w, y.w);
      DVec total{};
      if (columns.count() == x.w)
        total = sum_run(in + rows.first * x.w * kBlock, rows.count() * x.w);
      else
        for (int64_t h = rows.first; h < rows.last; ++h)
          total += sum_run(in + (h * x.w + columns.first) * kBlock, columns.count());
      store(out + ox * kBlock, to_float(total * (1.0 / static_cast<double>(rows.count() * columns.count()))));
    }
  });
}

void adaptive_avg_pool_backward(const View& dy, const View& dx) {
  for_each_row(dx, dx.w * kBlock, [&](int64_t n, int64_t b, int64_t h) {
    const float* gradient = block_at(dy, n, b);
    float* out = block_at(dx, n, b) + h * dx.w * kBlock;
    const Range over_rows = bins_over(h, dx.h, dy.h);
    Range previous{-1, -1};
    Vec total{};
    for (int64_t w = 0; w < dx.w; ++w) {
      const Range over_columns = bins_over(w, dx.w, dy.w);
      if (over_columns.first != previous.first || over_columns.last != previous.last) {
        previous = over_columns;
        total = Vec{};
        for (int64_t oy = over_rows.first; oy < over_rows.last; ++oy)
          for (int64_t ox = over_columns.first; ox < over_columns.last; ++ox) {
            const float area = static_cast<float>(bin(oy, dx.h, dy.h).count() * bin(ox, dx.w, dy.w).count());
            total += load(gradient + (oy * dy.w + ox) * kBlock) * (1.0f / area);
          }
      }
      store(out + w * kBlock, total);
    }
  });
}

/// Where lane l of pixel p of block b of an index tensor points.
static inline int32_t place(const View& index, int64_t n, int64_t b, int64_t p, int64_t l) {
  int32_t at;
  std::memcpy(&at, block_at(index, n, b) + p * kBlock + l, sizeof at);
  return at;
}

// A scatter: a channel block of an image is the work of one thread.
void max_unpool(const View& z, const View& index, const View& y, int64_t* bad) {
  const int64_t blocks = y.blocks();
  int64_t first_bad = z.count();
  parallel_for(y.n * blocks, (y.pixels() + 2 * z.pixels()) * kBlock, [&](int64_t task) {
    const int64_t n = task / blocks, b = task % blocks, lanes = smaller(kBlock, y.c - b * kBlock);
    const float* in = block_at(z, n, b);
    float* out = block_at(y, n, b);
    for (int64_t i = 0; i < y.pixels() * kBlock; i += kBlock) store(out + i, Vec{});
    int64_t found = z.count();
    for (int64_t p = 0; p < z.pixels(); ++p) {
      for (int64_t l = 0; l < lanes; ++l) {
        const int32_t at = place(index, n, b, p, l);
        if (at >= 0 && at < y.pixels())
          out[at * kBlock + l] = in[p * kBlock + l];
        else
          found = smaller(found, (n * z.c + b * kBlock + l) * z.pixels() + p);
      }
    }
    if (found < z.count()) {
#pragma omp critical(max_unpool_bad_index)
      first_bad = smaller(first_bad, found);
    }
  });
  *bad = first_bad < z.count() ? first_bad : -1;
}

void max_unpool_backward(const View& dy, const View& index, const View& dz) {
  for_each_row(dz, 2 * dz.w * kBlock, [&](int64_t n, int64_t b, int64_t row) {
    const int64_t lanes = smaller(kBlock, dz.c - b * kBlock);
    const float* gradient = block_at(dy, n, b);
    float* to = block_at(dz, n, b);
    for (int64_t p = row * dz.w; p < (row + 1) * dz.w; ++p) {
      Vec v{};
      for (int64_t l = 0; l < lanes; ++l) {
        const int32_t at = place(index, n, b, p, l);
        if (at >= 0 && at < dy.pixels()) v[l] = gradient[at * kBlock + l];
      }
      store(to + p * kBlock, v);
    }
  });
}

}  // namespace convoy::cpu::CONVOY_ISA
