// Sums over the pixels of each image and channel of nhwc images, in two launches: blocks sum parts of an image's
// pixels in fp32, then one thread each merges the parts of a few channels in double. How pixels are cut depends on the
// shape only and every merge has a fixed order, so the results are those of any order of execution. Included by *.cu
// only.
#pragma once
#include "kernels/cuda_common.h"

namespace convoy::CONVOY_DEVICE {

constexpr int kSumTileThreads = 32;     ///< most threads of a block along the channels
constexpr int64_t kFewestPixels = 128;  ///< of a part
constexpr int64_t kMostPixelParts = 512;
constexpr int kMergeWidth = 32, kMergeHeight = 8;  ///< threads over channels and over parts
constexpr int64_t kMostGridZ = 65535;

/// The pixels of an image are cut into `parts` of `length`; the last one may be shorter.
struct PixelParts {
  int64_t pixels, length, parts;
};

inline PixelParts pixel_parts(int64_t pixels) {
  const int64_t length = std::max(kFewestPixels, ceil_div(pixels, kMostPixelParts));
  return {pixels, length, std::max<int64_t>(1, ceil_div(pixels, length))};
}

/// Floats between the stages for `sums` sums of each of `channels` channels of `images` images.
inline int64_t partial_floats(int64_t images, int64_t parts, int64_t channels, int sums) {
  return images * parts * channels * sums;
}

/// Merges the threads of a block that hold the same channels; the first ones write the block's sums to
/// to[s*channels + c]. `tile` is the block's first channel. All threads of the block call it.
template <int kLanes, int kSums>
__device__ inline void merge_rows(const float (&sums)[kSums][kLanes], int64_t tile, int64_t channels,
                                  float* __restrict__ to) {
  CONVOY_SHARED(float[kSums][kBlockThreads * kLanes], shared);
  const int width = blockDim.x * kLanes, column = threadIdx.x * kLanes;
  __syncthreads();
#pragma unroll
  for (int s = 0; s < kSums; ++s)
#pragma unroll
    for (int j = 0; j < kLanes; ++j) shared[s][threadIdx.y * width + column + j] = sums[s][j];
  __syncthreads();
  for (int owned = threadIdx.y * blockDim.x + threadIdx.x; owned < width; owned += blockDim.x * blockDim.y) {
    if (tile + owned >= channels) continue;
#pragma unroll
    for (int s = 0; s < kSums; ++s) {
      float total = 0;
      for (int y = 0; y < static_cast<int>(blockDim.y); ++y) total += shared[s][y * width + owned];
      to[s * channels + tile + owned] = total;
    }
  }
}

/// First stage. Grid (parts, tiles of channels, images). `shape` is that of one image. terms.at<kLanes>(shape, n, c)
/// gives an object whose add(shape, row, c, sums) adds what pixel `row` (of all images) contributes. Terms that also
/// write have a member type Writes, and are called for pad lanes, too.
/// partial[((n*parts + part)*kSums + s)*channels + c].
template <int kLanes, int kSums, class Terms>
__global__ void __launch_bounds__(kBlockThreads)
    pixel_sums_kernel(Terms terms, Rows shape, PixelParts parts, int64_t images, float* __restrict__ partial) {
  const int64_t tile = static_cast<int64_t>(blockIdx.y) * blockDim.x * kLanes, c = tile + threadIdx.x * kLanes;
  const int64_t part = blockIdx.x, first = part * parts.length;
  const int64_t last = first + parts.length < parts.pixels ? first + parts.length : parts.pixels;
  for (int64_t n = blockIdx.z; n < images; n += gridDim.z) {
    float sums[kSums][kLanes] = {};
    if (c < (
                requires { typename Terms::Writes; } ? shape.padded : shape.channels)) {
      const auto at = terms.template at<kLanes>(shape, n, c);
      for (int64_t p = first + threadIdx.y; p < last; p += blockDim.y) at.add(shape, n * parts.pixels + p, c, sums);
    }
    merge_rows<kLanes, kSums>(sums, tile, shape.channels, partial + (n * parts.parts + part) * kSums * shape.channels);
  }
}

/// Second stage. Grid (tiles of channels, images); finish(n, c, totals) gets the sums of channel c of image n in
/// double, zeros for the channels from `channels` to `padded`.
template <int kSums, class Finish>
__global__ void __launch_bounds__(kMergeWidth* kMergeHeight)
    merge_parts_kernel(const float* __restrict__ partial, int64_t parts, int64_t channels, int64_t padded,
                       int64_t images, Finish finish) {
  CONVOY_SHARED(double[kSums][kMergeHeight][kMergeWidth], shared);
  const int64_t c = static_cast<int64_t>(blockIdx.x) * kMergeWidth + threadIdx.x;
  for (int64_t n = blockIdx.y; n < images; n += gridDim.y) {
    double totals[kSums] = {};
    if (c < channels)
      for (int64_t part = threadIdx.y; part < parts; part += kMergeHeight)
#pragma unroll
        for (int s = 0; s < kSums; ++s) totals[s] += partial[((n * parts + part) * kSums + s) * channels + c];
    __syncthreads();
#pragma unroll
    for (int s = 0; s < kSums; ++s) shared[s][threadIdx.y][threadIdx.x] = totals[s];
    __syncthreads();
    if (threadIdx.y != 0 || c >= padded) continue;
    for (int y = 1; y < kMergeHeight; ++y)
#pragma unroll
      for (int s = 0; s < kSums; ++s) totals[s] += shared[s][y][threadIdx.x];
    finish(n, c, totals);
  }
}

template <int kSums, class Finish>
void merge_parts(cudaStream_t stream, const float* partial, int64_t parts, int64_t channels, int64_t padded,
                 int64_t images, const Finish& finish) {
  const dim3 grid(static_cast<unsigned>(ceil_div(padded, kMergeWidth)),
                  static_cast<unsigned>(std::min(images, kMostGridZ)));
  launch({grid, dim3(kMergeWidth, kMergeHeight), 0, stream}, merge_parts_kernel<kSums, Finish>, partial, parts,
         channels, padded, images, finish);
}

inline size_t pixel_sums_bytes(const Rows& image, int64_t images, int sums) {
  return static_cast<size_t>(partial_floats(images, pixel_parts(image.rows).parts, image.channels, sums)) *
         sizeof(float);
}

/// Both stages for images of image.rows pixels; workspace of pixel_sums_bytes. finish is called for the channels up to
/// `padded`.
template <int kLanes, int kSums, class Terms, class Finish>
void sum_pixels(cudaStream_t stream, const Rows& image, int64_t images, const Terms& terms, int64_t padded,
                const Finish& finish, float* workspace) {
  const PixelParts parts = pixel_parts(image.rows);
  Geometry g = geometry(image, kLanes, kSumTileThreads, 1, 65535);
  g.grid.x = static_cast<unsigned>(parts.parts);
  g.grid.z = static_cast<unsigned>(std::min(images, kMostGridZ));
  launch({g.grid, g.block, 0, stream}, pixel_sums_kernel<kLanes, kSums, Terms>, terms, image, parts, images, workspace);
  merge_parts<kSums>(stream, workspace, parts.parts, image.channels, padded, images, finish);
}

/// The shape of one image of x.
inline Rows image_rows(const View& x) {
  return {x.pixels(), x.c, x.blocks() * x.block};
}

/// The same for all images of x.
template <int kLanes, int kSums, class Terms, class Finish>
void sum_pixels(cudaStream_t stream, const View& x, const Terms& terms, int64_t padded, const Finish& finish,
                float* workspace) {
  sum_pixels<kLanes, kSums>(stream, image_rows(x), x.n, terms, padded, finish, workspace);
}

}  // namespace convoy::CONVOY_DEVICE
