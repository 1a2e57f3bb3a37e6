// Resizing on the blocked layout; a vector is one pixel of a channel block.
//   Bytes  forward: y once, x from cache; backward: dy about twice from cache (each row serves the two source rows
//          around it), dx once. Expected bound: memory.
//   FLOPs  about 4 per output element each way.
//   Numerics: fp32. Backward: a source row first sums the output rows that touch it, in order, then its columns
//          gather from that sum from left to right; one thread per source row, so the number of threads is irrelevant.
#include "kernels/resize_bilinear.h"

#include "kernels/resize_axis.h"
#include "kernels/simd.h"

namespace convoy::cpu::CONVOY_ISA {
namespace {

constexpr int64_t kColumns = 256;  // output columns handled at a time
constexpr int64_t kTaskRows = 16;

inline Vec mix(Vec a, Vec b, float weight) {
  return a * (1.0f - weight) + b * weight;
}

/// One piece of an output row between two source rows (the second unread where row_weight is 0).
void mix_row(const float* upper, const float* lower, float row_weight, int64_t in_w, const Source* columns,
             int64_t count, float* out) {
  int64_t at = -2;
  Vec left{}, right{};
  const auto column = [&](int64_t i) {
    const Vec a = load(upper + i * kBlock);
    return row_weight == 0 ? a : mix(a, load(lower + i * kBlock), row_weight);
  };
  for (int64_t o = 0; o < count; ++o) {
    const Source s = columns[o];
    if (s.index != at) {
      left = s.index == at + 1 && at >= 0 ? right : column(s.index);
      right = s.index + 1 < in_w ? column(s.index + 1) : left;
      at = s.index;
    }
    store(out + o * kBlock, s.weight == 0 ? left : mix(left, right, s.weight));
  }
}

void resize(const View& x, const Axis& rows, const Axis& columns, const View& y) {
  const int64_t blocks = y.blocks(), tasks_per_plane = (y.h + kTaskRows - 1) / kTaskRows;
#pragma omp parallel for schedule(static)
  for (int64_t task = 0; task < y.n * blocks * tasks_per_plane; ++task) {
    const int64_t plane = task / tasks_per_plane, n = plane / blocks, c0 = plane % blocks * kBlock;
    const int64_t r0 = task % tasks_per_plane * kTaskRows, r1 = r0 + kTaskRows < y.h ? r0 + kTaskRows : y.h;
    const float* from = x.f32() + n * x.image_stride() + c0 * x.pixels();
    float* to = y.f32() + n * y.image_stride() + c0 * y.pixels();
    Source piece[kColumns];
    for (int64_t w0 = 0; w0 < y.w; w0 += kColumns) {
      const int64_t count = y.w - w0 < kColumns ? y.w - w0 : kColumns;
      for (int64_t o = 0; o < count; ++o) piece[o] = columns.source(w0 + o);
      for (int64_t r = r0; r < r1; ++r) {
        const Source row = rows.source(r);
        const float* upper = from + row.index * x.w * kBlock;
        mix_row(upper, upper + x.w * kBlock, row.weight, x.w, piece, count, to + (r * y.w + w0) * kBlock);
      }
    }
  }
}

/// sum[o] = sum over `count` rows of weights[r] * rows[r][o].
void add_rows(const float* const* rows, const float* weights, int count, int64_t columns, bool first, float* sum) {
  for (int64_t o = 0; o < columns; ++o) {
    Vec s = first ? Vec{} : load(sum + o * kBlock);
    for (int r = 0; r < count; ++r) s += load(rows[r] + o * kBlock) * weights[r];
    store(sum + o * kBlock, s);
  }
}

void resize_backward(const View& dy, const Axis& rows, const Axis& columns, const View& dx) {
  const int64_t blocks = dx.blocks();
#pragma omp parallel for schedule(static)
  for (int64_t task = 0; task < dx.n * blocks * dx.h; ++task) {
    const int64_t plane = task / dx.h, n = plane / blocks, c0 = plane % blocks * kBlock, i = task % dx.h;
    const float* from = dy.f32() + n * dy.image_stride() + c0 * dy.pixels();
    float* to = dx.f32() + n * dx.image_stride() + (c0 * dx.h + i * kBlock) * dx.w;
    for (int64_t w = 0; w < dx.w; ++w) store(to + w * kBlock, Vec{});
    const int64_t r0 = rows.first_reaching(i > 0 ? i - 1 : 0), r1 = rows.first_reaching(i + 1);
    float sum[kColumns * kBlock];
    for (int64_t w0 = 0; w0 < dy.w; w0 += kColumns) {
      const int64_t count = dy.w - w0 < kColumns ? dy.w - w0 : kColumns;
      constexpr int kGroup = 8;
      const float* group[kGroup];
      float weights[kGroup];
      int held = 0;
      bool first = true;
      for (int64_t r = r0; r < r1; ++r) {
        const Source row = rows.source(r);
        const float weight = row.index == i ? 1.0f - row.weight : row.weight;
        if (weight != 0) {
          group[held] = from + (r * dy.w + w0) * kBlock;
          weights[held++] = weight;
        }
        if (held == kGroup || (r + 1 == r1 && held > 0)) {
          add_rows(group, weights, held, count, first, sum);
          first = false;
          held = 0;
        }
      }
      if (first) continue;
      int64_t at = -2;
      Vec left{}, right{};
      const auto flush = [&] {
        if (at < 0) return;
        store(to + at * kBlock, load(to + at * kBlock) + left);
        if (at + 1 < dx.w) store(to + (at + 1) * kBlock, load(to + (at + 1) * kBlock) + right);
      };
      for (int64_t o = 0; o < count; ++o) {
        const Source s = columns.source(w0 + o);
        if (s.index != at) {
          flush();
          left = right = Vec{};
          at = s.index;
        }
        const Vec v = load(sum + o * kBlock);
        left += v * (1.0f - s.weight);
        right += v * s.weight;
      }
      flush();
    }
  }
}

}  // namespace

void resize_bilinear(const View& x, const ResizeParams& p, const View& y) {
  resize(x, make_axis(x.h, y.h, p.align_corners, p.scale_h, false),
         make_axis(x.w, y.w, p.align_corners, p.scale_w, false), y);
}

void resize_bilinear_backward(const View& dy, const ResizeParams& p, const View& dx) {
  resize_backward(dy, make_axis(dx.h, dy.h, p.align_corners, p.scale_h, false),
                  make_axis(dx.w, dy.w, p.align_corners, p.scale_w, false), dx);
}

void resize_nearest(const View& x, const ResizeParams& p, const View& y) {
  resize(x, make_axis(x.h, y.h, false, p.scale_h, true), make_axis(x.w, y.w, false, p.scale_w, true), y);
}

void resize_nearest_backward(const View& dy, const ResizeParams& p, const View& dx) {
  resize_backward(dy, make_axis(dx.h, dy.h, false, p.scale_h, true), make_axis(dx.w, dy.w, false, p.scale_w, true), dx);
}

}  // namespace convoy::cpu::CONVOY_ISA
