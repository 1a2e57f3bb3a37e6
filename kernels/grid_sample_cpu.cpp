// Sampling at given places. Bytes: four pixels read per pixel written, from the cache where places lie close together.
// Numerics: float. The gradient of x is a scatter: all that goes to one channel block of one image is the work of one
// thread, in the order of the grid, so the number of threads is irrelevant.
#include "kernels/grid_sample.h"

#include "kernels/pixel_groups.h"

namespace convoy::cpu::CONVOY_ISA {
namespace {

/// The pixels that one place reads: offset of each in a block (-1: outside) and its share.
struct Taps {
  int64_t at[4];
  float share[4];
  float right, down;  // shares of the second column and row
};

/// Pixel coordinate of a place along an axis of `size` pixels.
inline float to_pixel(float place, int64_t size, bool align_corners) {
  const float extent = static_cast<float>(size);
  return align_corners ? (place + 1) / 2 * (extent - 1) : ((place + 1) * extent - 1) / 2;
}

inline Taps taps_of(const float* place, const View& x, const GridSampleParams& p) {
  Taps t{{-1, -1, -1, -1}, {}, 0, 0};
  const float px = to_pixel(place[0], x.w, p.align_corners), py = to_pixel(place[1], x.h, p.align_corners);
  if (!(px > -1.5f && px < static_cast<float>(x.w) + 0.5f && py > -1.5f && py < static_cast<float>(x.h) + 0.5f))
    return t;
  const float left = p.nearest ? __builtin_nearbyintf(px) : __builtin_floorf(px);
  const float top = p.nearest ? __builtin_nearbyintf(py) : __builtin_floorf(py);
  if (!p.nearest) t.right = px - left, t.down = py - top;
  for (int i = 0; i < (p.nearest ? 1 : 4); ++i) {
    const int64_t column = static_cast<int64_t>(left) + i % 2, row = static_cast<int64_t>(top) + i / 2;
    if (column >= 0 && column < x.w && row >= 0 && row < x.h) t.at[i] = (row * x.w + column) * kBlock;
    t.share[i] = (i % 2 ? t.right : 1 - t.right) * (i / 2 ? t.down : 1 - t.down);
  }
  return t;
}

inline float* place_at(const View& grid, int64_t n, int64_t p) {
  return grid.f32() + n * grid.image_stride() + 2 * p;
}

constexpr int64_t kPlaces = 64;

}  // namespace

void grid_sample(const View& x, const View& grid, const GridSampleParams& params, const View& y) {
  const int64_t pieces = ceil_div(y.pixels(), kPlaces);
  parallel_for(y.n * pieces, kPlaces * y.blocks() * kBlock * 4, [&](int64_t task) {
    const int64_t n = task / pieces, first = task % pieces * kPlaces, count = smaller(kPlaces, y.pixels() - first);
    Taps taps[kPlaces];
    for (int64_t i = 0; i < count; ++i) taps[i] = taps_of(place_at(grid, n, first + i), x, params);
    for (int64_t b = 0; b < y.blocks(); ++b) {
      const float* in = block_at(x, n, b);
      float* out = block_at(y, n, b) + first * kBlock;
      for (int64_t i = 0; i < count; ++i) {
        Vec v{};
        for (int k = 0; k < 4; ++k)
          if (taps[i].at[k] >= 0) v += load(in + taps[i].at[k]) * taps[i].share[k];
        store(out + i * kBlock, v);
      }
    }
  });
}

void grid_sample_backward_x(const View& dy, const View& grid, const GridSampleParams& params, const View& dx) {
  const int64_t blocks = dx.blocks();
  parallel_for(dx.n * blocks, (dx.pixels() + 4 * dy.pixels()) * kBlock, [&](int64_t task) {
    const int64_t n = task / blocks, b = task % blocks;
    const float* gradient = block_at(dy, n, b);
    float* to = block_at(dx, n, b);
    for (int64_t i = 0; i < dx.pixels() * kBlock; i += kBlock) store(to + i, Vec{});
    for (int64_t p = 0; p < dy.pixels(); ++p) {
      const Taps t = taps_of(place_at(grid, n, p), dx, params);
      const Vec g = load(gradient + p * kBlock);
      for (int k = 0; k < 4; ++k)
        if (t.at[k] >= 0) store(to + t.at[k], load(to + t.at[k]) + g * t.share[k]);
    }
  });
}

void grid_sample_backward_grid(const View& dy, const View& x, const View& grid, const GridSampleParams& params,
                               const View& dgrid) {
  const float scale_x = static_cast<float>(params.align_corners ? x.w - 1 : x.w) / 2;
  const float scale_y = static_cast<float>(params.align_corners ? x.h - 1 : x.h) / 2;
  for_each_group(dy, [&](int64_t n, int64_t first, int64_t count) {
    float* to = place_at(dgrid, n, first);
    if (params.nearest) {
      for (int64_t i = 0; i < 2 * count; ++i) to[i] = 0;
      return;
    }
    Taps taps[kBlock];
    for (int64_t i = 0; i < count; ++i) taps[i] = taps_of(place_at(grid, n, first + i), x, params);
    // Differences between the columns and between the rows of the four pixels, times dy.
    const auto pixel = [&](int64_t b, int64_t i, int k) {
      return taps[i].at[k] >= 0 ? load(block_at(x, n, b) + taps[i].at[k]) : Vec{};
    };
    const auto gradient = [&](int64_t b, int64_t i) { return load(block_at(dy, n, b) + (first + i) * kBlock); };
    const Vec along_x = sum_of_pixels(dy.blocks(), count, [&](int64_t b, int64_t i) {
      const Vec upper = pixel(b, i, 1) - pixel(b, i, 0), lower = pixel(b, i, 3) - pixel(b, i, 2);
      return gradient(b, i) * (upper * (1 - taps[i].down) + lower * taps[i].down);
    });
    const Vec along_y = sum_of_pixels(dy.blocks(), count, [&](int64_t b, int64_t i) {
      const Vec left = pixel(b, i, 2) - pixel(b, i, 0), right = pixel(b, i, 3) - pixel(b, i, 1);
      return gradient(b, i) * (left * (1 - taps[i].right) + right * taps[i].right);
    });
    for (int64_t i = 0; i < count; ++i) {
      to[2 * i] = along_x[i] * scale_x;
      to[2 * i + 1] = along_y[i] * scale_y;
    }
  });
}

}  // namespace convoy::cpu::CONVOY_ISA
