// Plain convolution of dense and grouped kernels on the GPU, and its input gradient as a gather. The weight gradient is
// in conv2d_direct_weights.cu.
// FLOPs: 2 N O OH OW (C/groups) kh kw, on the fp32 units; groups narrower than 8 output channels compute 8. Bytes: the
// target once; the source and the weights are read again for every tile, mostly from the caches. A 3x3 convolution of
// 256 to 256 channels at 8 x 64 x 64 is 39 GFLOP: 0.6 ms at the 67 TFLOP/s of an H100, of which this kernel may reach
// a half; a library that uses the tensor cores is the way to speed.
// Numerics: storage fp32, fp16 or bf16, fp32 weights, arithmetic in fp32, summed by tap, then by channel. One thread
// computes an element, so results do not depend on the order of execution.
//
// Forward and backward are one kernel, which differs in the pixels that a tap connects (ConvAxis). A thread holds
// kTileWidth pixels of kChannels target channels in registers and reads source channels by vectors; the weights have
// been turned to [group][tap][source channel][target channel] before, so that it reads them by vectors, too. Nothing
// passes through shared memory: the threads of a warp share source pixels or weights, and meet them in the L1 cache.
#include "kernels/cuda_conv.h"
#include "kernels/cuda_direct.h"

namespace convoy::CONVOY_DEVICE {
namespace {

constexpr int kTileWidth = 4;  // target pixels of a thread
constexpr int kThreads = 128, kMostChannelThreads = 8;

struct Direct {
  ConvAxes axes;
  int groups, sources, targets;  // channels per group
  int tiles;                     // of kChannels target channels, per group
  int spread;                    // columns between the target pixels of a thread, which share a tap's residue
  int column_tiles;              // threads that cover a row

