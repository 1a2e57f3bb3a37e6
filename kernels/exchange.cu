// Messages between ranks: one thread per element or channel.
// Bytes: (lanes + 1) * 4 per element of a sum, (2 * lanes + 2) * 4 per channel of statistics, 8 per rank and channel
// when they are merged. A layer of 2048 channels on 8 ranks reads 131 kB: latency of a launch, about 3 us on an H100,
// is all that counts. Merging is in double; GPUs fuse products and sums there, so the last bit of a float may differ
// from the CPU's.
#include "kernels/exchange.h"

#include <algorithm>

#include "kernels/cuda_common.h"

namespace convoy::CONVOY_DEVICE {
namespace {

constexpr size_t kLanesAtOnce = 64;  // pointers that travel as arguments

struct LanePointers {
  const float* lane[kLanesAtOnce];
  int count;
};

LanePointers pointers(std::span<const View> views, size_t first) {
  LanePointers result{};
  const size_t end = std::min(views.size(), first + kLanesAtOnce);
  for (size_t i = first; i < end; ++i) result.lane[result.count++] = views[i].f32();
  return result;
}

/// Statistics of a set of values.
struct Moments {
  double count, mean, m2;
  __device__ void merge(double n, double part_mean, double part_m2) {
    if (n == 0) return;
    const double delta = part_mean - mean, total = count + n;
    mean += delta * n / total;
    m2 += part_m2 + delta * delta * count * n / total;
    count = total;
  }
};

// `go_on`: `sum` holds what earlier lanes gave.
__global__ void __launch_bounds__(kBlockThreads)
    sum_lanes_kernel(LanePointers lanes, bool go_on, int64_t count, float* sum) {
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    float value = go_on ? sum[i] : 0.f;
    for (int lane = 0; lane < lanes.count; ++lane) value += lanes.lane[lane][i];
    sum[i] = value;
  }
}

__global__ void __launch_bounds__(kBlockThreads) scale_kernel(const float* x, int64_t count, double factor, float* y) {
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += static_cast<int64_t>(gridDim.x) * blockDim.x)
    y[i] = static_cast<float>(factor * x[i]);
}

__global__ void __launch_bounds__(kBlockThreads)
    merge_lanes_kernel(LanePointers means, LanePointers vars, double lane_count, double count_before, int64_t channels,
                       float* message) {
  const int64_t c = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (c >= channels) return;
  Moments moments{0, 0, 0};
  if (count_before > 0) moments = {count_before, message[1 + c], message[1 + channels + c]};
  for (int lane = 0; lane < means.count; ++lane)
    moments.merge(lane_count, means.lane[lane][c], vars.lane[lane][c] * lane_count);
  message[1 + c] = static_cast<float>(moments.mean);
  message[1 + channels + c] = static_cast<float>(moments.m2);
  if (c == 0) message[0] = static_cast<float>(count_before + lane_count * means.count);
}

__global__ void __launch_bounds__(kBlockThreads)
    merge_ranks_kernel(const float* all, int64_t stride, int ranks, int64_t channels, float* mean, float* var) {
  const int64_t c = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (c >= channels) return;
  Moments moments{0, 0, 0};
  for (int rank = 0; rank < ranks; ++rank) {
    const float* message = all + rank * stride;
    moments.merge(message[0], message[1 + c], message[1 + channels + c]);
  }
  mean[c] = static_cast<float>(moments.mean);
  var[c] = static_cast<float>(moments.m2 / moments.count);
}

Launch over(int64_t count, cudaStream_t stream) {
  const int64_t blocks = std::clamp<int64_t>(ceil_div(count, kBlockThreads), 1, kMostRowBlocks);
  return {dim3(static_cast<unsigned>(blocks)), dim3(kBlockThreads), 0, stream};
}

}  // namespace

void sum_lanes(cudaStream_t stream, std::span<const View> lanes, int64_t count, float* sum) {
  size_t first = 0;
  do {
    launch(over(count, stream), sum_lanes_kernel, pointers(lanes, first), first > 0, count, sum);
    first += kLanesAtOnce;
  } while (first < lanes.size());
}

void scale_floats(cudaStream_t stream, const float* x, int64_t count, double factor, float* y) {
  launch(over(count, stream), scale_kernel, x, count, factor, y);
}

void bn_merge_lanes(cudaStream_t stream, std::span<const View> means, std::span<const View> vars, double lane_count,
                    int64_t channels, float* message) {
  const dim3 grid(static_cast<unsigned>(ceil_div(channels, kBlockThreads)));
  size_t first = 0;
  do {
    launch({grid, kBlockThreads, 0, stream}, merge_lanes_kernel, pointers(means, first), pointers(vars, first),
           lane_count, lane_count * static_cast<double>(first), channels, message);
    first += kLanesAtOnce;
  } while (first < means.size());
}

void bn_merge_ranks(cudaStream_t stream, const float* all, int64_t stride, int ranks, int64_t channels, float* mean,
                    float* var) {
  const dim3 grid(static_cast<unsigned>(ceil_div(channels, kBlockThreads)));
  launch({grid, kBlockThreads, 0, stream}, merge_ranks_kernel, all, stride, ranks, channels, mean, var);
}

}  // namespace convoy::CONVOY_DEVICE
