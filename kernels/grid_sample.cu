// Sampling of nhwc images at given places, and its gradients.
//   Bytes: forward: y once, x once from memory and up to four times from the caches where places lie close together.
//   Gradient of the grid: the same reads and those of dy, a group of threads per place. Gradient of x: dy twice, and 64
//   bits per element of dx and tap, added by atomics in the second-level cache; then those sums are read once and dx is
//   written. For bf16, 4 x 64 x 128 x 256 (8.4 M elements): forward 34 MB, 0.01 ms on an H100 (3.35 TB/s); gradient of
//   x 33 MB of dy, 67 MB of sums cleared, added to and read, 17 MB of dx: 0.07 ms and more where many places fall
//   together. FLOPs: 8 per element, 16 for the gradient of the grid.
//   Numerics: storage of images fp32, fp16 or bf16, grids fp32; arithmetic in fp32; coordinates without fused
//   operations. The gradient of x is summed in int64 fixed point, whose unit follows from the largest |dy| so that no
//   sum of all places overflows: at 2^20 places a unit is at most 2^-41 of it. So every order gives the same bits.
//   Where a value of dy is not finite, all of dx is NaN.
#include "kernels/grid_sample.h"

#include "kernels/cuda_image.h"

namespace convoy::CONVOY_DEVICE {
namespace {

constexpr int kSumBits = 62;
constexpr unsigned kInfinity = 0x7f800000;  // as bits
constexpr int64_t kHeadBytes = 16;          // of the workspace; then come the sums
constexpr int64_t kMostClearBlocks = 4096;

using Sum = unsigned long long;  // atomicAdd knows no signed one; wraps as int64_t does

/// What is sampled, and where.
struct Sampling {
  const float* grid;
  int64_t grid_stride;  // floats from one image's places to the next one's
  int height, width;    // of x
  bool align_corners, nearest;
};

/// The pixels that one place reads: which of the image (-1: outside), and the shares.
struct Taps {
  int64_t at[4];
  float share[4];
  float right, down;  // shares of the second column and row
};

__device__ float to_pixel(float place, int size, bool align_corners) {
  const float extent = static_cast<float>(size), from_left = __fadd_rn(place, 1.f);
  return align_corners ? __fmul_rn(from_left * 0.5f, extent - 1.f)
                       : __fadd_rn(__fmul_rn(from_left, extent), -1.f) * 0.5f;
}

__device__ Taps taps_of(const Sampling& s, int64_t n, int64_t place) {
  Taps t{{-1, -1, -1, -1}, {}, 0.f, 0.f};
  const float* at = s.grid + n * s.grid_stride + 2 * place;
  const float px = to_pixel(at[0], s.width, s.align_corners), py = to_pixel(at[1], s.height, s.align_corners);
  const bool near =
      px > -1.5f && px < static_cast<float>(s.width) + 0.5f && py > -1.5f && py < static_cast<float>(s.height) + 0.5f;
  if (!near) return t;
  const float left = s.nearest ? rintf(px) : floorf(px), top = s.nearest ? rintf(py) : floorf(py);
  if (!s.nearest) t.right = px - left, t.down = py - top;
  const int column = static_cast<int>(left), row = static_cast<int>(top);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int x = column + i % 2, y = row + i / 2;
    const bool inside = x >= 0 && x < s.width && y >= 0 && y < s.height && !(s.nearest && i > 0);
    t.at[i] = inside ? static_cast<int64_t>(y) * s.width + x : -1;
    t.share[i] = (i % 2 ? t.right : 1.f - t.right) * (i / 2 ? t.down : 1.f - t.down);
  }
  return t;
}

// The walk goes over y, all places of an image in one row.
template <class T, int kLanes>
__global__ void __launch_bounds__(kBlockThreads, kWalkBlocks)
    sample_kernel(Operand<const T> x, Operand<T> y, Rows shape, PixelWalk walk, Sampling s) {
  const int64_t pixels = static_cast<int64_t>(s.height) * s.width;
  for_each_pixel<kLanes>(walk, [&](int64_t n, int, int place, int64_t c) {
    const Taps t = taps_of(s, n, place);
    float sum[kLanes] = {};
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      if (t.at[k] < 0) continue;
      float value[kLanes];
      load_lanes<kLanes>(x, shape, n * pixels + t.at[k], c, value);
#pragma unroll
      for (int j = 0; j < kLanes; ++j) sum[j] += value[j] * t.share[k];
    }
    store_lanes<kLanes>(y, shape, n * walk.width + place, c, sum);
  });
}