  int64_t packed_floats() const {
    return static_cast<int64_t>(groups) * axes.h.kernel * axes.w.kernel * sources * tiles * kChannels;
  }
};

__global__ void __launch_bounds__(kBlockThreads)
    pack_kernel(const float* __restrict__ w, Direct d, int64_t count, float* __restrict__ packed) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const int taps = d.axes.h.kernel * d.axes.w.kernel, width = d.tiles * kChannels;
  const int64_t row = i / width, group_tap = row / d.sources, g = group_tap / taps;
  const int target = static_cast<int>(i - row * width), source = static_cast<int>(row - group_tap * d.sources);
  const int tap = static_cast<int>(group_tap - g * taps);
  // The weights' first index is that of y's channels.
  const int64_t from =
      d.axes.h.backward ? (g * d.sources + source) * d.targets + target : (g * d.targets + target) * d.sources + source;
  packed[i] = target < d.targets ? w[from * taps + tap] : 0.f;
}

// Adds one tap: source channels first, first + 1, ... of the group at p[i] (null: outside of the source).
template <class T, bool kVectors>
__device__ void add_tap(const T* const (&p)[kTileWidth], int64_t channel_step, int sources,
                        const float* __restrict__ weights, int64_t width, float (&sum)[kTileWidth][kChannels]) {
  int s = 0;
  if constexpr (kVectors) {
    for (; s + kChannels <= sources; s += kChannels) {
      float value[kTileWidth][kChannels] = {};
#pragma unroll
      for (int i = 0; i < kTileWidth; ++i)
        if (p[i]) load_channel_tile(p[i] + s, value[i]);
#pragma unroll
      for (int k = 0; k < kChannels; ++k) {
        float w[kChannels];
        load_channel_tile(weights + (s + k) * width, w);
#pragma unroll
        for (int i = 0; i < kTileWidth; ++i)
#pragma unroll
          for (int j = 0; j < kChannels; ++j) sum[i][j] += value[i][k] * w[j];
      }
    }
  }
  for (; s < sources; ++s) {
    float w[kChannels];
    load_channel_tile(weights + s * width, w);
#pragma unroll
    for (int i = 0; i < kTileWidth; ++i) {
      const float value = p[i] ? to_float(p[i][s * channel_step]) : 0.f;
#pragma unroll
      for (int j = 0; j < kChannels; ++j) sum[i][j] += value * w[j];
    }
  }
}

// Grid: tiles of pixels, tiles of target channels, images. `vectors`: y can be stored by 16 bytes.
template <class T, bool kVectors>
__global__ void __launch_bounds__(kThreads, 3)
    direct_kernel(ImageOperand<const T> x, Operand<T> y, Direct d, int64_t images, int64_t channels, int64_t padded,
                  bool vectors, const float* __restrict__ packed, const float* __restrict__ bias) {
  const ConvAxis &h = d.axes.h, &w = d.axes.w;
  const int tile = blockIdx.y * blockDim.x + threadIdx.x, pixels = blockIdx.x * blockDim.y + threadIdx.y;
  const int row = pixels / d.column_tiles, q = pixels - row * d.column_tiles;
  const int column = q / d.spread * d.spread * kTileWidth + q % d.spread;
  if (tile >= d.groups * d.tiles || row >= h.target || column >= w.target) return;
  const int group = tile / d.tiles, first = (tile - group * d.tiles) * kChannels;
  const int count = d.targets - first < kChannels ? d.targets - first : kChannels;
  const int64_t channel = static_cast<int64_t>(group) * d.targets + first, width = d.tiles * kChannels;
  const float* group_weights = packed + static_cast<int64_t>(group) * h.kernel * w.kernel * d.sources * width + first;
  float offset[kChannels] = {};
  if (bias) load_channels<kChannels>(bias, channel + count, channel, 0.f, offset);
  for (int64_t n = blockIdx.z; n < images; n += gridDim.z) {
    const T* image = x.data + n * x.image + static_cast<int64_t>(group) * d.sources * x.channel;
    float sum[kTileWidth][kChannels];
#pragma unroll
    for (int i = 0; i < kTileWidth; ++i)
#pragma unroll
      for (int j = 0; j < kChannels; ++j) sum[i][j] = offset[j];
    for (int k = 0; k < h.kernel; ++k) {
      const int source = h.position(row, k);
      if (source < 0) continue;
      for (int l = 0; l < w.kernel; ++l) {
        int at = column * w.stride - w.pad + l * w.dilation, step = w.stride;
        if (w.backward) {
          const int p = column + w.pad - l * w.dilation;
          if (p % w.stride != 0) continue;
          at = p / w.stride, step = 1;
        }
        const T* p[kTileWidth];
        bool any = false;
#pragma unroll
        for (int i = 0; i < kTileWidth; ++i) {
          const int from = at + i * step;
          const bool inside = static_cast<unsigned>(from) < static_cast<unsigned>(w.source);
          p[i] = inside ? image + (static_cast<int64_t>(source) * w.source + from) * x.pixel : nullptr;
          any |= inside;
        }
        if (any)
          add_tap<T, kVectors>(p, x.channel, d.sources,
                               group_weights + static_cast<int64_t>(k * w.kernel + l) * d.sources * width, width, sum);
      }
    }
#pragma unroll
    for (int i = 0; i < kTileWidth; ++i) {
      if (column + i * d.spread >= w.target) continue;
      T* to = y.data + ((n * h.target + row) * w.target + column + i * d.spread) * y.pitch;
      if (vectors && count == kChannels && channel % kChannels == 0) {
        store_channel_tile(to + channel, sum[i]);
      } else {
#pragma unroll
        for (int j = 0; j < kChannels; ++j)
          if (j < count) to[channel + j] = from_float<T>(sum[i][j]);
      }
      if (channel + count == channels)
        for (int64_t c = channels; c < padded; ++c) to[c] = from_float<T>(0.f);
    }
  }
}

template <class T>
void run_direct(cudaStream_t stream, const View& source, const View& target, const Direct& d, const float* bias,
                const float* packed) {
  const int tiles = d.groups * d.tiles;
  int x = 1;
  while (x < tiles && x < kMostChannelThreads) x *= 2;
  const int y = kThreads / x;
  const dim3 grid(static_cast<unsigned>(ceil_div(static_cast<int64_t>(d.column_tiles) * d.axes.h.target, y)),
                  static_cast<unsigned>(ceil_div(tiles, x)), static_cast<unsigned>(std::min(target.n, kMostGridYZ)));
  const Launch l{grid, dim3(static_cast<unsigned>(x), static_cast<unsigned>(y)), 0, stream};
  const bool vectors =
      source.layout == Layout::kNhwc && vectors_fit({&source}, 2) && (d.groups == 1 || d.sources % kChannels == 0);
  const auto kernel = vectors ? direct_kernel<T, true> : direct_kernel<T, false>;
  launch(l, kernel, image_operand<const T>(source), operand<T>(target), d, target.n, target.c,
         target.blocks() * target.block, vectors_fit({&target}, 2), packed, bias);
}

void convolve(cudaStream_t stream, const char* name, const View& source, const View& target, int64_t kernel_h,
              int64_t kernel_w, const Conv2dParams& p, bool backward, const float* w, const float* bias,
              float* workspace) {
  check_direct(name, source, target);
  const int64_t targets = target.c / p.groups;
  Direct d{conv_axes(source, target, kernel_h, kernel_w, p, backward),
           static_cast<int>(p.groups),
           static_cast<int>(source.c / p.groups),
           static_cast<int>(targets),
           static_cast<int>(ceil_div(targets, kChannels)),
           backward ? static_cast<int>(p.stride_w) : 1,
           0};
  d.column_tiles = static_cast<int>(ceil_div(target.w, kTileWidth * d.spread)) * d.spread;
  const int64_t count = d.packed_floats();
  launch({static_cast<unsigned>(ceil_div(count, kBlockThreads)), kBlockThreads, 0, stream}, pack_kernel, w, d, count,
         workspace);
  dispatch(name, target.dtype, false,
           [&]<class T>(Element<T>, auto) { run_direct<T>(stream, source, target, d, bias, workspace); });
}

}  // namespace

size_t conv2d_direct_cuda_workspace_bytes(const View& source, const View& target, int64_t kernel_h, int64_t kernel_w,
                                          int64_t groups) {
  const int64_t width = ceil_div(target.c / groups, kChannels) * kChannels;
  return static_cast<size_t>(groups * kernel_h * kernel_w * (source.c / groups) * width) * sizeof(float);
}

void conv2d_direct(cudaStream_t stream, const View& x, const float* w, int64_t kernel_h, int64_t kernel_w,
                   const float* bias, const Conv2dParams& params, const View& y, float* workspace) {
  convolve(stream, "conv2d_direct", x, y, kernel_h, kernel_w, params, false, w, bias, workspace);
}

void conv2d_direct_backward_data(cudaStream_t stream, const View& dy, const float* w, int64_t kernel_h,
                                 int64_t kernel_w, const Conv2dParams& params, const View& dx, float* workspace) {
  convolve(stream, "conv2d_direct_backward_data", dy, dx, kernel_h, kernel_w, params, true, w, nullptr, workspace);
}

}  // namespace convoy::CONVOY_DEVICE
