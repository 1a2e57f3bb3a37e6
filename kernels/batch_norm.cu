// Batch normalisation on nhwc images.
// Bytes: stats reads x once; apply reads x (and the residual) and writes y; backward reduce reads dy, x (and y);
// backward apply reads the same and writes dx (and d_residual). FLOPs: 4 to 10 per element. All are bound by memory: on
// an H100 (3.35 TB/s) the statistics of a bf16 tensor of 100 M elements should take 0.06 ms. Numerics: storage fp32,
// fp16 or bf16, arithmetic in fp32. Statistics by Welford's update per thread (Welford 1962), merged by Chan, Golub,
// LeVeque 1979: over a block in fp32, over blocks in double. Normalisation subtracts the mean first, so a large mean
// costs no digits. Deterministic: two launches instead of atomics; how rows are cut depends on the shape only, and
// every merge has a fixed order.
#include "kernels/batch_norm.h"

#include "kernels/cuda_common.h"
#include "kernels/cuda_moments.h"

namespace convoy::CONVOY_DEVICE {
namespace {

constexpr int kTileThreads = 32;  // most threads of a block along the channels
constexpr int kMostParts = 256;   // of the rows
constexpr int kMergeChannels = 32, kMergeLanes = 8;

// The rows are cut into `parts` of `length` rows; the last one may be shorter.
struct Parts {
  int64_t rows, length, parts;

