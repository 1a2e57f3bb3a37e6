// Reductions over the channels of each pixel: a row of channels is the work of a group of blockDim.x threads, a power
// of two up to a warp, and threadIdx.y counts the rows of a block. Included by *.cu only.
#pragma once
#include "kernels/cuda_common.h"

namespace convoy::CONVOY_DEVICE {

/// body(row, active) for every row; all threads of the block call it equally often, so that it may shuffle. Rows that
/// are not active do not exist.
template <class Body>
__device__ inline void for_each_row(int64_t rows, const Body& body) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.y;
  for (int64_t first = static_cast<int64_t>(blockIdx.x) * blockDim.y; first < rows; first += step) {
    const int64_t row = first + threadIdx.y;
    body(row, row < rows);
  }
}

/// The sum of the group's values, the same bits in all its threads. All threads of the warp call it.
__device__ inline float group_sum(float value) {
  for (int step = blockDim.x / 2; step > 0; step /= 2) value += __shfl_xor_sync(~0u, value, step);
  return value;
}

/// The largest of them.
__device__ inline float group_max(float value) {
  for (int step = blockDim.x / 2; step > 0; step /= 2) {
    const float other = __shfl_xor_sync(~0u, value, step);
    value = other > value ? other : value;
  }
  return value;
}

inline Geometry row_geometry(const Rows& shape, int lanes) {
  return geometry(shape, lanes, 32, kMostRowBlocks, 1);
}

}  // namespace convoy::CONVOY_DEVICE
