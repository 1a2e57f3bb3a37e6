// Sums over the parts into which a kernel has cut its rows, in double and in a fixed order. Included by *.cu only.
#pragma once
#include "kernels/cuda_pixel_sums.h"

namespace convoy::CONVOY_DEVICE {

/// Up to so many parts, or from so many sums on, one thread adds all parts of a sum: there are threads enough, or
/// little to wait for. Else the threads of a block share them.
constexpr int64_t kFewParts = 64, kManySums = 8192;

/// For merge_parts: keeps its only sum.
struct StoreSum {
  float* to;
  __device__ void operator()(int64_t, int64_t i, const double (&total)[1]) const {
    to[i] = static_cast<float>(total[0]);
  }
};

template <int kThreads>
__global__ void __launch_bounds__(kThreads)
    add_parts_kernel(const float* __restrict__ partial, int64_t parts, int64_t count, float* __restrict__ to) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= count) return;
  double total = 0;
  for (int64_t part = 0; part < parts; ++part) total += partial[part * count + i];
  to[i] = static_cast<float>(total);
}

/// to[i] = sum of partial[part*count + i].
inline void add_parts(cudaStream_t stream, const float* partial, int64_t parts, int64_t count, float* to) {
  if (parts > kFewParts && count < kManySums)
    return merge_parts<1>(stream, partial, parts, count, count, 1, StoreSum{to});
  launch({static_cast<unsigned>(ceil_div(count, kBlockThreads)), kBlockThreads, 0, stream},
         add_parts_kernel<kBlockThreads>, partial, parts, count, to);
}

}  // namespace convoy::CONVOY_DEVICE