  __host__ __device__ int64_t size(int64_t part) const {
    const int64_t left = rows - part * length;
    return left < length ? left : length;
  }
};

// At most as many parts as bn_workspace counts chunks.
Parts parts_of(int64_t rows) {
  const int64_t length = std::max(kBnChunk, ceil_div(rows, kMostParts));
  return {rows, length, ceil_div(rows, length)};
}

// First stage: grid (parts, tiles of channels). partial[(part*2 + {0 mean, 1 m2})*channels + c].
template <class T, int kLanes>
__global__ void __launch_bounds__(kBlockThreads)
    stats_kernel(Operand<const T> x, Rows shape, Parts parts, float* __restrict__ partial) {
  CONVOY_SHARED(float[2][kBlockThreads * kLanes], shared);
  const int64_t tile = static_cast<int64_t>(blockIdx.y) * blockDim.x * kLanes, c = tile + threadIdx.x * kLanes;
  const int64_t part = blockIdx.x, first = part * parts.length, size = parts.size(part);
  float mean[kLanes] = {}, m2[kLanes] = {};
  if (c < shape.channels) {
    float count = 0;
    for (int64_t r = threadIdx.y; r < size; r += blockDim.y) {
      float value[kLanes];
      load_lanes<kLanes>(x, shape, first + r, c, value);
      count += 1.f;
      const float share = 1.f / count;
#pragma unroll
      for (int j = 0; j < kLanes; ++j) {
        const float delta = value[j] - mean[j];
        mean[j] += delta * share;
        m2[j] += delta * (value[j] - mean[j]);
      }
    }
  }
  const int width = blockDim.x * kLanes, column = threadIdx.x * kLanes;
#pragma unroll
  for (int j = 0; j < kLanes; ++j) {
    shared[0][threadIdx.y * width + column + j] = mean[j];
    shared[1][threadIdx.y * width + column + j] = m2[j];
  }
  __syncthreads();
  const int owned = threadIdx.y * blockDim.x + threadIdx.x;
  if (owned >= width || tile + owned >= shape.channels) return;
  Moments<float> total{0.f, 0.f, 0.f};
  for (int y = 0; y < static_cast<int>(blockDim.y); ++y) {
    const int64_t rows = size > y ? (size - y + blockDim.y - 1) / blockDim.y : 0;
    total.merge({shared[0][y * width + owned], shared[1][y * width + owned], static_cast<float>(rows)});
  }
  float* out = partial + part * 2 * shape.channels + tile + owned;
  out[0] = total.mean;
  out[shape.channels] = total.m2;
}

// Second stage: a block merges the parts of kMergeChannels channels.
__global__ void __launch_bounds__(kMergeChannels* kMergeLanes)
    stats_merge_kernel(const float* __restrict__ partial, Parts parts, int64_t channels, float* __restrict__ mean,
                       float* __restrict__ var) {
  CONVOY_SHARED(Moments<double>[kMergeLanes][kMergeChannels], shared);
  const int64_t c = static_cast<int64_t>(blockIdx.x) * kMergeChannels + threadIdx.x;
  Moments<double> total{0, 0, 0};
  if (c < channels) {
    for (int64_t part = threadIdx.y; part < parts.parts; part += kMergeLanes) {
      const float* in = partial + part * 2 * channels + c;
      total.merge({in[0], in[channels], static_cast<double>(parts.size(part))});
    }
  }
  shared[threadIdx.y][threadIdx.x] = total;
  __syncthreads();
  if (threadIdx.y != 0 || c >= channels) return;
  for (int lane = 1; lane < kMergeLanes; ++lane) total.merge(shared[lane][threadIdx.x]);
  mean[c] = static_cast<float>(total.mean);
  var[c] = static_cast<float>(total.m2 / total.count);
}

__device__ float inverse_deviation(float var, float eps) {
  return 1.f / sqrtf(var + eps);
}

template <class T, int kLanes>
__global__ void __launch_bounds__(kBlockThreads)
    apply_kernel(Operand<const T> x, Operand<const T> residual, Operand<T> y, Rows shape,
                 const float* __restrict__ mean, const float* __restrict__ var, const float* __restrict__ gamma,
                 const float* __restrict__ beta, float eps, Activation act) {
  const int64_t column_step = static_cast<int64_t>(gridDim.y) * blockDim.x * kLanes;
  const int64_t row_step = static_cast<int64_t>(gridDim.x) * blockDim.y;
  for (int64_t c = (static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x) * kLanes; c < shape.padded;
       c += column_step) {
    float m[kLanes], v[kLanes], scale[kLanes], shift[kLanes];
    load_channels<kLanes>(mean, shape.channels, c, 0.f, m);
    load_channels<kLanes>(var, shape.channels, c, 1.f, v);
    load_channels<kLanes>(gamma, shape.channels, c, 0.f, scale);
    load_channels<kLanes>(beta, shape.channels, c, 0.f, shift);
#pragma unroll
    for (int j = 0; j < kLanes; ++j) scale[j] *= inverse_deviation(v[j], eps);
    for (int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y; row < shape.rows; row += row_step) {
      float value[kLanes], add[kLanes] = {};
      load_lanes<kLanes>(x, shape, row, c, value);
      if (residual.data) load_lanes<kLanes>(residual, shape, row, c, add);
#pragma unroll
      for (int j = 0; j < kLanes; ++j) value[j] = activate((value[j] - m[j]) * scale[j] + shift[j] + add[j], act);
      store_lanes<kLanes>(y, shape, row, c, value);
    }
  }
}

__global__ void update_running_kernel(const float* mean, const float* var, double unbiased, double momentum,
                                      float* running_mean, float* running_var, int64_t* num_batches_tracked,
                                      int64_t channels) {
  const int64_t c = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (c == 0) *num_batches_tracked += 1;
  if (c >= channels) return;
  running_mean[c] = static_cast<float>((1 - momentum) * running_mean[c] + momentum * mean[c]);
  running_var[c] = static_cast<float>((1 - momentum) * running_var[c] + momentum * unbiased * var[c]);
}

// First stage of the backward sums: partial[(part*2 + {0 sum of g, 1 sum of g * (x - mean)})*channels + c].
template <class T, int kLanes>
__global__ void __launch_bounds__(kBlockThreads)
    backward_sums_kernel(Operand<const T> dy, Operand<const T> y, Operand<const T> x, Rows shape, Parts parts,
                         const float* __restrict__ mean, Activation act, float* __restrict__ partial) {
  CONVOY_SHARED(float[2][kBlockThreads * kLanes], shared);
  const int64_t tile = static_cast<int64_t>(blockIdx.y) * blockDim.x * kLanes, c = tile + threadIdx.x * kLanes;
  const int64_t part = blockIdx.x, first = part * parts.length, size = parts.size(part);
  float sum[kLanes] = {}, product[kLanes] = {};
  if (c < shape.channels) {
    float m[kLanes];
    load_channels<kLanes>(mean, shape.channels, c, 0.f, m);
    for (int64_t r = threadIdx.y; r < size; r += blockDim.y) {
      float g[kLanes], in[kLanes], out[kLanes] = {};
      load_lanes<kLanes>(dy, shape, first + r, c, g);
      load_lanes<kLanes>(x, shape, first + r, c, in);
      if (y.data) load_lanes<kLanes>(y, shape, first + r, c, out);
#pragma unroll
      for (int j = 0; j < kLanes; ++j) {
        const float masked = activate_backward(g[j], out[j], act);
        sum[j] += masked;
        product[j] += masked * (in[j] - m[j]);
      }
    }
  }
  const int width = blockDim.x * kLanes, column = threadIdx.x * kLanes;
#pragma unroll
  for (int j = 0; j < kLanes; ++j) {
    shared[0][threadIdx.y * width + column + j] = sum[j];
    shared[1][threadIdx.y * width + column + j] = product[j];
  }
  __syncthreads();
  const int owned = threadIdx.y * blockDim.x + threadIdx.x;
  if (owned >= width || tile + owned >= shape.channels) return;
  float total = 0, total_product = 0;
  for (int k = 0; k < static_cast<int>(blockDim.y); ++k) {
    total += shared[0][k * width + owned];
    total_product += shared[1][k * width + owned];
  }
  float* out = partial + part * 2 * shape.channels + tile + owned;
  out[0] = total;
  out[shape.channels] = total_product;
}

__global__ void __launch_bounds__(kMergeChannels* kMergeLanes)
    backward_merge_kernel(const float* __restrict__ partial, int64_t parts, int64_t channels,
                          const float* __restrict__ var, float eps, float* __restrict__ sum_dy,
                          float* __restrict__ sum_dy_xhat) {
  CONVOY_SHARED(double[2][kMergeLanes][kMergeChannels], shared);
  const int64_t c = static_cast<int64_t>(blockIdx.x) * kMergeChannels + threadIdx.x;
  double sum = 0, product = 0;
  if (c < channels) {
    for (int64_t part = threadIdx.y; part < parts; part += kMergeLanes) {
      sum += partial[part * 2 * channels + c];
      product += partial[(part * 2 + 1) * channels + c];
    }
  }
  shared[0][threadIdx.y][threadIdx.x] = sum;
  shared[1][threadIdx.y][threadIdx.x] = product;
  __syncthreads();
  if (threadIdx.y != 0 || c >= channels) return;
  for (int lane = 1; lane < kMergeLanes; ++lane) {
    sum += shared[0][lane][threadIdx.x];
    product += shared[1][lane][threadIdx.x];
  }
  sum_dy[c] = static_cast<float>(sum);
  sum_dy_xhat[c] = static_cast<float>(product * inverse_deviation(var[c], eps));
}

// dx = scale * g + slope * (x - mean) + offset; with frozen statistics slope = offset = 0 and x is not read.
template <class T, int kLanes>
__global__ void __launch_bounds__(kBlockThreads)
    backward_apply_kernel(Operand<const T> dy, Operand<const T> y, Operand<const T> x, Operand<T> dx,
                          Operand<T> d_residual, Rows shape, const float* __restrict__ mean,
                          const float* __restrict__ var, const float* __restrict__ gamma, float eps, Activation act,
                          const float* __restrict__ sum_dy, const float* __restrict__ sum_dy_xhat, float per_count) {
  const int64_t column_step = static_cast<int64_t>(gridDim.y) * blockDim.x * kLanes;
  const int64_t row_step = static_cast<int64_t>(gridDim.x) * blockDim.y;
  for (int64_t c = (static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x) * kLanes; c < shape.padded;
       c += column_step) {
    float m[kLanes] = {}, v[kLanes], scale[kLanes], slope[kLanes] = {}, offset[kLanes] = {};
    load_channels<kLanes>(var, shape.channels, c, 1.f, v);
    load_channels<kLanes>(gamma, shape.channels, c, 0.f, scale);
    if (sum_dy) {
      load_channels<kLanes>(mean, shape.channels, c, 0.f, m);
      load_channels<kLanes>(sum_dy_xhat, shape.channels, c, 0.f, slope);
      load_channels<kLanes>(sum_dy, shape.channels, c, 0.f, offset);
    }
#pragma unroll
    for (int j = 0; j < kLanes; ++j) {
      const float deviation = inverse_deviation(v[j], eps);
      scale[j] *= deviation;
      slope[j] *= -scale[j] * per_count * deviation;
      offset[j] *= -scale[j] * per_count;
    }
    for (int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y; row < shape.rows; row += row_step) {
      float g[kLanes], in[kLanes] = {}, out[kLanes] = {};
      load_lanes<kLanes>(dy, shape, row, c, g);
      if (y.data) load_lanes<kLanes>(y, shape, row, c, out);
      if (sum_dy) load_lanes<kLanes>(x, shape, row, c, in);
#pragma unroll
      for (int j = 0; j < kLanes; ++j) {
        g[j] = activate_backward(g[j], out[j], act);
        in[j] = g[j] * scale[j] + ((in[j] - m[j]) * slope[j] + offset[j]);
      }
      if (d_residual.data) store_lanes<kLanes>(d_residual, shape, row, c, g);
      store_lanes<kLanes>(dx, shape, row, c, in);
    }
  }
}

template <class T>
Operand<T> optional_operand(const View* v) {
  return v ? operand<T>(*v) : Operand<T>{nullptr, 0};
}

unsigned merge_blocks(int64_t channels) {
  return static_cast<unsigned>(ceil_div(channels, kMergeChannels));
}

// One block per part of the rows and per tile of channels.
Geometry tile_geometry(const Rows& shape, const Parts& parts, int lanes) {
  Geometry g = geometry(shape, lanes, kTileThreads, 1, 65535);
  g.grid.x = static_cast<unsigned>(parts.parts);
  return g;
}

// The mask comes from y unless there is none to apply.
const View* mask_of(const char* kernel, const View* y, Activation act) {
  if (act == Activation::kNone) return nullptr;
  if (!y)
    throw std::invalid_argument(std::string(CONVOY_DEVICE_NAME "::") + kernel +
                                ": the activation's output y is missing");
  return y;
}

}  // namespace

void bn_stats(cudaStream_t stream, const View& x, float* mean, float* var, float* workspace) {
  check_operands("bn_stats", {&x}, true);
  const Rows shape = pixel_rows(x);
  const Parts parts = parts_of(shape.rows);
  const bool vectors = vectors_fit({&x}, shape.rows);
  dispatch("bn_stats", x.dtype, vectors, [&]<class T, int kLanes>(Element<T>, std::integral_constant<int, kLanes>) {
    const Geometry g = tile_geometry(shape, parts, kLanes);
    launch({g.grid, g.block, 0, stream}, stats_kernel<T, kLanes>, operand<const T>(x), shape, parts, workspace);
  });
  launch({merge_blocks(x.c), dim3(kMergeChannels, kMergeLanes), 0, stream}, stats_merge_kernel, workspace, parts, x.c,
         mean, var);
}

void bn_apply(cudaStream_t stream, const View& x, const View* residual, const float* mean, const float* var,
              const float* gamma, const float* beta, float eps, Activation act, const View& y) {
  check_operands("bn_apply", {&x, residual, &y}, true);
  const Rows shape = pixel_rows(x);
  const bool vectors = vectors_fit({&x, residual, &y}, shape.rows);
  dispatch("bn_apply", x.dtype, vectors, [&]<class T, int kLanes>(Element<T>, std::integral_constant<int, kLanes>) {
    const Geometry g = geometry(shape, kLanes, kTileThreads, kMostRowBlocks, kMostColumnBlocks);
    launch({g.grid, g.block, 0, stream}, apply_kernel<T, kLanes>, operand<const T>(x),
           optional_operand<const T>(residual), operand<T>(y), shape, mean, var, gamma, beta, eps, act);
  });
}

void bn_update_running(cudaStream_t stream, const float* mean, const float* var, int64_t count, float momentum,
                       float* running_mean, float* running_var, int64_t* num_batches_tracked, int64_t channels) {
  const double unbiased = static_cast<double>(count) / static_cast<double>(count - 1);
  launch({static_cast<unsigned>(ceil_div(channels, kBlockThreads)), kBlockThreads, 0, stream}, update_running_kernel,
         mean, var, unbiased, static_cast<double>(momentum), running_mean, running_var, num_batches_tracked, channels);
}

void bn_backward_reduce(cudaStream_t stream, const View& dy, const View* y, const View& x, const float* mean,
                        const float* var, float eps, Activation act, float* sum_dy, float* sum_dy_xhat,
                        float* workspace) {
  y = mask_of("bn_backward_reduce", y, act);
  check_operands("bn_backward_reduce", {&dy, y, &x}, true);
  const Rows shape = pixel_rows(x);
  const Parts parts = parts_of(shape.rows);
  const bool vectors = vectors_fit({&dy, y, &x}, shape.rows);
  dispatch("bn_backward_reduce", x.dtype, vectors,
           [&]<class T, int kLanes>(Element<T>, std::integral_constant<int, kLanes>) {
             const Geometry g = tile_geometry(shape, parts, kLanes);
             launch({g.grid, g.block, 0, stream}, backward_sums_kernel<T, kLanes>, operand<const T>(dy),
                    optional_operand<const T>(y), operand<const T>(x), shape, parts, mean, act, workspace);
           });
  launch({merge_blocks(x.c), dim3(kMergeChannels, kMergeLanes), 0, stream}, backward_merge_kernel, workspace,
         parts.parts, x.c, var, eps, sum_dy, sum_dy_xhat);
}

void bn_backward_apply(cudaStream_t stream, const View& dy, const View* y, const View& x, const float* mean,
                       const float* var, const float* gamma, float eps, Activation act, const float* sum_dy,
                       const float* sum_dy_xhat, int64_t count, const View& dx, const View* d_residual) {
  y = mask_of("bn_backward_apply", y, act);
  const View* input = sum_dy ? &x : nullptr;
  check_operands("bn_backward_apply", {&dy, y, input, &dx, d_residual}, true);
  const Rows shape = pixel_rows(dy);
  const bool vectors = vectors_fit({&dy, y, input, &dx, d_residual}, shape.rows);
  const float per_count = 1.f / static_cast<float>(count);
  dispatch("bn_backward_apply", dy.dtype, vectors,
           [&]<class T, int kLanes>(Element<T>, std::integral_constant<int, kLanes>) {
             const Geometry g = geometry(shape, kLanes, kTileThreads, kMostRowBlocks, kMostColumnBlocks);
             launch({g.grid, g.block, 0, stream}, backward_apply_kernel<T, kLanes>, operand<const T>(dy),
                    optional_operand<const T>(y), optional_operand<const T>(input), operand<T>(dx),
                    optional_operand<T>(d_residual), shape, mean, var, gamma, eps, act, sum_dy, sum_dy_xhat, per_count);
           });
}

}  // namespace convoy::CONVOY_DEVICE
