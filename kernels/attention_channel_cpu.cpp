// Channel attention. The C x C weights are kept as an image (N,C,C,1), so that a row is a vector of channels and the
// softmax over rows goes lane by lane. softmax(max - e) is softmax(-e): the maximum only shifts it, and what it is
// computed with is the minimum of e.
//   FLOPs  forward 4 N HW C^2, backward 8 N HW C^2.  Bytes: x once per 64 channels, weights from cache.
//   Expected bound: arithmetic.
//   Numerics: fp32; sums over pixels in runs of 128, added in order; sums of a softmax over C in order.
#include "kernels/attention.h"
#include "kernels/attention_gemm.h"

namespace convoy::cpu::CONVOY_ISA {
namespace {

constexpr int64_t kTile = 64;               // pixels of an output tile
constexpr int64_t kGroup = kTile / kBlock;  // channel blocks of one task of correlate()

/// An image (N,C,C,1) laid out as attention weights are.
View square(const View& x, float* data) {
  const int64_t pitch = x.blocks() * kBlock;
  return {
      .data = data, .layout = Layout::kBlocked, .n = x.n, .c = x.c, .h = x.c, .w = 1, .pitch = pitch, .block = kBlock};
}

/// to(channel c, row r) = sum over pixels of a(r) * b(c).
void correlate(const View& a, const View& b, const View& to) {
  const int64_t groups = ceil_div(a.blocks(), kGroup), pixels = a.pixels();
  parallel_for(a.n * groups, kTile * pixels * b.c, [&](int64_t i) {
    const int64_t n = i / groups, first = i % groups * kGroup, last = smaller(first + kGroup, a.blocks());
    for (int64_t p = 0; p < pixels; p += kDepth)
      for (int64_t block = first; block < last; ++block)
        multiply(smaller(kBlock, a.c - block * kBlock), b.c, smaller(kDepth, pixels - p),
                 transposed(pixels_of(a, n, p), block), pixels_of(b, n, p), p > 0, pixels_of(to, n, block * kBlock));
  });
}

/// y(p, c) (+)= sum over c' of x(p, c') * weights(row c', channel c).
void mix_channels(const View& x, const View& weights, bool add, const View& y) {
  const int64_t tiles = ceil_div(x.pixels(), kTile);
  parallel_for(x.n * tiles, kTile * x.c * x.c, [&](int64_t i) {
    const int64_t n = i / tiles, first = i % tiles * kTile;
    multiply(smaller(kTile, x.pixels() - first), x.c, x.c, plain(pixels_of(x, n, first)), pixels_of(weights, n), add,
             pixels_of(y, n, first));
  });
}

/// to(channel c, row r) = from(channel r, row c), or that plus from(channel c, row r).
void flip(const View& from, bool add, const View& to) {
  const int64_t blocks = to.blocks();
  parallel_for(to.n * blocks, to.c * kBlock, [&](int64_t i) {
    const int64_t n = i / blocks, b = i % blocks;
    const Matrix source = pixels_of(from, n);
    float* target = block_at(to, n, b);
    for (int64_t r = 0; r < to.c; ++r) {
      Vec v{};
      for (int64_t l = 0; l < smaller(kBlock, to.c - b * kBlock); ++l)
        v[l] = source.at(b * kBlock + l, r / kBlock)[r % kBlock];
      store(target + r * kBlock, add ? v + load(source.at(r, b)) : v);
    }
  });
}

}  // namespace

void channel_attention(const View& x, const View& y, const View& weights) {
  correlate(x, x, weights);
  const int64_t blocks = x.blocks();
  parallel_for(x.n * blocks, 8 * x.c * kBlock, [&](int64_t i) {
    const int64_t n = i / blocks, b = i % blocks;
    const IVec mask = channel_mask(x.c, b);
    float* column = block_at(weights, n, b);
    Vec low = load(column), total{};
    for (int64_t r = 1; r < x.c; ++r) low = min(load(column + r * kBlock), low);
    for (int64_t r = 0; r < x.c; ++r) {
      const Vec e = weight_of(low - load(column + r * kBlock));
      store(column + r * kBlock, e);
      total += e;
    }
    const Vec factor = 1 / total;
    for (int64_t r = 0; r < x.c; ++r) store(column + r * kBlock, zero_pads(load(column + r * kBlock) * factor, mask));
  });
  mix_channels(x, weights, false, y);
}

size_t channel_attention_backward_workspace_bytes(const View& x) {
  return static_cast<size_t>(2 * x.n * x.c * x.blocks() * kBlock) * sizeof(float);
}

void channel_attention_backward(const View& dy, const View& x, const View& weights, const View& dx, float* workspace) {
  const View gradient = square(x, workspace), both = square(x, workspace + x.n * x.c * x.blocks() * kBlock);
  correlate(x, dy, gradient);
  const int64_t blocks = x.blocks();
  parallel_for(x.n * blocks, 4 * x.c * kBlock, [&](int64_t i) {
    const float* weight = block_at(weights, i / blocks, i % blocks);
    float* column = block_at(gradient, i / blocks, i % blocks);
    Vec mean{};
    for (int64_t r = 0; r < x.c; ++r) mean += load(weight + r * kBlock) * load(column + r * kBlock);
    for (int64_t r = 0; r < x.c; ++r)
      store(column + r * kBlock, load(weight + r * kBlock) * (mean - load(column + r * kBlock)));
  });
  flip(gradient, true, both);  // energies are symmetric: x takes part in each of them twice
  flip(weights, false, gradient);
  mix_channels(dy, gradient, false, dx);
  mix_channels(x, both, true, dx);
}

}  // namespace convoy::cpu::CONVOY_ISA
