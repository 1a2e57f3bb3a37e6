// Addressing and work sharing of the CPU kernels over blocked tensors, for the files compiled per instruction set.
// A piece of work is (image, channel block, range of pixels); how a tensor is cut depends on its shape alone, never on
// the number of threads, so that every result is the same for any number of them.
#pragma once
#include "kernels/simd_math.h"
#include "kernels/view.h"

namespace convoy::cpu::CONVOY_ISA {

/// Calls body(i) for every i in [0,count), shared among the OpenMP threads. `elements` is about how many floats one
/// call touches; jobs too small to be worth a second thread stay on the caller's.
template <class Body>
static inline void parallel_for(int64_t count, int64_t elements, const Body& body) {
  constexpr int64_t kWorthThreads = 32768;
  const bool shared = count > 1 && count * elements >= kWorthThreads;
#pragma omp parallel for schedule(static) if (shared)
  for (int64_t i = 0; i < count; ++i) body(i);
}

static inline int64_t smaller(int64_t a, int64_t b) {
  return a < b ? a : b;
}
static inline int64_t larger(int64_t a, int64_t b) {
  return a > b ? a : b;
}
static inline int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

/// First pixel of channel block b of image n.
static inline float* block_at(const View& x, int64_t n, int64_t b) {
  return x.f32() + n * x.image_stride() + b * x.pixels() * kBlock;
}

/// Where pixel p, lane l of block b of image n lies in any layout: start + p * pixel + l * lane.
struct Strides {
  float* start;
  int64_t pixel, lane;
};
static inline Strides strides_of(const View& x, int64_t n, int64_t b) {
  float* image = x.f32() + n * x.image_stride();
  if (x.layout == Layout::kBlocked) return {block_at(x, n, b), kBlock, 1};
  if (x.layout == Layout::kNhwc) return {image + b * kBlock, x.pitch, 1};
  return {image + b * kBlock * x.pixels(), 1, x.pixels()};
}

/// All ones in the lanes of block b that are channels, zeros in the pad lanes.
static inline IVec channel_mask(int64_t channels, int64_t b) {
  IVec mask{};
  for (int l = 0; l < kBlock; ++l) mask[l] = b * kBlock + l < channels ? -1 : 0;
  return mask;
}
static inline Vec zero_pads(Vec v, IVec mask) {
  return mask ? v : Vec{};
}

/// Channel block b of an array of `channels` floats, zeros in the pad lanes.
static inline Vec load_channels(const float* array, int64_t channels, int64_t b) {
  return load_partial(array + b * kBlock, channels - b * kBlock);
}
/// The first `count` lanes.
static inline void store_partial(float* p, Vec v, int64_t count) {
  std::memcpy(p, &v, static_cast<size_t>(smaller(count, kBlock)) * sizeof(float));
}
static inline void store_channels(float* array, int64_t channels, int64_t b, Vec v) {
  store_partial(array + b * kBlock, v, channels - b * kBlock);
}
/// Channel block b of image n of a tensor (N,C,1,1), whose address is n*pitch + c in every layout.
static inline Vec load_gate(const View& v, int64_t n, int64_t b) {
  return load_channels(v.f32() + n * v.pitch, v.c, b);
}
/// Writes the pad lanes too, where the tensor has them.
static inline void store_gate(const View& v, int64_t n, int64_t b, Vec value) {
  store_channels(v.f32() + n * v.pitch, v.layout == Layout::kBlocked ? v.blocks() * kBlock : v.c, b, value);
}

/// Calls body(n, b, first, last) for ranges of at most `chunk` pixels of every channel block of every image.
template <class Body>
static inline void for_each_chunk(const View& x, int64_t chunk, const Body& body) {
  const int64_t chunks = ceil_div(x.pixels(), chunk), blocks = x.blocks();
  parallel_for(x.n * blocks * chunks, smaller(chunk, x.pixels()) * kBlock, [&](int64_t i) {
    const int64_t first = i % chunks * chunk;
    body(i / chunks / blocks, i / chunks % blocks, first, smaller(first + chunk, x.pixels()));
  });
}

/// Sum over `count` pixels in float: four running sums, added pairwise. Meant for at most kSumChunk pixels.
constexpr int64_t kSumChunk = 512;
static inline Vec sum_pixels(const float* x, int64_t count) {
  Vec s0{}, s1{}, s2{}, s3{};
  int64_t p = 0;
  for (; p + 4 <= count; p += 4, x += 4 * kBlock) {
    s0 += load(x);
    s1 += load(x + kBlock);
    s2 += load(x + 2 * kBlock);
    s3 += load(x + 3 * kBlock);
  }
  for (; p < count; ++p, x += kBlock) s0 += load(x);
  return (s0 + s1) + (s2 + s3);
}
/// Sum over any number of pixels: chunks in float, merged in double.
static inline DVec sum_run(const float* x, int64_t count) {
  DVec total{};
  for (int64_t p = 0; p < count; p += kSumChunk)
    total += to_double(sum_pixels(x + p * kBlock, smaller(kSumChunk, count - p)));
  return total;
}

}  // namespace convoy::cpu::CONVOY_ISA
