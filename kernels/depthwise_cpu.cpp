// Depthwise convolution on the blocked layout: a vector holds one pixel of a channel block, so that every tap is a
// vector load and a fused add; several output pixels of a row share the load of a tap's weights.
//   FLOPs  2 N C OH OW KH KW each way.
//   Bytes  x and y once (their rows stay in cache between taps). Expected bound: L1 loads, one per fused add.
//   Numerics: fp32. Outputs sum their taps in kernel order. Weight gradients are summed per image row, rows per band
//          (depthwise_band_rows), bands in double in order: independent of the number of threads.
#include "kernels/depthwise.h"

#include "kernels/conv_rows.h"
#include "kernels/simd.h"

namespace convoy::cpu::CONVOY_ISA {
namespace {

constexpr int kTile = 8;      // output pixels of a row in registers
constexpr int kTapGroup = 9;  // weight gradients in registers
constexpr int64_t kTaskRows = 16;

void load_weights(const float* w, int64_t c0, int64_t lanes, int64_t size, Vec* weights) {
  for (int64_t k = 0; k < size; ++k) {
    Vec v{};
    for (int64_t i = 0; i < lanes; ++i) v[i] = w[(c0 + i) * size + k];
    weights[k] = v;
  }
}

/// One output row from the taps that meet it.
void filter_row(const float* source, const Row& row, const Vec* weights, Vec initial, float* out) {
  const int64_t stride = row.source_step * kBlock, out_stride = row.step * kBlock;
  for (int64_t j = 0; j < row.count;) {
    const float* from = source + j * stride;
    float* to = out + row.first_pixel * kBlock + j * out_stride;
    if (j >= row.inner_lo && j + kTile <= row.inner_hi) {
      Vec acc[kTile];
#pragma GCC unroll 8
      for (int t = 0; t < kTile; ++t) acc[t] = initial;
      for (int64_t k = 0; k < row.tap_count; ++k) {
        const Vec w = weights[row.taps[k].index];
        const float* p = from + row.taps[k].offset;
#pragma GCC unroll 8
        for (int t = 0; t < kTile; ++t) acc[t] += load(p + t * stride) * w;
      }
#pragma GCC unroll 8
      for (int t = 0; t < kTile; ++t) store(to + t * out_stride, acc[t]);
      j += kTile;
      continue;
    }
    // Border: up to a tile of pixels, each tap over those that it reaches. Never runs into the inner tiles.
    int64_t n = row.count - j < kTile ? row.count - j : kTile;
    if (j < row.inner_lo && row.inner_lo + kTile <= row.inner_hi && row.inner_lo - j < n) n = row.inner_lo - j;
    Vec acc[kTile];
    for (int64_t t = 0; t < n; ++t) acc[t] = initial;
    for (int64_t k = 0; k < row.tap_count; ++k) {
      const Tap& tap = row.taps[k];
      const Vec w = weights[tap.index];
      const int64_t begin = tap.lo > j ? tap.lo - j : 0, end = tap.hi - j < n ? tap.hi - j : n;
      for (int64_t t = begin; t < end; ++t) acc[t] += load(from + tap.offset + t * stride) * w;
    }
    for (int64_t t = 0; t < n; ++t) store(to + t * out_stride, acc[t]);
    j += n;
  }
}

void filter(const Pass& pass, const View& source, const float* w, const float* bias, const View& out) {
  const int64_t blocks = out.blocks(), tasks_per_plane = (out.h + kTaskRows - 1) / kTaskRows;
  const int64_t residues = pass.forward ? 1 : pass.p.stride_w;
#pragma omp parallel for schedule(static)
  for (int64_t task = 0; task < out.n * blocks * tasks_per_plane; ++task) {
    const int64_t plane = task / tasks_per_plane, n = plane / blocks, c0 = plane % blocks * kBlock;
    const int64_t lanes = out.c - c0 < kBlock ? out.c - c0 : kBlock;
    const int64_t r0 = task % tasks_per_plane * kTaskRows, r1 = r0 + kTaskRows < out.h ? r0 + kTaskRows : out.h;
    const float* from = source.f32() + n * source.image_stride() + c0 * source.pixels();
    float* to = out.f32() + n * out.image_stride() + c0 * out.pixels();
    Vec weights[kMaxDepthwiseTaps];
    Tap taps[kMaxDepthwiseTaps];
    load_weights(w, c0, lanes, pass.kernel_h * pass.kernel_w, weights);
    const Vec initial = bias ? load_partial(bias + c0, lanes) : Vec{};
    for (int64_t r = r0; r < r1; ++r)
      for (int64_t residue = 0; residue < residues && residue < out.w; ++residue)
        filter_row(from, make_row(pass, source, out, r, residue, taps), weights, initial, to);
  }
}

/// total[tap] += sum over pixels [lo, hi) of dy * x, for T taps at once.
template <int T>
void correlate(const float* x, const float* dy, const Tap* taps, int64_t stride, int64_t lo, int64_t hi, Vec* total) {
  Vec acc[T];
  const float* from[T];
#pragma GCC unroll 9
  for (int t = 0; t < T; ++t) {
    acc[t] = Vec{};
    from[t] = x + taps[t].offset;
  }
  for (int64_t j = lo; j < hi; ++j) {
    const Vec d = load(dy + j * kBlock);
#pragma GCC unroll 9
    for (int t = 0; t < T; ++t) acc[t] += load(from[t] + j * stride) * d;
  }
#pragma GCC unroll 9
  for (int t = 0; t < T; ++t) total[taps[t].index] += acc[t];
}

/// The weight gradient of one row of dy: pixels that all taps of a group reach together, the others tap by tap.
void correlate_row(const float* x, const float* dy, const Row& row, Vec* total) {
  const int64_t stride = row.source_step * kBlock;
  for (int64_t k = 0; k < row.tap_count;) {
    const int64_t left = row.tap_count - k;
    const int64_t group = left >= kTapGroup ? kTapGroup : left >= 6 ? 6 : left >= 3 ? 3 : 1;
    int64_t lo = 0, hi = row.count;
    for (int64_t t = k; t < k + group; ++t) {
      lo = row.taps[t].lo > lo ? row.taps[t].lo : lo;
      hi = row.taps[t].hi < hi ? row.taps[t].hi : hi;
    }
    if (hi < lo) hi = lo;
    const Tap* taps = row.taps + k;
    if (lo < hi) {
      switch (group) {
        case kTapGroup:
          correlate<kTapGroup>(x, dy, taps, stride, lo, hi, total);
          break;
        case 6:
          correlate<6>(x, dy, taps, stride, lo, hi, total);
          break;
        case 3:
          correlate<3>(x, dy, taps, stride, lo, hi, total);
          break;
        default:
          correlate<1>(x, dy, taps, stride, lo, hi, total);
      }
    }
    for (int64_t t = 0; t < group; ++t) {
      const int64_t before = taps[t].hi < lo ? taps[t].hi : lo, after = taps[t].lo > hi ? taps[t].lo : hi;
      if (taps[t].lo < before) correlate<1>(x, dy, taps + t, stride, taps[t].lo, before, total);
      if (after < taps[t].hi) correlate<1>(x, dy, taps + t, stride, after, taps[t].hi, total);
    }
    k += group;
  }
}

}  // namespace

void depthwise(const View& x, const float* w, int64_t kernel_h, int64_t kernel_w, const float* bias,
               const Conv2dParams& params, const View& y) {
  filter({true, kernel_h, kernel_w, params}, x, w, bias, y);
}

void depthwise_backward_data(const View& dy, const float* w, int64_t kernel_h, int64_t kernel_w,
                             const Conv2dParams& params, const View& dx) {
  filter({false, kernel_h, kernel_w, params}, dy, w, nullptr, dx);
}

void depthwise_backward_weights(const View& x, const View& dy, int64_t kernel_h, int64_t kernel_w,
                                const Conv2dParams& params, float* dw, float* workspace) {
  const Pass pass{true, kernel_h, kernel_w, params};
  const int64_t size = kernel_h * kernel_w, blocks = dy.blocks();
  const int64_t band_rows = depthwise_band_rows(dy.h), bands = (dy.h + band_rows - 1) / band_rows;
#pragma omp parallel for schedule(static)
  for (int64_t task = 0; task < dy.n * blocks * bands; ++task) {
    const int64_t plane = task / bands, n = plane / blocks, c0 = plane % blocks * kBlock;
    const int64_t r0 = task % bands * band_rows, r1 = r0 + band_rows < dy.h ? r0 + band_rows : dy.h;
    const float* from = x.f32() + n * x.image_stride() + c0 * x.pixels();
    const float* gradient = dy.f32() + n * dy.image_stride() + c0 * dy.pixels();
    Tap taps[kMaxDepthwiseTaps];
    Vec total[kMaxDepthwiseTaps];
    for (int64_t k = 0; k < size; ++k) total[k] = Vec{};
    for (int64_t r = r0; r < r1; ++r)
      correlate_row(from, gradient + r * dy.w * kBlock, make_row(pass, x, dy, r, 0, taps), total);
    for (int64_t k = 0; k < size; ++k) store(workspace + (task * size + k) * kBlock, total[k]);
  }
#pragma omp parallel for schedule(static)
  for (int64_t c = 0; c < dy.c; ++c)
    for (int64_t k = 0; k < size; ++k) {
      double sum = 0;
      for (int64_t n = 0; n < dy.n; ++n)
        for (int64_t band = 0; band < bands; ++band) {
          const int64_t task = (n * blocks + c / kBlock) * bands + band;
          sum += static_cast<double>(workspace[(task * size + k) * kBlock + c % kBlock]);
        }
      dw[c * size + k] = static_cast<float>(sum);
    }
}

}  // namespace convoy::cpu::CONVOY_ISA
