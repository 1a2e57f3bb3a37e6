// Group normalisation of nhwc images. L2 normalisation is in l2_norm.cu.
// Bytes: forward reads x twice (moments, apply) and writes y; backward reads dy and x twice and writes dx. FLOPs: about
// 10 per element. Bound by memory: a bf16 tensor of 100 M elements should take 0.18 ms forward and 0.30 ms backward on
// an H100 (3.35 TB/s).
// Numerics: storage fp32, fp16 or bf16, arithmetic in fp32. Moments by Welford's update per thread (Welford 1962),
// merged by Chan, Golub, LeVeque 1979: over a block in fp32, over blocks and the channels of a group in double.
// Deterministic: pixels are cut by shape only, and every merge has a fixed order.
#include "kernels/group_norm.h"

#include "kernels/cuda_moments.h"
#include "kernels/cuda_pixel_sums.h"
#include "kernels/cuda_reduce.h"

namespace convoy::CONVOY_DEVICE {
namespace {

// Grid (parts, tiles of channels, images). partial[((n*parts + part)*2 + {0 mean, 1 m2})*channels + c].
template <class T, int kLanes>
__global__ void __launch_bounds__(kBlockThreads)
    moments_kernel(Operand<const T> x, Rows shape, PixelParts parts, int64_t images, float* __restrict__ partial) {
  CONVOY_SHARED(float[2][kBlockThreads * kLanes], shared);
  const int64_t tile = static_cast<int64_t>(blockIdx.y) * blockDim.x * kLanes, c = tile + threadIdx.x * kLanes;
  const int64_t part = blockIdx.x, first = part * parts.length;
  const int64_t size = parts.pixels - first < parts.length ? parts.pixels - first : parts.length;
  const int width = blockDim.x * kLanes, column = threadIdx.x * kLanes;
  for (int64_t n = blockIdx.z; n < images; n += gridDim.z) {
    float mean[kLanes] = {}, m2[kLanes] = {};
    if (c < shape.channels) {
      float count = 0;
      for (int64_t p = threadIdx.y; p < size; p += blockDim.y) {
        float value[kLanes];
        load_lanes<kLanes>(x, shape, n * parts.pixels + first + p, c, value);
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
    __syncthreads();  // the moments of the image before have been read
#pragma unroll
    for (int j = 0; j < kLanes; ++j) {
      shared[0][threadIdx.y * width + column + j] = mean[j];
      shared[1][threadIdx.y * width + column + j] = m2[j];
    }
    __syncthreads();
    const int owned = threadIdx.y * blockDim.x + threadIdx.x;
    if (owned >= width || tile + owned >= shape.channels) continue;
    Moments<float> total{0.f, 0.f, 0.f};
    for (int y = 0; y < static_cast<int>(blockDim.y); ++y) {
      const int64_t pixels = size > y ? (size - y + blockDim.y - 1) / blockDim.y : 0;
      total.merge({shared[0][y * width + owned], shared[1][y * width + owned], static_cast<float>(pixels)});
    }
    float* out = partial + (n * parts.parts + part) * 2 * shape.channels + tile + owned;
    out[0] = total.mean;
    out[shape.channels] = total.m2;
  }
}

// One block per image and group.
__global__ void __launch_bounds__(kBlockThreads)
    merge_groups_kernel(const float* __restrict__ partial, PixelParts parts, int64_t channels, int64_t groups,
                        float eps, float* __restrict__ mean, float* __restrict__ rstd) {
  CONVOY_SHARED(Moments<double>[kBlockThreads], shared);
  const int64_t item = blockIdx.x, n = item / groups, size = channels / groups, first = item % groups * size;
  Moments<double> total{0, 0, 0};
  for (int64_t i = threadIdx.x; i < parts.parts * size; i += kBlockThreads) {
    const int64_t part = i / size, c = first + i - part * size;
    const int64_t left = parts.pixels - part * parts.length;
    const float* in = partial + (n * parts.parts + part) * 2 * channels + c;
    total.merge({in[0], in[channels], static_cast<double>(left < parts.length ? left : parts.length)});
  }
  shared[threadIdx.x] = total;
  for (int half = kBlockThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (static_cast<int>(threadIdx.x) < half) {
      total.merge(shared[threadIdx.x + half]);
      shared[threadIdx.x] = total;
    }
  }
  if (threadIdx.x != 0) return;
  mean[item] = static_cast<float>(total.mean);
  rstd[item] = static_cast<float>(1 / sqrt(total.m2 / total.count + static_cast<double>(eps)));
}

// values[n*groups + group] for the channels [c, c + kLanes).
template <int kLanes>
__device__ void load_groups(const float* __restrict__ values, int64_t groups, int64_t channels, int64_t n, int64_t c,
                            float (&value)[kLanes]) {
  const auto size = static_cast<unsigned>(channels / groups);
  unsigned group = static_cast<unsigned>(c) / size, within = static_cast<unsigned>(c) - group * size;
#pragma unroll
  for (int j = 0; j < kLanes; ++j) {
    value[j] = c + j < channels ? values[n * groups + group] : 0.f;
    if (++within == size) within = 0, ++group;
  }
}

// Grid (pixels, tiles of channels, images); `shape` is one image's.
template <class T, int kLanes>
__global__ void __launch_bounds__(kBlockThreads)
    apply_kernel(Operand<const T> x, Operand<T> y, Rows shape, int64_t images, int64_t groups,
                 const float* __restrict__ mean, const float* __restrict__ rstd, const float* __restrict__ weight,
                 const float* __restrict__ bias) {
  const int64_t c = (static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x) * kLanes;
  if (c >= shape.padded) return;
  const int64_t row_step = static_cast<int64_t>(gridDim.x) * blockDim.y;
  for (int64_t n = blockIdx.z; n < images; n += gridDim.z) {
    float m[kLanes], factor[kLanes], scale[kLanes], shift[kLanes];
    load_groups<kLanes>(mean, groups, shape.channels, n, c, m);
    load_groups<kLanes>(rstd, groups, shape.channels, n, c, factor);
    load_channels<kLanes>(weight, shape.channels, c, 0.f, scale);
    load_channels<kLanes>(bias, shape.channels, c, 0.f, shift);
#pragma unroll
    for (int j = 0; j < kLanes; ++j) factor[j] *= scale[j];
    for (int64_t p = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y; p < shape.rows; p += row_step) {
      float value[kLanes];
      load_lanes<kLanes>(x, shape, n * shape.rows + p, c, value);
#pragma unroll
      for (int j = 0; j < kLanes; ++j) value[j] = (value[j] - m[j]) * factor[j] + shift[j];
      store_lanes<kLanes>(y, shape, n * shape.rows + p, c, value);
    }
  }
}

// Sums of dy and of dy * (x - mean) per image and channel.
template <class T, int kLanes>
struct BackwardAt {
  Operand<const T> dy, x;
  float mean[kLanes];

  __device__ void add(const Rows& shape, int64_t row, int64_t c, float (&sums)[2][kLanes]) const {
    float g[kLanes], in[kLanes];
    load_lanes<kLanes>(dy, shape, row, c, g);
    load_lanes<kLanes>(x, shape, row, c, in);
#pragma unroll
    for (int j = 0; j < kLanes; ++j) {
      sums[0][j] += g[j];
      sums[1][j] += g[j] * (in[j] - mean[j]);
    }
  }
};
template <class T>
struct BackwardTerms {
  Operand<const T> dy, x;
  const float* mean;
  int64_t groups;

  template <int kLanes>
  __device__ BackwardAt<T, kLanes> at(const Rows& shape, int64_t n, int64_t c) const {
    BackwardAt<T, kLanes> terms{dy, x, {}};
    load_groups<kLanes>(mean, groups, shape.channels, n, c, terms.mean);
    return terms;
  }
};

// sums[n*channels + c] of dy, and behind those of all images the ones of dy * xhat.
struct StoreSums {
  double* sums;
  const float* rstd;
  int64_t images, channels, groups;
  __device__ void operator()(int64_t n, int64_t c, const double (&totals)[2]) const {
    sums[n * channels + c] = totals[0];
    sums[(images + n) * channels + c] = totals[1] * rstd[n * groups + c / (channels / groups)];
  }
};

// One block per image and group: means over the group of weight * dy and of weight * dy * xhat.
__global__ void __launch_bounds__(kBlockThreads)
    group_means_kernel(const double* __restrict__ sums, const float* __restrict__ weight, int64_t images,
                       int64_t channels, int64_t groups, int64_t pixels, float* __restrict__ part,
                       float* __restrict__ part_xhat) {
  const int64_t item = blockIdx.x, n = item / groups, size = channels / groups, first = item % groups * size;
  double total = 0, total_xhat = 0;
  for (int64_t c = first + threadIdx.x; c < first + size; c += kBlockThreads) {
    total += sums[n * channels + c] * weight[c];
    total_xhat += sums[(images + n) * channels + c] * weight[c];
  }
  total = block_sum(total);
  total_xhat = block_sum(total_xhat);
  if (threadIdx.x != 0) return;
  const auto count = static_cast<double>(size * pixels);
  part[item] = static_cast<float>(total / count);
  part_xhat[item] = static_cast<float>(total_xhat / count);
}

__global__ void __launch_bounds__(kBlockThreads)
    parameter_gradients_kernel(const double* __restrict__ sums, int64_t images, int64_t channels,
                               float* __restrict__ dweight, float* __restrict__ dbias) {
  const int64_t c = static_cast<int64_t>(blockIdx.x) * kBlockThreads + threadIdx.x;
  if (c >= channels) return;
  double bias = 0, scale = 0;
  for (int64_t n = 0; n < images; ++n) {
    bias += sums[n * channels + c];
    scale += sums[(images + n) * channels + c];
  }
  dbias[c] = static_cast<float>(bias);
  dweight[c] = static_cast<float>(scale);
}

/// What the backward pass knows of the groups.
struct GroupValues {
  const float *mean, *rstd, *part, *part_xhat;
};

// dx = rstd * (weight * dy - part - xhat * part_xhat). Grid as apply_kernel's.
template <class T, int kLanes>
__global__ void __launch_bounds__(kBlockThreads)
    backward_apply_kernel(Operand<const T> dy, Operand<const T> x, Operand<T> dx, Rows shape, int64_t images,
                          int64_t groups, GroupValues of, const float* __restrict__ weight) {
  const int64_t c = (static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x) * kLanes;
  if (c >= shape.padded) return;
  const int64_t row_step = static_cast<int64_t>(gridDim.x) * blockDim.y;
  for (int64_t n = blockIdx.z; n < images; n += gridDim.z) {
    float m[kLanes], r[kLanes], offset[kLanes], slope[kLanes], scale[kLanes];
    load_groups<kLanes>(of.mean, groups, shape.channels, n, c, m);
    load_groups<kLanes>(of.rstd, groups, shape.channels, n, c, r);
    load_groups<kLanes>(of.part, groups, shape.channels, n, c, offset);
    load_groups<kLanes>(of.part_xhat, groups, shape.channels, n, c, slope);
    load_channels<kLanes>(weight, shape.channels, c, 0.f, scale);
#pragma unroll
    for (int j = 0; j < kLanes; ++j) {
      scale[j] *= r[j];
      offset[j] *= r[j];
      slope[j] *= r[j] * r[j];
    }
    for (int64_t p = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y; p < shape.rows; p += row_step) {
      float g[kLanes], in[kLanes];
      load_lanes<kLanes>(dy, shape, n * shape.rows + p, c, g);
      load_lanes<kLanes>(x, shape, n * shape.rows + p, c, in);
#pragma unroll
      for (int j = 0; j < kLanes; ++j) g[j] = g[j] * scale[j] - offset[j] - (in[j] - m[j]) * slope[j];
      store_lanes<kLanes>(dx, shape, n * shape.rows + p, c, g);
    }
  }
}

void check_groups(const char* kernel, const View& x, int64_t groups) {
  if (groups <= 0 || x.c % groups != 0)
    throw std::invalid_argument(std::string(CONVOY_DEVICE_NAME "::") + kernel + ": " + std::to_string(x.c) +
                                " channels cannot be split into " + std::to_string(groups) + " groups");
}

Geometry apply_geometry(const Rows& image, int64_t images, int lanes) {
  const int64_t together = std::min(images, kMostGridZ);
  // A few pixels per thread, so that what a thread loads of its channels pays.
  const int64_t blocks =
      std::clamp<int64_t>(image.rows * image.padded / (4 * lanes * kBlockThreads), 1, kMostRowBlocks);
  Geometry g = geometry(image, lanes, kSumTileThreads, blocks, 65535);
  g.grid.z = static_cast<unsigned>(together);
  return g;
}

}  // namespace

size_t group_norm_cuda_workspace_bytes(const View& x, int64_t groups) {
  return 2 * static_cast<size_t>(x.n * x.c) * sizeof(double) + 2 * static_cast<size_t>(x.n * groups) * sizeof(float) +
         pixel_sums_bytes(image_rows(x), x.n, 2);
}

void group_norm(cudaStream_t stream, const View& x, const float* weight, const float* bias, int64_t groups, float eps,
                const View& y, float* mean, float* rstd, double* workspace) {
  check_operands("group_norm", {&x, &y}, true);
  check_groups("group_norm", x, groups);
  const Rows image = image_rows(x);
  const PixelParts parts = pixel_parts(image.rows);
  auto* partial = reinterpret_cast<float*>(workspace);
  dispatch("group_norm", x.dtype, vectors_fit({&x, &y}, x.n * image.rows),
           [&]<class T, int kLanes>(Element<T>, std::integral_constant<int, kLanes>) {
             Geometry g = geometry(image, kLanes, kSumTileThreads, 1, 65535);
             g.grid.x = static_cast<unsigned>(parts.parts);
             g.grid.z = static_cast<unsigned>(std::min(x.n, kMostGridZ));
             launch({g.grid, g.block, 0, stream}, moments_kernel<T, kLanes>, operand<const T>(x), image, parts, x.n,
                    partial);
             launch({static_cast<unsigned>(x.n * groups), kBlockThreads, 0, stream}, merge_groups_kernel, partial,
                    parts, x.c, groups, eps, mean, rstd);
             g = apply_geometry(image, x.n, kLanes);
             launch({g.grid, g.block, 0, stream}, apply_kernel<T, kLanes>, operand<const T>(x), operand<T>(y), image,
                    x.n, groups, mean, rstd, weight, bias);
           });
}

void group_norm_backward(cudaStream_t stream, const View& dy, const View& x, const float* mean, const float* rstd,
                         const float* weight, int64_t groups, const View& dx, float* dweight, float* dbias,
                         double* workspace) {
  check_operands("group_norm_backward", {&dy, &x, &dx}, true);
  check_groups("group_norm_backward", x, groups);
  const Rows image = image_rows(x);
  double* sums = workspace;
  auto* part = reinterpret_cast<float*>(sums + 2 * x.n * x.c);
  float *part_xhat = part + x.n * groups, *partial = part_xhat + x.n * groups;
  dispatch("group_norm_backward", x.dtype, vectors_fit({&dy, &x, &dx}, x.n * image.rows),
           [&]<class T, int kLanes>(Element<T>, std::integral_constant<int, kLanes>) {
             sum_pixels<kLanes, 2>(stream, image, x.n,
                                   BackwardTerms<T>{operand<const T>(dy), operand<const T>(x), mean, groups}, x.c,
                                   StoreSums{sums, rstd, x.n, x.c, groups}, partial);
             launch({static_cast<unsigned>(x.n * groups), kBlockThreads, 0, stream}, group_means_kernel, sums, weight,
                    x.n, x.c, groups, image.rows, part, part_xhat);
             launch({static_cast<unsigned>(ceil_div(x.c, kBlockThreads)), kBlockThreads, 0, stream},
                    parameter_gradients_kernel, sums, x.n, x.c, dweight, dbias);
             const Geometry g = apply_geometry(image, x.n, kLanes);
             launch({g.grid, g.block, 0, stream}, backward_apply_kernel<T, kLanes>, operand<const T>(dy),
                    operand<const T>(x), operand<T>(dx), image, x.n, groups, GroupValues{mean, rstd, part, part_xhat},
                    weight);
           });
}

}  // namespace convoy::CONVOY_DEVICE
