// Rows of a convolution, for the files compiled per instruction set: which source pixels an output row reads, tap by
// tap. Forward and input gradient differ only here, so one row routine serves both.
#pragma once
#include "kernels/conv2d.h"
#include "kernels/simd.h"

namespace convoy::cpu::CONVOY_ISA {

struct Tap {
  int64_t index;   // kh * kernel_w + kw
  int64_t offset;  // of the source pixel that belongs to the first output pixel, times the block
  int64_t lo, hi;  // output pixels j of the row whose source pixel exists
};

/// The taps that meet one output row, and its pixels: j-th at column first + j * step, source column + j * source_step.
struct Row {
  const Tap* taps;
  int64_t tap_count;
  int64_t first_pixel, step, source_step, count;
  int64_t inner_lo, inner_hi;  // pixels for which every tap exists
};

/// Which convolution a row belongs to: forward reads x at stride, the input gradient reads dy and skips what the
/// stride skipped.
struct Pass {
  bool forward;
  int64_t kernel_h, kernel_w;
  Conv2dParams p;
};

static inline int64_t ceil_div(int64_t a, int64_t b) {
  return a >= 0 ? (a + b - 1) / b : -(-a / b);
}

/// Finds the taps of output row `r`, columns residue, residue + step, ...; returns the row.
static inline Row make_row(const Pass& pass, const View& source, const View& out, int64_t r, int64_t residue,
                           Tap* taps) {
  const Conv2dParams& p = pass.p;
  Row row{taps, 0, r * out.w + residue, pass.forward ? 1 : p.stride_w, pass.forward ? p.stride_w : 1, 0, 0, 0};
  row.count = (out.w - residue + row.step - 1) / row.step;
  row.inner_hi = row.count;
  for (int64_t kh = 0; kh < pass.kernel_h; ++kh) {
    int64_t source_row;
    if (pass.forward) {
      source_row = r * p.stride_h - p.pad_h + kh * p.dilation_h;
    } else {
      const int64_t t = r + p.pad_h - kh * p.dilation_h;
      if (t < 0 || t % p.stride_h != 0) continue;
      source_row = t / p.stride_h;
    }
    if (source_row < 0 || source_row >= source.h) continue;
    for (int64_t kw = 0; kw < pass.kernel_w; ++kw) {
      int64_t base = kw * p.dilation_w - p.pad_w;
      if (!pass.forward) {
        const int64_t t = residue + p.pad_w - kw * p.dilation_w;
        if ((t % p.stride_w + p.stride_w) % p.stride_w != 0) continue;
        base = t / p.stride_w;
      }
      Tap tap{kh * pass.kernel_w + kw, (source_row * source.w + base) * source.block, 0, row.count};
      if (base < 0) tap.lo = ceil_div(-base, row.source_step);
      const int64_t last = ceil_div(source.w - base, row.source_step);
      if (last < tap.hi) tap.hi = last;
      if (tap.lo >= tap.hi) continue;
      if (tap.lo > row.inner_lo) row.inner_lo = tap.lo;
      if (tap.hi < row.inner_hi) row.inner_hi = tap.hi;
      taps[row.tap_count++] = tap;
    }
  }
  return row;
}

}  // namespace convoy::cpu::CONVOY_ISA