__global__ void __launch_bounds__(kBlockThreads) clear_kernel(Sum* words, int64_t count) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * kBlockThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kBlockThreads + threadIdx.x; i < count; i += step) words[i] = 0;
}

// Bits of the largest |value|; those of NaN are the largest of all. Grid as geometry().
template <class T, int kLanes>
__global__ void __launch_bounds__(kBlockThreads) largest_kernel(Operand<const T> x, Rows shape, unsigned* largest) {
  CONVOY_SHARED(unsigned[kBlockThreads / 32], of_warp);
  const int64_t column_step = static_cast<int64_t>(gridDim.y) * blockDim.x * kLanes;
  const int64_t row_step = static_cast<int64_t>(gridDim.x) * blockDim.y;
  unsigned most = 0;
  for (int64_t c = (static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x) * kLanes; c < shape.channels;
       c += column_step)
    for (int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y; row < shape.rows; row += row_step) {
      float value[kLanes];
      load_lanes<kLanes>(x, shape, row, c, value);
#pragma unroll
      for (int j = 0; j < kLanes; ++j) most = max(most, __float_as_uint(value[j]) & 0x7fffffffu);
    }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) most = max(most, __shfl_xor_sync(~0u, most, step));
  const int thread = threadIdx.y * blockDim.x + threadIdx.x;
  if (thread % 32 == 0) of_warp[thread / 32] = most;
  __syncthreads();
  if (thread != 0) return;
  for (int warp = 1; warp < kBlockThreads / 32; ++warp) most = max(most, of_warp[warp]);
  if (most > 0) atomicMax(largest, most);
}

// Units per 1 are 2 to this power: 2^bits values of the size of `largest` fit into a sum.
__device__ int unit_exponent(unsigned largest, int bits) {
  return kSumBits - bits - (static_cast<int>(largest >> 23) - 126);
}

// The walk goes over dy, all places of an image in one row, one channel a thread: a warp's additions are neighbours.
template <class T>
__global__ void __launch_bounds__(kBlockThreads, kWalkBlocks)
    scatter_kernel(Operand<const T> dy, int64_t channels, PixelWalk walk, Sampling s,
                   const unsigned* __restrict__ largest, int bits, Sum* sums) {
  if (*largest >= kInfinity) return;
  const double units = ldexp(1.0, unit_exponent(*largest, bits));
  const int64_t pixels = static_cast<int64_t>(s.height) * s.width;
  for_each_pixel<1>(walk, [&](int64_t n, int, int place, int64_t c) {
    if (c >= channels) return;
    const Taps t = taps_of(s, n, place);
    const float g = to_float(dy.data[(n * walk.width + place) * dy.pitch + c]);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      if (t.at[k] < 0) continue;
      const auto value = static_cast<int64_t>(rint(static_cast<double>(g * t.share[k]) * units));
      if (value != 0) atomicAdd(sums + (n * pixels + t.at[k]) * channels + c, static_cast<Sum>(value));
    }
  });
}

// Grid as geometry().
template <class T, int kLanes>
__global__ void __launch_bounds__(kBlockThreads)
    finish_kernel(const Sum* __restrict__ sums, const unsigned* __restrict__ largest, int bits, Operand<T> dx,
                  Rows shape) {
  const bool finite = *largest < kInfinity;
  const double unit = finite ? ldexp(1.0, -unit_exponent(*largest, bits)) : 0.0;
  const int64_t column_step = static_cast<int64_t>(gridDim.y) * blockDim.x * kLanes;
  const int64_t row_step = static_cast<int64_t>(gridDim.x) * blockDim.y;
  for (int64_t c = (static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x) * kLanes; c < shape.padded;
       c += column_step)
    for (int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y; row < shape.rows; row += row_step) {
      float value[kLanes];
#pragma unroll
      for (int j = 0; j < kLanes; ++j) {
        const bool read = finite && c + j < shape.channels;
        const auto sum = static_cast<int64_t>(read ? sums[row * shape.channels + c + j] : Sum{0});
        value[j] = finite ? static_cast<float>(static_cast<double>(sum) * unit) : NAN;
      }
      store_lanes<kLanes>(dx, shape, row, c, value);
    }
}

