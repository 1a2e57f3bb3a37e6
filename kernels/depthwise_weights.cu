// The weight gradient of depthwise convolution on nhwc images.
// Bytes: x and dy once from memory; the threads of a block's other kernel rows read them again from the L1 cache.
// FLOPs: 2 kh kw per element of dy. A bf16 image of 8 x 512 x 64 x 64 under a 3x3 kernel is 34 MB of x and 34 MB of dy:
// 0.020 ms on an H100 (3.35 TB/s).
// Numerics: storage fp32, fp16 or bf16, sums in fp32 within a part of the rows, over the parts in double. How rows are
// cut depends on the shape only and every sum has a fixed order, so results do not depend on the order of execution.
//
// A thread sums one kernel row of 16 bytes of channels over tiles of kTile pixels of dy, which meet
// (kTile - 1) * stride + kw pixels of x; under a dilation the pixels of a tile are that far apart. The threads of a
// block are channels (x), parts of the block's rows and columns (y) and kernel rows (z); they meet once, in shared
// memory.
#include "kernels/cuda_depthwise.h"
#include "kernels/cuda_parts.h"
#include "kernels/depthwise.h"

namespace convoy::CONVOY_DEVICE {
namespace {

constexpr int kTileChannels = 64;  // of a block, at most
constexpr int kMostThreads = 384, kMostKernelRows = 7, kMostWorkers = 16;
constexpr int64_t kWantedBlocks = 132 * 4, kMostParts = 512;
constexpr int64_t kFewestColumns = 64;  // of dy in the rows of a part

// Rows of dy (of all images) in parts of `length`.
struct RowParts {
  int64_t rows, length, parts;
};

RowParts row_parts(const View& dy) {
  const int64_t rows = dy.n * dy.h, tiles = ceil_div(dy.c, kTileChannels);
  const int64_t wanted = std::clamp<int64_t>(ceil_div(kWantedBlocks, tiles), 1, std::min(rows, kMostParts));
  const int64_t length = std::max(ceil_div(rows, wanted), std::min(rows, ceil_div(kFewestColumns, dy.w)));
  return {rows, length, ceil_div(rows, length)};
}

struct Sweep {
  ConvAxes axes;
  RowParts parts;
  int spread, step;       // columns between the pixels of dy and of x that a thread reads
  int columns;            // thread columns that cover a row
  int workers;            // of the threads y those that share a row; the others take other rows
  int columns_of_kernel;  // that are summed by blocks of their own
};

// Grid: parts, channel tiles, kernel row groups times kernel columns. partial[part*count + c*taps + tap].
template <class T, int kLanes, int kKernel, int kStride>
__global__ void __launch_bounds__(kMostThreads, 1)
    weights_kernel(Operand<const T> x, Operand<const T> dy, Rows shape, Sweep s, float* __restrict__ partial) {
  CONVOY_DYNAMIC_SHARED(float, shared);
  const int k0 = blockIdx.z % s.columns_of_kernel, row_group = blockIdx.z / s.columns_of_kernel;
  const int kernel_row = row_group * blockDim.z + threadIdx.z;
  const int worker_row = threadIdx.y / s.workers, worker = threadIdx.y - worker_row * s.workers;
  const int64_t tile = static_cast<int64_t>(blockIdx.y) * blockDim.x * kLanes, c = tile + threadIdx.x * kLanes;
  const ConvAxis &h = s.axes.h, &w = s.axes.w;
  float sum[kKernel][kLanes] = {};
  if (c < shape.channels && kernel_row < h.kernel) {
    const int64_t first = blockIdx.x * s.parts.length;
    const int64_t last = first + s.parts.length < s.parts.rows ? first + s.parts.length : s.parts.rows;
    for (int64_t row = first + worker_row; row < last; row += blockDim.y / s.workers) {
      const int64_t n = row / h.target;
      const int source = h.position(static_cast<int>(row - n * h.target), kernel_row);
      if (source < 0) continue;
      const T* line = x.data + (n * h.source + source) * w.source * x.pitch + c;
      const T* gradient = dy.data + row * w.target * dy.pitch + c;
      for (int q = worker; q < s.columns; q += s.workers) {
        const int column = q / s.spread * s.spread * kTile + q % s.spread;
        const int origin = column * w.stride - w.pad + k0 * w.dilation;
        float g[kTile][kLanes] = {};
#pragma unroll
        for (int i = 0; i < kTile; ++i)
          if (column + i * s.spread < w.target) load_pack<kLanes>(gradient + (column + i * s.spread) * dy.pitch, g[i]);
#pragma unroll
        for (int m = 0; m < (kTile - 1) * kStride + kKernel; ++m) {
          float value[kLanes] = {};
          if (static_cast<unsigned>(origin + m * s.step) < static_cast<unsigned>(w.source))
            load_pack<kLanes>(line + (origin + m * s.step) * x.pitch, value);
#pragma unroll
          for (int i = 0; i < kTile; ++i) {
            const int k = m - i * kStride;
            if (k < 0 || k >= kKernel) continue;
#pragma unroll
            for (int j = 0; j < kLanes; ++j) sum[k][j] += g[i][j] * value[j];
          }
        }
      }
    }
  }
  // shared[((z*workers + y)*kKernel + k)*width + j*threads + x]
  const int width = blockDim.x * kLanes, workers = blockDim.y;
  float* mine = shared + (threadIdx.z * workers + threadIdx.y) * kKernel * width + threadIdx.x;
#pragma unroll
  for (int k = 0; k < kKernel; ++k)
#pragma unroll
    for (int j = 0; j < kLanes; ++j) mine[k * width + j * blockDim.x] = sum[k][j];
  __syncthreads();
  const int taps = h.kernel * w.kernel, size = kKernel * width;
  const int thread = (threadIdx.z * workers + threadIdx.y) * blockDim.x + threadIdx.x;
  float* out = partial + blockIdx.x * shape.channels * taps;
  for (int i = thread; i < static_cast<int>(blockDim.z) * size; i += blockDim.x * workers * blockDim.z) {
    const int z = i / size, k = i % size / width, at = i % width;
    const int64_t channel = tile + at % blockDim.x * kLanes + at / blockDim.x;
    const int row = row_group * blockDim.z + z;
    if (channel >= shape.channels || row >= h.kernel) continue;
    float total = 0;
    for (int y = 0; y < workers; ++y) total += shared[(z * workers + y) * size + i % size];
    out[channel * taps + row * w.kernel + k0 + k] = total;
  }
}

int power_of_two(int64_t count, int most) {
  int p = 1;
  while (p < count && 2 * p <= most) p *= 2;
  return p;
}

}  // namespace

size_t depthwise_cuda_workspace_bytes(const View& dy, int64_t kernel_h, int64_t kernel_w) {
  const int64_t parts = row_parts(dy).parts;
  return parts == 1 ? 0 : static_cast<size_t>(parts * dy.c * kernel_h * kernel_w) * sizeof(float);
}

void depthwise_backward_weights(cudaStream_t stream, const View& x, const View& dy, int64_t kernel_h, int64_t kernel_w,
                                const Conv2dParams& params, float* dw, float* workspace) {
  constexpr const char* kName = "depthwise_backward_weights";
  check_depthwise(kName, x, dy, kernel_h * kernel_w);
  const RowParts parts = row_parts(dy);
  float* partial = parts.parts == 1 ? dw : workspace;
  const ConvAxes axes = conv_axes(x, dy, kernel_h, kernel_w, params, false);
  dispatch(
      kName, dy.dtype, whole_vectors(x, dy), [&]<class T, int kLanes>(Element<T>, std::integral_constant<int, kLanes>) {
        const auto run = [&]<int kKernel, int kStride>(std::integral_constant<int, kKernel>,
                                                       std::integral_constant<int, kStride>) {
          Sweep s{axes, parts, 1, axes.w.stride, 0, 1, axes.w.kernel};
          if (kKernel > 1) s.spread = s.step = axes.w.dilation, s.columns_of_kernel = 1;
          s.columns = static_cast<int>(ceil_div(dy.w, kTile * s.spread)) * s.spread;
          const int rows = std::min(axes.h.kernel, kMostKernelRows);
          const int threads = power_of_two(ceil_div(dy.c, kLanes), kTileChannels / kLanes);
          const int most = std::min(kMostWorkers, kMostThreads / (threads * rows));
          const int workers = power_of_two(s.columns * parts.length, most);
          s.workers = power_of_two(s.columns, workers);
          const int64_t groups = ceil_div(axes.h.kernel, rows) * s.columns_of_kernel;
          const dim3 grid(static_cast<unsigned>(parts.parts), static_cast<unsigned>(ceil_div(dy.c, threads * kLanes)),
                          static_cast<unsigned>(groups));
          const dim3 block(static_cast<unsigned>(threads), static_cast<unsigned>(workers), static_cast<unsigned>(rows));
          const size_t bytes = sizeof(float) * static_cast<size_t>(threads * workers * rows * kKernel * kLanes);
          launch({grid, block, bytes, stream}, weights_kernel<T, kLanes, kKernel, kStride>, operand<const T>(x),
                 operand<const T>(dy), pixel_rows(dy), s, partial);
        };
        if constexpr (kLanes == 1)
          run(std::integral_constant<int, 1>{}, std::integral_constant<int, 1>{});
        else
          dispatch_kernel(axes.w, true, axes.w.stride, run);
      });
  if (parts.parts == 1) return;
  add_parts(stream, workspace, parts.parts, dy.c * kernel_h * kernel_w, dw);
}

}  // namespace convoy::CONVOY_DEVICE
