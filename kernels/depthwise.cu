// Depthwise convolution of nhwc images and its input gradient. The weight gradient is in depthwise_weights.cu.
// Bytes: the source and the target once from and to memory; a source row is read again from the L1 cache for every
// kernel row. FLOPs: 2 kh kw per element. A bf16 image of 8 x 512 x 64 x 64 under a 3x3 kernel is 34 MB in and 34 MB
// out: 0.020 ms on an H100 (3.35 TB/s); the 0.3 GFLOP take 0.005 ms. 3x3 and 5x5 are bound by memory, 7x7 by the fp32
// units and the L1 cache.
// Numerics: storage fp32, fp16 or bf16, arithmetic in fp32; sums by kernel row, then column. One thread computes an
// element, so results do not depend on the order of execution.
//
// A thread holds 16 bytes of channels of kTile target pixels and slides along a kernel row: (kTile - 1) * stride + kw
// source pixels are read for kTile * kw products. Under a dilation the target pixels of a thread are that far apart,
// so that they share source pixels all the same. A block walks down a band of rows, whose source rows stay in L1; its
// weights lie in shared memory, turned to [tap][channel].
#include "kernels/depthwise.h"

#include "kernels/cuda_depthwise.h"

namespace convoy::CONVOY_DEVICE {
namespace {

constexpr int kThreads = 128;                   // of a block; registers allow two or three blocks
constexpr int kMostChannelThreads = 32;         // of a block
constexpr size_t kMostWeightBytes = 48 * 1024;  // of a block in shared memory
constexpr int64_t kMostBand = 16;               // rows of a block
constexpr int64_t kEnoughBlocks = 132 * 6;      // to fill an H100 and even out the last wave

/// A grid over the target: channel tiles and column tiles in x, bands of rows in y, images in z.
struct Tiling {
  ConvAxes axes;
  bool flipped = false;  // kernel columns are taken from the last to the first
  int spread = 1;        // columns from one target pixel of a thread to the next
  int step = 1;          // columns from one source pixel of a thread to the next
  int64_t images = 0;
  int column_blocks = 0, band = 0;
};

/// Weights of a block's channels in shared memory. Quads of channels lie so that neighbouring threads of 8 lanes meet
/// different banks: [tap][quad of a thread][thread][4].
template <int kLanes>
struct SharedWeights {
  float* data;
  int channels;