// Grid (places, images); the threads along x, a power of two up to 32, share the channels of a place. All threads of a
// warp go through all images, as they exchange their sums.
template <class T, int kLanes>
__global__ void __launch_bounds__(kBlockThreads, 2)
    backward_grid_kernel(Operand<const T> dy, Operand<const T> x, Rows shape, int64_t images, int64_t places,
                         Sampling s, float scale_x, float scale_y, float* __restrict__ dgrid) {
  const int64_t pixels = static_cast<int64_t>(s.height) * s.width;
  const int64_t place = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  for (int64_t n = blockIdx.y; n < images; n += gridDim.y) {
    float along_x = 0.f, along_y = 0.f;
    if (place < places && !s.nearest) {
      const Taps t = taps_of(s, n, place);
      for (int64_t c = threadIdx.x * kLanes; c < shape.channels; c += blockDim.x * kLanes) {
        float g[kLanes], pixel[4][kLanes] = {};
        load_lanes<kLanes>(dy, shape, n * places + place, c, g);
#pragma unroll
        for (int k = 0; k < 4; ++k)
          if (t.at[k] >= 0) load_lanes<kLanes>(x, shape, n * pixels + t.at[k], c, pixel[k]);
#pragma unroll
        for (int j = 0; j < kLanes; ++j) {
          const float upper = pixel[1][j] - pixel[0][j], lower = pixel[3][j] - pixel[2][j];
          const float left = pixel[2][j] - pixel[0][j], right = pixel[3][j] - pixel[1][j];
          along_x += g[j] * (upper * (1.f - t.down) + lower * t.down);
          along_y += g[j] * (left * (1.f - t.right) + right * t.right);
        }
      }
    }
    for (int step = blockDim.x / 2; step > 0; step /= 2) {
      along_x += __shfl_xor_sync(~0u, along_x, step);
      along_y += __shfl_xor_sync(~0u, along_y, step);
    }
    if (threadIdx.x == 0 && place < places) {
      float* to = dgrid + n * s.grid_stride + 2 * place;
      to[0] = along_x * scale_x;
      to[1] = along_y * scale_y;
    }
  }
}

// `x` is sampled to give `y`.
Sampling sampling(const char* kernel, const View& x, const View& grid, const GridSampleParams& p, const View& y) {
  check_operands(kernel, {&x, &y}, true);
  const std::string fault = std::string(CONVOY_DEVICE_NAME "::") + kernel + ": ";
  if (grid.dtype != DType::kF32 || grid.layout != Layout::kNchw)
    throw std::invalid_argument(fault + "the grid must be a plain tensor of f32");
  if (x.n != y.n || grid.n != y.n || grid.c != y.h || grid.h != y.w || grid.w != 2)
    throw std::invalid_argument(fault + "sizes of the images and the grid do not fit each other");
  if (x.h > INT32_MAX / 2 || x.w > INT32_MAX / 2)
    throw std::invalid_argument(fault + "images have at most 2^30 rows and columns");
  return {grid.f32(), grid.image_stride(), static_cast<int>(x.h), static_cast<int>(x.w), p.align_corners, p.nearest};
}

WalkGeometry place_geometry(View y, int lanes) {
  y.w = y.pixels();
  y.h = 1;
  return walk_geometry(y, lanes);
}

// The power of two that is no less than the number of places.
int bits_of_places(const View& y) {
  int bits = 0;
  while ((int64_t{1} << bits) < y.pixels()) ++bits;
  return bits;
}

}  // namespace

