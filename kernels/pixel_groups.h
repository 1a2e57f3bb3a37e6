// Reductions over the channels of each pixel of a blocked image, for the files compiled per instruction set.
#pragma once
#include "kernels/blocked.h"
#include "kernels/vec_math.h"

namespace convoy::cpu::CONVOY_ISA {

/// Calls body(n, first, count) for groups of at most kBlock pixels [first, first + count).
template <class Body>
static inline void for_each_group(const View& x, const Body& body) {
  constexpr int64_t kTask = 8 * kBlock;
  const int64_t tasks = ceil_div(x.pixels(), kTask);
  parallel_for(x.n * tasks, 3 * smaller(kTask, x.pixels()) * x.blocks() * kBlock, [&](int64_t i) {
    const int64_t start = i % tasks * kTask, end = smaller(start + kTask, x.pixels());
    for (int64_t first = start; first < end; first += kBlock) body(i / tasks, first, smaller(kBlock, end - first));
  });
}

/// Combines body(block b, pixel i) over the blocks of each of `count` pixels, then over the lanes; lane i of the result
/// is pixel i's. `start` is what combining leaves as it is.
template <class Body, class Combine>
static inline Vec fold_pixels(int64_t blocks, int64_t count, Vec start, const Body& body, Combine combine) {
  Vec parts[kBlock];
  for (Vec& part : parts) part = start;
  for (int64_t b = 0; b < blocks; ++b)
    for (int64_t i = 0; i < count; ++i) parts[i] = combine(parts[i], body(b, i));
  return reduce_each(parts, combine);
}

template <class Body>
static inline Vec sum_of_pixels(int64_t blocks, int64_t count, const Body& body) {
  return fold_pixels(blocks, count, Vec{}, body, [](Vec a, Vec b) { return a + b; });
}

}  // namespace convoy::cpu::CONVOY_ISA