  static constexpr int kQuad = kLanes < 4 ? kLanes : 4;
  __device__ int at(int tap, int thread, int lane) const {
    return tap * channels + lane / kQuad * (channels / kLanes * kQuad) + thread * kQuad + lane % kQuad;
  }
  // All threads of the block; w has `taps` weights for each of `count` channels, the rest becomes zero.
  __device__ void fill(const float* __restrict__ w, int count, int taps, int kernel_w, bool flipped) const {
    for (int i = threadIdx.y * blockDim.x + threadIdx.x; i < channels * taps; i += blockDim.x * blockDim.y) {
      const int c = i / taps, tap = i % taps, column = tap % kernel_w;
      data[at(flipped ? tap - column + kernel_w - 1 - column : tap, c / kLanes, c % kLanes)] = c < count ? w[i] : 0.f;
    }
  }
  __device__ void load(int tap, float (&value)[kLanes]) const {
#pragma unroll
    for (int q = 0; q < kLanes; q += kQuad) {
      const auto pack = *reinterpret_cast<const Pack<float, kQuad>*>(data + at(tap, threadIdx.x, q));
#pragma unroll
      for (int j = 0; j < kQuad; ++j) value[q + j] = pack.lane[j];
    }
  }
};

// Source columns of a thread for one kernel row: adds to the sums of its target pixels. `line` is the source row.
template <class T, int kLanes, int kKernel, int kStride>
__device__ void add_row(const T* __restrict__ line, int64_t pitch, const Tiling& t, int origin, int first_tap,
                        const SharedWeights<kLanes>& weights, float (&sum)[kTile][kLanes]) {
  const int kernels = kKernel == 1 ? t.axes.w.kernel : 1, dilation = t.axes.w.dilation;
  for (int k0 = 0; k0 < kernels; ++k0) {
    float tap[kKernel][kLanes];
#pragma unroll
    for (int k = 0; k < kKernel; ++k) weights.load(first_tap + k0 + k, tap[k]);
#pragma unroll
    for (int m = 0; m < (kTile - 1) * kStride + kKernel; ++m) {
      const int column = origin + k0 * dilation + m * t.step;
      float value[kLanes] = {};
      if (static_cast<unsigned>(column) < static_cast<unsigned>(t.axes.w.source))
        load_pack<kLanes>(line + column * pitch, value);
#pragma unroll
      for (int i = 0; i < kTile; ++i) {
        const int k = m - i * kStride;
        if (k < 0 || k >= kKernel) continue;
#pragma unroll
        for (int j = 0; j < kLanes; ++j) sum[i][j] += tap[k][j] * value[j];
      }
    }
  }
}

// kKernel: columns of the kernel that slide over shared source pixels; 1 takes kernels of any width, column by column.
template <class T, int kLanes, int kKernel, int kStride>
__global__ void __launch_bounds__(kThreads, kKernel <= 5 && kStride == 1 ? 3 : 2)
    tile_kernel(Operand<const T> x, Operand<T> y, Rows shape, Tiling t, const float* __restrict__ w,
                const float* __restrict__ bias) {
  CONVOY_DYNAMIC_SHARED(float, buffer);
  const int channel_tile = blockIdx.x / t.column_blocks, column_block = blockIdx.x - channel_tile * t.column_blocks;
  const SharedWeights<kLanes> weights{buffer, static_cast<int>(blockDim.x) * kLanes};
  const int64_t first = static_cast<int64_t>(channel_tile) * weights.channels, c = first + threadIdx.x * kLanes;
  const int taps = t.axes.h.kernel * t.axes.w.kernel;
  const int64_t count = shape.channels - first < weights.channels ? shape.channels - first : weights.channels;
  weights.fill(w + first * taps, static_cast<int>(count), taps, t.axes.w.kernel, t.flipped);
  __syncthreads();
  // Thread columns come in groups of `spread`, each the first pixels of `spread` interleaved tiles.
  const int q = column_block * blockDim.y + threadIdx.y;
  const int column = q / t.spread * t.spread * kTile + q % t.spread;
  if (c >= shape.padded || column >= t.axes.w.target) return;
  const int origin = t.flipped ? column + t.axes.w.pad - t.axes.w.dilation * (t.axes.w.kernel - 1)
                               : column * t.axes.w.stride - t.axes.w.pad;
  float offset[kLanes] = {};
  if (bias) load_channels<kLanes>(bias, shape.channels, c, 0.f, offset);
  for (int64_t n = blockIdx.z; n < t.images; n += gridDim.z) {
    const T* image = x.data + n * t.axes.h.source * t.axes.w.source * x.pitch + c;
    const int band = static_cast<int>(blockIdx.y) * t.band;
    for (int r = band; r < band + t.band && r < t.axes.h.target; ++r) {
      float sum[kTile][kLanes];
#pragma unroll
      for (int i = 0; i < kTile; ++i)
#pragma unroll
        for (int j = 0; j < kLanes; ++j) sum[i][j] = offset[j];
      for (int k = 0; k < t.axes.h.kernel; ++k) {
        const int source = t.axes.h.position(r, k);
        if (source < 0) continue;
        add_row<T, kLanes, kKernel, kStride>(image + static_cast<int64_t>(source) * t.axes.w.source * x.pitch, x.pitch,
                                             t, origin, k * t.axes.w.kernel, weights, sum);
      }
      const int64_t row = (n * t.axes.h.target + r) * t.axes.w.target;
#pragma unroll
      for (int i = 0; i < kTile; ++i)
        if (column + i * t.spread < t.axes.w.target)
          store_lanes<kLanes>(y, shape, row + column + i * t.spread, c, sum[i]);
    }
  }
}

// The input gradient under a column stride of 2 and no column dilation: of kTile neighbouring pixels of dx, the first
// at an even distance from the padded edge, every other kernel column meets every other pixel.
template <class T, int kLanes, int kKernel>
__global__ void __launch_bounds__(kThreads, 3)
    stride2_backward_kernel(Operand<const T> dy, Operand<T> dx, Rows shape, Tiling t, const float* __restrict__ w) {
  CONVOY_DYNAMIC_SHARED(float, buffer);
  constexpr int kBefore = (kKernel - 1) / 2, kSources = kBefore + kTile / 2;
  const int channel_tile = blockIdx.x / t.column_blocks, column_block = blockIdx.x - channel_tile * t.column_blocks;
  const SharedWeights<kLanes> weights{buffer, static_cast<int>(blockDim.x) * kLanes};
  const int64_t first = static_cast<int64_t>(channel_tile) * weights.channels, c = first + threadIdx.x * kLanes;
  const int taps = t.axes.h.kernel * kKernel;
  const int64_t count = shape.channels - first < weights.channels ? shape.channels - first : weights.channels;
  weights.fill(w + first * taps, static_cast<int>(count), taps, kKernel, false);
  __syncthreads();
  const int column =
      (column_block * static_cast<int>(blockDim.y) + static_cast<int>(threadIdx.y)) * kTile - (t.axes.w.pad & 1);
  if (c >= shape.padded || column >= t.axes.w.target) return;
  const int origin = (column + t.axes.w.pad) / 2 - kBefore;
  for (int64_t n = blockIdx.z; n < t.images; n += gridDim.z) {
    const T* image = dy.data + n * t.axes.h.source * t.axes.w.source * dy.pitch + c;
    const int band = static_cast<int>(blockIdx.y) * t.band;
    for (int r = band; r < band + t.band && r < t.axes.h.target; ++r) {
      float sum[kTile][kLanes] = {};
      for (int k = 0; k < t.axes.h.kernel; ++k) {
        const int source = t.axes.h.position(r, k);
        if (source < 0) continue;
        const T* line = image + static_cast<int64_t>(source) * t.axes.w.source * dy.pitch;
        float tap[kKernel][kLanes];
#pragma unroll
        for (int i = 0; i < kKernel; ++i) weights.load(k * kKernel + i, tap[i]);
#pragma unroll
        for (int m = 0; m < kSources; ++m) {
          float value[kLanes] = {};
          if (static_cast<unsigned>(origin + m) < static_cast<unsigned>(t.axes.w.source))
            load_pack<kLanes>(line + (origin + m) * dy.pitch, value);
#pragma unroll
          for (int i = 0; i < kTile; ++i) {
            const int kernel_column = i - 2 * (m - kBefore);
            if (kernel_column < 0 || kernel_column >= kKernel) continue;
#pragma unroll
            for (int j = 0; j < kLanes; ++j) sum[i][j] += tap[kernel_column][j] * value[j];
          }
        }
      }
      const int64_t row = (n * t.axes.h.target + r) * t.axes.w.target;
#pragma unroll
      for (int i = 0; i < kTile; ++i)
        if (column + i >= 0 && column + i < t.axes.w.target)
          store_lanes<kLanes>(dx, shape, row + column + i, c, sum[i]);
    }
  }
}

// The input gradient under any stride and dilation, pixel by pixel.
template <class T, int kLanes>
__global__ void __launch_bounds__(kThreads)
    gather_backward_kernel(Operand<const T> dy, Operand<T> dx, Rows shape, Tiling t, const float* __restrict__ w) {
  CONVOY_DYNAMIC_SHARED(float, buffer);
  const int channel_tile = blockIdx.x / t.column_blocks, column_block = blockIdx.x - channel_tile * t.column_blocks;
  const SharedWeights<kLanes> weights{buffer, static_cast<int>(blockDim.x) * kLanes};
  const int64_t first = static_cast<int64_t>(channel_tile) * weights.channels, c = first + threadIdx.x * kLanes;
  const int taps = t.axes.h.kernel * t.axes.w.kernel;
  const int64_t count = shape.channels - first < weights.channels ? shape.channels - first : weights.channels;
  weights.fill(w + first * taps, static_cast<int>(count), taps, t.axes.w.kernel, false);
  __syncthreads();
  const int column = column_block * blockDim.y + threadIdx.y;
  if (c >= shape.padded || column >= t.axes.w.target) return;
  for (int64_t n = blockIdx.z; n < t.images; n += gridDim.z) {
    const int band = static_cast<int>(blockIdx.y) * t.band;
    for (int r = band; r < band + t.band && r < t.axes.h.target; ++r) {
      float sum[kLanes] = {};
      for (int i = 0; i < t.axes.h.kernel; ++i) {
        const int source = t.axes.h.position(r, i);
        if (source < 0) continue;
        for (int k = 0; k < t.axes.w.kernel; ++k) {
          const int at = t.axes.w.position(column, k);
          if (at < 0) continue;
          float value[kLanes], tap[kLanes];
          weights.load(i * t.axes.w.kernel + k, tap);
          load_pack<kLanes>(dy.data + ((n * t.axes.h.source + source) * t.axes.w.source + at) * dy.pitch + c, value);
#pragma unroll
          for (int j = 0; j < kLanes; ++j) sum[j] += tap[j] * value[j];
        }
      }
      store_lanes<kLanes>(dx, shape, (n * t.axes.h.target + r) * t.axes.w.target + column, c, sum);
    }
  }
}

struct Plan {
  Launch launch;
  Tiling tiling;
};

// `columns`: thread columns that cover a target row.
Plan plan(cudaStream_t stream, const View& target, int lanes, Tiling t, int64_t columns) {
  const int64_t padded = target.blocks() * target.block, groups = ceil_div(padded, lanes);
  const size_t taps = static_cast<size_t>(t.axes.h.kernel * t.axes.w.kernel);
  const auto bytes = [&](int threads) { return taps * static_cast<size_t>(threads * lanes) * sizeof(float); };
  int x = 1;
  while (x < groups && x < kMostChannelThreads && bytes(2 * x) <= kMostWeightBytes) x *= 2;
  int y = 1;
  while (y < columns && x * y < kThreads) y *= 2;
  t.images = target.n;
  t.column_blocks = static_cast<int>(ceil_div(columns, y));
  const int64_t blocks = t.column_blocks * ceil_div(groups, x) * target.n;
  const int64_t wanted = std::clamp<int64_t>(target.h * blocks / kEnoughBlocks, 1, kMostBand);
  t.band = static_cast<int>(std::max(wanted, ceil_div(target.h, kMostGridYZ)));
  const dim3 grid(static_cast<unsigned>(t.column_blocks * ceil_div(groups, x)),
                  static_cast<unsigned>(ceil_div(target.h, t.band)),
                  static_cast<unsigned>(std::min(target.n, kMostGridYZ)));
  return {{grid, dim3(static_cast<unsigned>(x), static_cast<unsigned>(y)), bytes(x), stream}, t};
}

// From source to target with a column stride of `stride`.
void run_tiles(cudaStream_t stream, const char* name, const View& source, const View& target, const float* w,
               const float* bias, const ConvAxes& axes, int stride) {
  const bool vectors = whole_vectors(source, target);
  dispatch(name, target.dtype, vectors, [&]<class T, int kLanes>(Element<T>, std::integral_constant<int, kLanes>) {
    const auto run = [&]<int kKernel, int kStride>(std::integral_constant<int, kKernel>,
                                                   std::integral_constant<int, kStride>) {
      Tiling t{axes};
      t.flipped = axes.w.backward;
      t.spread = kKernel == 1 ? 1 : axes.w.dilation;
      t.step = kKernel == 1 ? stride : axes.w.dilation;
      const Plan p = plan(stream, target, kLanes, t, ceil_div(target.w, kTile * t.spread) * t.spread);
      launch(p.launch, tile_kernel<T, kLanes, kKernel, kStride>, operand<const T>(source), operand<T>(target),
             pixel_rows(target), p.tiling, w, bias);
    };
    if constexpr (kLanes == 1)
      run(std::integral_constant<int, 1>{}, std::integral_constant<int, 1>{});
    else
      dispatch_kernel(axes.w, true, stride, run);
  });
}

}  // namespace

void depthwise(cudaStream_t stream, const View& x, const float* w, int64_t kernel_h, int64_t kernel_w,
               const float* bias, const Conv2dParams& params, const View& y) {
  check_depthwise("depthwise", x, y, kernel_h * kernel_w);
  const ConvAxes axes = conv_axes(x, y, kernel_h, kernel_w, params, false);
  run_tiles(stream, "depthwise", x, y, w, bias, axes, axes.w.stride);
}

void depthwise_backward_data(cudaStream_t stream, const View& dy, const float* w, int64_t kernel_h, int64_t kernel_w,
                             const Conv2dParams& params, const View& dx) {
  constexpr const char* kName = "depthwise_backward_data";
  check_depthwise(kName, dy, dx, kernel_h * kernel_w);
  const ConvAxes axes = conv_axes(dy, dx, kernel_h, kernel_w, params, true);
  if (axes.w.stride == 1) return run_tiles(stream, kName, dy, dx, w, nullptr, axes, 1);
  const bool slides = axes.w.stride == 2 && axes.w.dilation == 1;
  dispatch(kName, dx.dtype, whole_vectors(dy, dx),
           [&]<class T, int kLanes>(Element<T>, std::integral_constant<int, kLanes>) {
             const auto run = [&]<int kKernel, int kStride>(std::integral_constant<int, kKernel>,
                                                            std::integral_constant<int, kStride>) {
               const Tiling t{axes};
               if constexpr (kKernel == 1 || kLanes == 1) {
                 const Plan p = plan(stream, dx, kLanes, t, dx.w);
                 launch(p.launch, gather_backward_kernel<T, kLanes>, operand<const T>(dy), operand<T>(dx),
                        pixel_rows(dx), p.tiling, w);
               } else {
                 const Plan p = plan(stream, dx, kLanes, t, ceil_div(dx.w + (axes.w.pad & 1), kTile));
                 launch(p.launch, stride2_backward_kernel<T, kLanes, kKernel>, operand<const T>(dy), operand<T>(dx),
                        pixel_rows(dx), p.tiling, w);
               }
             };
             dispatch_kernel(axes.w, slides, 1, run);
           });
}

}  // namespace convoy::CONVOY_DEVICE
