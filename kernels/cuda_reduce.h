// Sums over the threads of a block and over the blocks of a grid, in an order that depends on their number alone, and
// faults. Included by *.cu only.
#pragma once
#include "kernels/cuda_compat.h"

namespace convoy::CONVOY_DEVICE {

/// Sum of one value per thread, right in thread 0. Called by all threads of a block; a block has whole warps.
template <class T>
__device__ T block_sum(T value) {
  CONVOY_SHARED(T[32], of_warp);
  const int thread = threadIdx.y * blockDim.x + threadIdx.x, warps = blockDim.x * blockDim.y / 32;
#pragma unroll
  for (int step = 16; step > 0; step /= 2) value += __shfl_down_sync(~0u, value, step);
  __syncthreads();  // the sums of an earlier call have been read
  if (thread % 32 == 0) of_warp[thread / 32] = value;
  __syncthreads();
  if (thread == 0)
    for (int warp = 1; warp < warps; ++warp) value += of_warp[warp];
  return value;
}

/// Sum of an array, right in thread 0. Called by all threads of the only block.
template <class T>
__device__ T array_sum(const T* __restrict__ values, int64_t count) {
  const int thread = threadIdx.y * blockDim.x + threadIdx.x, threads = blockDim.x * blockDim.y;
  T sum = 0;
  for (int64_t i = thread; i < count; i += threads) sum += values[i];
  return block_sum(sum);
}

/// Sum of the values of all threads before this one. Called by all threads of a block; a block has whole warps. total,
/// where not null: the sum of all.
template <class T>
__device__ T block_exclusive_sum(T value, T* total = nullptr) {
  CONVOY_SHARED(T[32], of_warp);
  const int thread = threadIdx.y * blockDim.x + threadIdx.x, lane = thread % 32, warp = thread / 32;
  const int warps = blockDim.x * blockDim.y / 32;
  T sum = value;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const T other = __shfl_up_sync(~0u, sum, step);
    if (lane >= step) sum += other;
  }
  __syncthreads();  // the sums of an earlier call have been read
  if (lane == 31) of_warp[warp] = sum;
  __syncthreads();
  T before = 0, all = 0;
  for (int k = 0; k < warps; ++k) {
    if (k < warp) before += of_warp[k];
    all += of_warp[k];
  }
  if (total) *total = all;
  return before + sum - value;
}

/// Counts each lane's bin (none where it is negative) in an array in shared memory. Values next to each other are often
/// in one bin: all that share the first lane's take one addition. Called by all lanes of a warp.
__device__ inline void count_bins(unsigned* bins, int bin) {
  const int of_first = __shfl_sync(~0u, bin, 0);
  const unsigned same = __ballot_sync(~0u, bin == of_first);
  const bool is_first = (threadIdx.y * blockDim.x + threadIdx.x) % 32 == 0;
  if (bin >= 0 && (is_first || bin != of_first))
    atomicAdd(&bins[bin], is_first ? static_cast<unsigned>(__popc(same)) : 1u);
}

/// Keeps the smallest position of wrong data (KernelArgs::fault of the engine).
__device__ inline void report_fault(int64_t* fault, int64_t position) {
  atomicMin(reinterpret_cast<unsigned long long*>(fault), static_cast<unsigned long long>(position));
}

}  // namespace convoy::CONVOY_DEVICE
