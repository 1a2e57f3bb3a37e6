// Layout changes. Bytes: 4 read and 4 written per element. Tiles of one channel block by 64 pixels stay in the
// first-level cache, so that both sides are touched in runs of whole cache lines.
#include "kernels/blocked.h"
#include "kernels/reorder.h"

namespace convoy::cpu::CONVOY_ISA {

constexpr int64_t kTilePixels = 64;

/// A tile of `lanes` channels between layouts of which at least one holds the channels of a pixel side by side.
static void copy_tile(Strides from, Strides to, int64_t first, int64_t last, int64_t lanes) {
  if (from.lane == 1 && to.lane == 1) {
    if (lanes == kBlock)
      for (int64_t p = first; p < last; ++p) store(to.start + p * to.pixel, load(from.start + p * from.pixel));
    else
      for (int64_t p = first; p < last; ++p)
        for (int64_t l = 0; l < lanes; ++l) to.start[p * to.pixel + l] = from.start[p * from.pixel + l];
    return;
  }
  for (int64_t l = 0; l < lanes; ++l) {
    const float* in = from.start + l * from.lane;
    float* out = to.start + l * to.lane;
    for (int64_t p = first; p < last; ++p) out[p * to.pixel] = in[p * from.pixel];
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
    const Strides target = strides_of(to, n, b);
    if (to.layout == Layout::kBlocked && lanes < kBlock)
      for (int64_t p = first; p < last; ++p) store(target.start + p * kBlock, Vec{});
    copy_tile(strides_of(from, n, b), target, first, last, lanes);
  });
}

}  // namespace convoy::cpu::CONVOY_ISA
