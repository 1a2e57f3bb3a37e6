// The weight gradient of plain convolution on the GPU.
// FLOPs: 2 N O OH OW (C/groups) kh kw. Bytes: x once per tap and output channel tile, dy once per tap and input channel
// tile, mostly from the caches. A 3x3 convolution of 256 to 256 channels at 8 x 64 x 64 is 39 GFLOP: 0.6 ms at the
// 67 TFLOP/s of an H100, of which this kernel may reach a half.
// Numerics: storage fp32, fp16 or bf16, sums in fp32 over the pixels of a part of the rows, over the parts in double.
// How rows are cut depends on the shape only and every sum has a fixed order, so results do not depend on the order of
// execution.
//
// A thread holds kChannels x kChannels weights of one tap in registers; its inner loop runs along a row of dy, without
// a branch for borders.
#include "kernels/cuda_conv.h"
#include "kernels/cuda_direct.h"
#include "kernels/cuda_parts.h"

namespace convoy::CONVOY_DEVICE {
namespace {

constexpr int kThreads = 128;
constexpr int64_t kWantedThreads = 132 * 1024;

struct DirectWeights {
  ConvAxes axes;
  int64_t rows, length, parts;    // of dy, of all images
  int groups, inputs, outputs;    // channels per group
  int input_tiles, output_tiles;  // per group
  int64_t x_padded, dy_padded;    // channels that may be read
  bool x_vectors, dy_vectors;

  __host__ __device__ int64_t tiles() const {
    return static_cast<int64_t>(groups) * axes.h.kernel * axes.w.kernel * input_tiles * output_tiles;
  }
  __host__ __device__ int64_t weights() const {
    return static_cast<int64_t>(groups) * outputs * inputs * axes.h.kernel * axes.w.kernel;
  }
};

DirectWeights plan_weights(const View& x, const View& dy, int64_t kernel_h, int64_t kernel_w, const Conv2dParams& p) {
  const int64_t inputs = x.c / p.groups, outputs = dy.c / p.groups;
  DirectWeights d{conv_axes(x, dy, kernel_h, kernel_w, p, false),
                  dy.n * dy.h,
                  0,
                  0,
                  static_cast<int>(p.groups),
                  static_cast<int>(inputs),
                  static_cast<int>(outputs),
                  static_cast<int>(ceil_div(inputs, kChannels)),
                  static_cast<int>(ceil_div(outputs, kChannels)),
                  x.blocks() * x.block,
                  dy.blocks() * dy.block,
                  x.layout == Layout::kNhwc && vectors_fit({&x}, 2),
                  vectors_fit({&dy}, 2)};
  const int64_t most = std::min(d.rows, kMostGridYZ);
  d.length = ceil_div(d.rows, std::clamp<int64_t>(ceil_div(kWantedThreads, d.tiles()), 1, most));
  d.parts = ceil_div(d.rows, d.length);
  return d;
}

// Where a thread finds kChannels channels from `first` on: by vectors where they lie so, else one by one; behind the
// last one `limit` it reads that again, for sums that nobody takes.
template <class T>
struct ChannelTile {
  bool vectors;
  int64_t step;
  int last;

