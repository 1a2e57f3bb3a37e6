// Rearrangements of channels and pixels. Bytes: 4 read and 4 written per element; every lane of a vector comes from a
// channel of its own, so the loads are single floats.
#include "kernels/shuffle.h"

#include "kernels/blocked.h"

namespace convoy::cpu::CONVOY_ISA {

/// Where channel c of image n has its first pixel; pixels lie kBlock apart.
static inline const float* channel_at(const View& x, int64_t n, int64_t c) {
  return block_at(x, n, c / kBlock) + c % kBlock;
}

/// Writes `count` vectors `step` floats apart: lane l of vector i is from[l][i * stride], zero where from[l] is null.
static inline void gather(const float* const* from, int64_t stride, int64_t count, float* to, int64_t step) {
  for (int64_t i = 0; i < count; ++i) {
    Vec v{};
    for (int l = 0; l < kBlock; ++l)
      if (from[l]) v[l] = from[l][i * stride];
    store(to + i * step, v);
  }
}

void depth_to_space(const View& deep, const int32_t* channel_of, int64_t r, const View& wide) {
  const int64_t blocks = wide.blocks();
  parallel_for(wide.n * blocks * wide.h, wide.w * kBlock, [&](int64_t task) {
    const int64_t n = task / wide.h / blocks, b = task / wide.h % blocks, row = task % wide.h;
    float* to = block_at(wide, n, b) + row * wide.w * kBlock;
    for (int64_t column = 0; column < r; ++column) {
      const float* from[kBlock]{};
      for (int64_t c = b * kBlock; c < smaller(wide.c, (b + 1) * kBlock); ++c)
        from[c % kBlock] =
            channel_at(deep, n, channel_of[(row % r * r + column) * wide.c + c]) + row / r * deep.w * kBlock;
      gather(from, kBlock, deep.w, to + column * kBlock, r * kBlock);
    }
  });
}

void space_to_depth(const View& wide, const int32_t* place_of, int64_t r, const View& deep) {
  const int64_t blocks = deep.blocks();
  parallel_for(deep.n * blocks * deep.h, deep.w * kBlock, [&](int64_t task) {
    const int64_t n = task / deep.h / blocks, b = task / deep.h % blocks, row = task % deep.h;
    const float* from[kBlock]{};
    for (int64_t k = b * kBlock; k < smaller(deep.c, (b + 1) * kBlock); ++k) {
      const int64_t place = place_of[k], corner = place / wide.c;
      const int64_t pixel = (row * r + corner / r) * wide.w + corner % r;
      from[k % kBlock] = channel_at(wide, n, place % wide.c) + pixel * kBlock;
    }
    gather(from, r * kBlock, deep.w, block_at(deep, n, b) + row * deep.w * kBlock, kBlock);
  });
}

}  // namespace convoy::cpu::CONVOY_ISA
