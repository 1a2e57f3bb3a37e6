// How kernels that write nhwc images walk over them: threads over channels (x) and columns (y), blocks over columns,
// rows and images, so that rows and columns are known without a division. Included by *.cu only.
#pragma once
#include "kernels/cuda_common.h"

namespace convoy::CONVOY_DEVICE {

constexpr int kWalkTileThreads = 32;  ///< most threads of a block along the channels
constexpr int64_t kMostGridRows = 65535;
/// For __launch_bounds__ of kernels that walk: 64 registers a thread. Without it ptxas aims at 48 and spills.
constexpr int kWalkBlocks = 4;

/// The image that a kernel writes. Channels are cut into `tiles` of one block's width.
struct PixelWalk {
  int64_t images, padded;
  int height, width;
  unsigned tiles;
};

/// body(image, row, column, first channel) for every pixel and group of kLanes channels, pad lanes included.
template <int kLanes, class Body>
__device__ inline void for_each_pixel(const PixelWalk& walk, const Body& body) {
  const int column = static_cast<int>(blockIdx.x * blockDim.y + threadIdx.y);
  if (column >= walk.width) return;
  for (int64_t z = blockIdx.z; z < walk.images * walk.tiles; z += gridDim.z) {
    int64_t n = z;
    unsigned tile = 0;
    if (walk.tiles > 1) {
      n = z / walk.tiles;
      tile = static_cast<unsigned>(z - n * walk.tiles);
    }
    const int64_t c = static_cast<int64_t>(tile * blockDim.x + threadIdx.x) * kLanes;
    if (c >= walk.padded) continue;
    for (int row = blockIdx.y; row < walk.height; row += gridDim.y) body(n, row, column, c);
  }
}

/// The walk over `to`, and its grid and block.
struct WalkGeometry {
  PixelWalk walk;
  dim3 grid, block;
};

/// Throws where the image is too large for 32-bit rows and columns.
inline WalkGeometry walk_geometry(const View& to, int lanes) {
  if (to.h > INT32_MAX || to.w > INT32_MAX || to.pixels() > INT32_MAX)
    throw std::invalid_argument(CONVOY_DEVICE_NAME ": images have at most 2^31 - 1 pixels");
  const Rows columns{to.w, to.c, to.blocks() * to.block};
  Geometry g = geometry(columns, lanes, kWalkTileThreads, INT32_MAX, 1);
  const auto tiles = static_cast<unsigned>(ceil_div(ceil_div(columns.padded, lanes), g.block.x));
  g.grid.y = static_cast<unsigned>(std::min(to.h, kMostGridRows));
  g.grid.z = static_cast<unsigned>(std::min<int64_t>(to.n * tiles, kMostGridRows));
  return {{to.n, columns.padded, static_cast<int>(to.h), static_cast<int>(to.w), tiles}, g.grid, g.block};
}

/// Channels [c, c + kLanes) of a row of int32 elements; 0 from `channels` on. Vectors need rows aligned to 16 bytes.
template <int kLanes>
__device__ inline void load_indices(const Operand<const int32_t>& x, const Rows& shape, int64_t row, int64_t c,
                                    int32_t (&value)[kLanes]) {
  const int32_t* p = x.data + row * x.pitch + c;
  if (kLanes >= 4 && c + kLanes <= shape.padded) {
#pragma unroll
    for (int j = 0; j < kLanes; j += 4) {
      const auto pack = *reinterpret_cast<const Pack<int32_t, 4>*>(p + j);
#pragma unroll
      for (int k = 0; k < 4 && k < kLanes; ++k) value[j + k] = c + j + k < shape.channels ? pack.lane[k] : 0;
    }
  } else {
#pragma unroll
    for (int j = 0; j < kLanes; ++j) value[j] = c + j < shape.channels ? p[j] : 0;
  }
}

template <int kLanes>
__device__ inline void store_indices(const Operand<int32_t>& y, const Rows& shape, int64_t row, int64_t c,
                                     const int32_t (&value)[kLanes]) {
  int32_t* p = y.data + row * y.pitch + c;
  if (kLanes >= 4 && c + kLanes <= shape.padded) {
#pragma unroll
    for (int j = 0; j < kLanes; j += 4) {
      Pack<int32_t, 4> pack;
#pragma unroll
      for (int k = 0; k < 4; ++k) pack.lane[k] = k < kLanes && c + j + k < shape.channels ? value[j + k] : 0;
      *reinterpret_cast<Pack<int32_t, 4>*>(p + j) = pack;
    }
  } else {
#pragma unroll
    for (int j = 0; j < kLanes; ++j)
      if (c + j < shape.padded) p[j] = c + j < shape.channels ? value[j] : 0;
  }
}

}  // namespace convoy::CONVOY_DEVICE