  __device__ ChannelTile(bool fit, int64_t first, int64_t limit, int64_t padded, int64_t channel_step)
      : vectors(fit && first % kChannels == 0 && first + kChannels <= padded),
        step(channel_step),
        last(limit - first < kChannels ? static_cast<int>(limit - first) - 1 : kChannels - 1) {}
  __device__ void load(const T* p, float (&value)[kChannels]) const {
    if (vectors) return load_channel_tile(p, value);
#pragma unroll
    for (int j = 0; j < kChannels; ++j) value[j] = to_float(p[(j < last ? j : last) * step]);
  }
};

// Grid: tiles of weights, parts. partial[part*weights + weight].
template <class T>
__global__ void __launch_bounds__(kThreads)
    weights_kernel(ImageOperand<const T> x, Operand<const T> dy, DirectWeights d, float* __restrict__ partial) {
  const ConvAxis &h = d.axes.h, &w = d.axes.w;
  int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= d.tiles()) return;
  const int c = static_cast<int>(i % d.input_tiles) * kChannels;
  i /= d.input_tiles;
  const int o = static_cast<int>(i % d.output_tiles) * kChannels;
  i /= d.output_tiles;
  const int taps = h.kernel * w.kernel, tap = static_cast<int>(i % taps), group = static_cast<int>(i / taps);
  const int kernel_row = tap / w.kernel, shift = (tap - kernel_row * w.kernel) * w.dilation - w.pad;
  const int64_t input = static_cast<int64_t>(group) * d.inputs, output = static_cast<int64_t>(group) * d.outputs;
  const ChannelTile<T> x_tile(d.x_vectors, input + c, input + d.inputs, d.x_padded, x.channel);
  const ChannelTile<T> dy_tile(d.dy_vectors, output + o, output + d.outputs, d.dy_padded, 1);
  // The columns of dy whose source column is inside.
  const int low = shift < 0 ? (-shift + w.stride - 1) / w.stride : 0;
  const int room = w.source - shift, high = room <= 0 ? 0 : (room + w.stride - 1) / w.stride;
  const int end = high < w.target ? high : w.target;
  float sum[kChannels][kChannels] = {};
  const int64_t first = blockIdx.y * d.length, last = first + d.length < d.rows ? first + d.length : d.rows;
  for (int64_t row = first; row < last; ++row) {
    const int64_t n = row / h.target;
    const int source = h.position(static_cast<int>(row - n * h.target), kernel_row);
    if (source < 0) continue;
    const T* from = x.data + n * x.image + (input + c) * x.channel +
                    (static_cast<int64_t>(source) * w.source + low * w.stride + shift) * x.pixel;
    const T* gradient = dy.data + (row * w.target + low) * dy.pitch + output + o;
    for (int column = low; column < end; ++column) {
      float value[kChannels], g[kChannels];
      x_tile.load(from, value);
      dy_tile.load(gradient, g);
#pragma unroll
      for (int k = 0; k < kChannels; ++k)
#pragma unroll
        for (int j = 0; j < kChannels; ++j) sum[k][j] += g[k] * value[j];
      from += w.stride * x.pixel;
      gradient += dy.pitch;
    }
  }
  float* to = partial + blockIdx.y * d.weights();
#pragma unroll
  for (int k = 0; k < kChannels; ++k)
#pragma unroll
    for (int j = 0; j < kChannels; ++j)
      if (o + k < d.outputs && c + j < d.inputs) to[((output + o + k) * d.inputs + c + j) * taps + tap] = sum[k][j];
}

}  // namespace

size_t conv2d_direct_weights_cuda_workspace_bytes(const View& x, const View& dy, int64_t kernel_h, int64_t kernel_w,
                                                  const Conv2dParams& params) {
  const DirectWeights d = plan_weights(x, dy, kernel_h, kernel_w, params);
  return d.parts == 1 ? 0 : static_cast<size_t>(d.parts * d.weights()) * sizeof(float);
}

void conv2d_direct_backward_weights(cudaStream_t stream, const View& x, const View& dy, int64_t kernel_h,
                                    int64_t kernel_w, const Conv2dParams& params, float* dw, float* workspace) {
  constexpr const char* kName = "conv2d_direct_backward_weights";
  check_direct(kName, x, dy);
  const DirectWeights d = plan_weights(x, dy, kernel_h, kernel_w, params);
  float* partial = d.parts == 1 ? dw : workspace;
  const dim3 grid(static_cast<unsigned>(ceil_div(d.tiles(), kThreads)), static_cast<unsigned>(d.parts));
  dispatch(kName, dy.dtype, false, [&]<class T>(Element<T>, auto) {
    launch({grid, kThreads, 0, stream}, weights_kernel<T>, image_operand<const T>(x), operand<const T>(dy), d, partial);
  });
  if (d.parts > 1) add_parts(stream, workspace, d.parts, d.weights(), dw);
}

}  // namespace convoy::CONVOY_DEVICE
