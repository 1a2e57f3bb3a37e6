// Layout changes. Bytes: 4 read and 4 written per element. Between planes and channels side by side, squares of
// one channel block by as many pixels are transposed in registers.
#include "kernels/reorder.h"

#include <utility>

#include "kernels/blocked.h"

namespace convoy::cpu::CONVOY_ISA {

constexpr int64_t kTilePixels = 64;

template <int kStep, int... kLane>
static inline void exchange(Vec& a, Vec& b, std::integer_sequence<int, kLane...>) {
  const Vec low = __builtin_shuffle(a, b, IVec{((kLane & kStep) ? kBlock + kLane - kStep : kLane)...});
  b = __builtin_shuffle(a, b, IVec{((kLane & kStep) ? kBlock + kLane : kLane + kStep)...});
  a = low;
}
/// Transposes a square of kBlock vectors by exchanging ever smaller off-diagonal quarters.
template <int kStep = kBlock / 2>
static inline void transpose(Vec* rows) {
#pragma GCC unroll 16
  for (int i = 0; i < kBlock; ++i)
    if ((i & kStep) == 0) exchange<kStep>(rows[i], rows[i + kStep], std::make_integer_sequence<int, kBlock>{});
  if constexpr (kStep > 1) transpose<kStep / 2>(rows);
}

/// kBlock rows that start `stride` apart, the first `rows` of them and their first `columns` elements; zeros elsewhere.
static inline void load_square(const float* p, int64_t stride, int64_t rows, int64_t columns, Vec* v) {
  if (columns == kBlock) {
#pragma GCC unroll 16
    for (int i = 0; i < kBlock; ++i) v[i] = i < rows ? load(p + i * stride) : Vec{};
  } else {
    for (int i = 0; i < kBlock; ++i) v[i] = i < rows ? load_partial(p + i * stride, columns) : Vec{};
  }
}
static inline void store_square(float* p, int64_t stride, int64_t rows, int64_t columns, const Vec* v) {
  if (rows == kBlock && columns == kBlock) {
#pragma GCC unroll 16
    for (int i = 0; i < kBlock; ++i) store(p + i * stride, v[i]);
  } else {
    for (int i = 0; i < rows; ++i) store_partial(p + i * stride, v[i], columns);
  }
}

/// Pixels [first, last) of one channel block with `lanes` channels; `padded` are those that are written.
static void copy_tile(Strides from, Strides to, int64_t first, int64_t last, int64_t lanes, int64_t padded) {
  if (from.lane == 1 && to.lane == 1) {
    const float* in = from.start;
    float* out = to.start;
    if (lanes == kBlock)
      for (int64_t p = first; p < last; ++p) store(out + p * to.pixel, load(in + p * from.pixel));
    else
      for (int64_t p = first; p < last; ++p)
        store_partial(out + p * to.pixel, load_partial(in + p * from.pixel, lanes), padded);
    return;
  }
  for (int64_t p = first; p < last; p += kBlock) {
    const int64_t pixels = smaller(kBlock, last - p);
    Vec square[kBlock];
    if (from.lane == 1)
      load_square(from.start + p * from.pixel, from.pixel, pixels, lanes, square);
    else
      load_square(from.start + p, from.lane, lanes, pixels, square);
    transpose(square);
    if (to.lane == 1)
      store_square(to.start + p * to.pixel, to.pixel, pixels, padded, square);
    else
      store_square(to.start + p, to.lane, lanes, pixels, square);
  }
}

static void copy_planes(const View& from, const View& to) {
  const int64_t length = from.c * from.pixels();
  parallel_for(from.n, length, [&](int64_t n) {
    std::memcpy(to.f32() + n * to.image_stride(), from.f32() + n * from.image_stride(),
                static_cast<size_t>(length) * sizeof(float));
  });
}

void reorder(const View& from, const View& to) {
  if (from.layout == Layout::kNchw && to.layout == Layout::kNchw) return copy_planes(from, to);
  const int64_t blocks = ceil_div(from.c, kBlock), tiles = ceil_div(from.pixels(), kTilePixels);
  parallel_for(from.n * blocks * tiles, kTilePixels * kBlock, [&](int64_t i) {
    const int64_t n = i / tiles / blocks, b = i / tiles % blocks;
    const int64_t first = i % tiles * kTilePixels, last = smaller(first + kTilePixels, from.pixels());
    const int64_t lanes = smaller(kBlock, from.c - b * kBlock);
    const int64_t padded = to.layout == Layout::kBlocked ? kBlock : lanes;
    copy_tile(strides_of(from, n, b), strides_of(to, n, b), first, last, lanes, padded);
  });
}

}  // namespace convoy::cpu::CONVOY_ISA