void grid_sample(cudaStream_t stream, const View& x, const View& grid, const GridSampleParams& params, const View& y) {
  const Sampling s = sampling("grid_sample", x, grid, params, y);
  if (y.count() == 0) return;
  dispatch("grid_sample", y.dtype, vectors_fit({&x, &y}, 2),
           [&]<class T, int kLanes>(Element<T>, std::integral_constant<int, kLanes>) {
             const WalkGeometry g = place_geometry(y, kLanes);
             launch({g.grid, g.block, 0, stream}, sample_kernel<T, kLanes>, operand<const T>(x), operand<T>(y),
                    pixel_rows(y), g.walk, s);
           });
}

size_t grid_sample_backward_x_cuda_workspace_bytes(const View& dx) {
  return static_cast<size_t>(kHeadBytes + dx.count() * static_cast<int64_t>(sizeof(Sum)));
}

void grid_sample_backward_x(cudaStream_t stream, const View& dy, const View& grid, const GridSampleParams& params,
                            const View& dx, void* workspace) {
  const Sampling s = sampling("grid_sample_backward_x", dx, grid, params, dy);
  if (dx.count() == 0) return;
  auto* largest = static_cast<unsigned*>(workspace);
  auto* sums = reinterpret_cast<Sum*>(static_cast<unsigned char*>(workspace) + kHeadBytes);
  const int64_t words = dx.count() + kHeadBytes / static_cast<int64_t>(sizeof(Sum));
  const int bits = bits_of_places(dy);
  launch({static_cast<unsigned>(std::min(ceil_div(words, kBlockThreads), kMostClearBlocks)), kBlockThreads, 0, stream},
         clear_kernel, static_cast<Sum*>(workspace), words);
  dispatch("grid_sample_backward_x", dx.dtype, vectors_fit({&dy, &dx}, 2),
           [&]<class T, int kLanes>(Element<T>, std::integral_constant<int, kLanes>) {
             if (dy.count() > 0) {
               const Geometry all = geometry(pixel_rows(dy), kLanes, kBlockThreads, kMostRowBlocks, kMostColumnBlocks);
               launch({all.grid, all.block, 0, stream}, largest_kernel<T, kLanes>, operand<const T>(dy), pixel_rows(dy),
                      largest);
               const WalkGeometry g = place_geometry(dy, 1);
               launch({g.grid, g.block, 0, stream}, scatter_kernel<T>, operand<const T>(dy), dy.c, g.walk, s, largest,
                      bits, sums);
             }
             const Geometry g = geometry(pixel_rows(dx), kLanes, kBlockThreads, kMostRowBlocks, kMostColumnBlocks);
             launch({g.grid, g.block, 0, stream}, finish_kernel<T, kLanes>, sums, largest, bits, operand<T>(dx),
                    pixel_rows(dx));
           });
}

void grid_sample_backward_grid(cudaStream_t stream, const View& dy, const View& x, const View& grid,
                               const GridSampleParams& params, const View& dgrid) {
  const Sampling s = sampling("grid_sample_backward_grid", x, grid, params, dy);
  sampling("grid_sample_backward_grid", x, dgrid, params, dy);
  if (dgrid.count() == 0) return;
  const float scale_x = static_cast<float>(params.align_corners ? x.w - 1 : x.w) / 2;
  const float scale_y = static_cast<float>(params.align_corners ? x.h - 1 : x.h) / 2;
  dispatch("grid_sample_backward_grid", x.dtype, vectors_fit({&dy, &x}, 2),
           [&]<class T, int kLanes>(Element<T>, std::integral_constant<int, kLanes>) {
             const Rows of_image{dy.pixels(), dy.c, dy.blocks() * dy.block};
             Geometry g = geometry(of_image, kLanes, 32, INT32_MAX, 1);
             g.grid.y = static_cast<unsigned>(std::min(dy.n, kMostGridRows));
             launch({g.grid, g.block, 0, stream}, backward_grid_kernel<T, kLanes>, operand<const T>(dy),
                    operand<const T>(x), pixel_rows(dy), dy.n, dy.pixels(), s, scale_x, scale_y, dgrid.f32());
           });
}

}  // namespace convoy::CONVOY_DEVICE
