// Criss-cross attention as matrix products: an image row is one of W x C by C x W, an image column one of H x C by C x
// H. A first pass goes over the rows and writes, a second over the columns and adds (or fills the other channels of w).
//   FLOPs  2 N H W (H+W) C per function.  Bytes: operands twice.  Expected bound: arithmetic for C >= 32.
//   Numerics: fp32, products in runs of 128, one thread per image row or column in a fixed order.
#include "kernels/attention.h"
#include "kernels/attention_gemm.h"

namespace convoy::cpu::CONVOY_ISA {
namespace {

/// Scratch of one task: a transposed row or column of f, and the weights within a column.
int64_t scratch_floats(const View& image) {
  const int64_t rows = whole_blocks(image.h), columns = whole_blocks(image.w);
  return image.c * larger(rows, columns) + image.h * rows;
}

/// Address of channel c of the pixel whose first channel is at `pixel`.
inline float* channel(const View& w, float* pixel, int64_t c) {
  return pixel + c / kBlock * w.pixels() * kBlock + c % kBlock;
}

/// weights(y, r) = weight that pixel (y,x) gives to (r,x); 0 for itself, which belongs to the row.
void gather_column(const View& w, int64_t n, int64_t x, const Matrix& weights) {
  for (int64_t y = 0; y < w.h; ++y) {
    float* pixel = block_at(w, n, 0) + (y * w.w + x) * kBlock;
    float* to = weights.at(y);
    for (int64_t r = 0; r < y; ++r) to[r] = *channel(w, pixel, w.w + r);
    to[y] = 0;
    for (int64_t r = y + 1; r < w.h; ++r) to[r] = *channel(w, pixel, w.w + r - 1);
  }
}

/// The opposite; the pad lanes of w become zero.
void scatter_column(const Matrix& weights, const View& w, int64_t n, int64_t x) {
  for (int64_t y = 0; y < w.h; ++y) {
    float* pixel = block_at(w, n, 0) + (y * w.w + x) * kBlock;
    const float* from = weights.at(y);
    for (int64_t r = 0; r < y; ++r) *channel(w, pixel, w.w + r) = from[r];
    for (int64_t r = y + 1; r < w.h; ++r) *channel(w, pixel, w.w + r - 1) = from[r];
    for (int64_t c = w.c; c < w.blocks() * kBlock; ++c) *channel(w, pixel, c) = 0;
  }
}

}  // namespace

size_t criss_cross_workspace_bytes(const View& image) {
  const int64_t floats = scratch_floats(image);
  return static_cast<size_t>(larger(part_floats(image.n, image.h, floats), part_floats(image.n, image.w, floats))) *
         sizeof(float);
}

void ca_weight(const View& t, const View& f, const View& w, float* workspace) {
  const int64_t floats = scratch_floats(t), rows = whole_blocks(t.h), columns = whole_blocks(t.w);
  for_each_part(t.n, t.h, floats, workspace, t.w * t.w * t.c, [&](int64_t n, int64_t first, int64_t last, float* f_t) {
    for (int64_t y = first; y < last; ++y) {
      transpose(pixels_of(f, n, y * f.w), f.w, f.c, f_t, columns);
      multiply(t.w, t.w, t.c, plain(pixels_of(t, n, y * t.w)), dense(f_t, columns), false, pixels_of(w, n, y * w.w));
    }
  });
  for_each_part(t.n, t.w, floats, workspace, t.h * t.h * t.c, [&](int64_t n, int64_t first, int64_t last, float* f_t) {
    const Matrix weights = dense(f_t + f.c * rows, rows);
    for (int64_t x = first; x < last; ++x) {
      transpose(pixels_of(f, n, x, f.w), f.h, f.c, f_t, rows);
      multiply(t.h, t.h, t.c, plain(pixels_of(t, n, x, t.w)), dense(f_t, rows), false, weights);
      scatter_column(weights, w, n, x);
    }
  });
}

void ca_map(const View& w, const View& g, const View& y, float* workspace) {
  parallel_for(g.n * g.h, g.w * g.w * g.c, [&](int64_t i) {
    const int64_t n = i / g.h, first = i % g.h * g.w;
    multiply(g.w, g.c, g.w, plain(pixels_of(w, n, first)), pixels_of(g, n, first), false, pixels_of(y, n, first));
  });
  for_each_part(g.n, g.w, scratch_floats(g), workspace, g.h * g.h * g.c,
                [&](int64_t n, int64_t first, int64_t last, float* scratch) {
                  const Matrix weights = dense(scratch, whole_blocks(g.h));
                  for (int64_t x = first; x < last; ++x) {
                    gather_column(w, n, x, weights);
                    multiply(g.h, g.c, g.h, plain(weights), pixels_of(g, n, x, g.w), true, pixels_of(y, n, x, y.w));
                  }
                });
}

void ca_map_transposed(const View& w, const View& t, const View& df, float* workspace) {
  parallel_for(t.n * t.h, t.w * t.w * t.c, [&](int64_t i) {
    const int64_t n = i / t.h, first = i % t.h * t.w;
    for (int64_t x = 0; x < t.w; x += kBlock)  // rows of w's transpose come in channel blocks
      multiply(smaller(kBlock, t.w - x), t.c, t.w, transposed(pixels_of(w, n, first), x / kBlock),
               pixels_of(t, n, first), false, pixels_of(df, n, first + x));
  });
  for_each_part(t.n, t.w, scratch_floats(t), workspace, t.h * t.h * t.c,
                [&](int64_t n, int64_t first, int64_t last, float* scratch) {
                  const Matrix weights = dense(scratch, whole_blocks(t.h));
                  for (int64_t x = first; x < last; ++x) {
                    gather_column(w, n, x, weights);
                    multiply(t.h, t.c, t.h, transposed(weights), pixels_of(t, n, x, t.w), true,
                             pixels_of(df, n, x, df.w));
                  }
                });
}

}  // namespace convoy::cpu::CONVOY_ISA
