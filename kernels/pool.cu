// Pooling of nhwc images. Every kernel gathers: a thread writes kLanes channels of one pixel.
// Bytes: forward reads x once from memory (overlapping windows find it in the cache) and writes y (and index, 4 B an
// element); backward reads dy (and index) and writes dx. FLOPs: one or two per element and window that covers it. Bound
// by memory: the 3x3 stride 2 maximum of a bf16 tensor of 100 M elements with its index should take 0.11 ms on an H100
// (3.35 TB/s), its gradient the same; the global average 0.06 ms.
// Numerics: storage fp32, fp16 or bf16; windows are summed in fp32 in row-major order, large bins of adaptive pooling
// in parts that are merged in double. Deterministic; unpooling finds the last of several values for a place by an
// integer maximum.
#include "kernels/pool.h"

#include "kernels/cuda_image.h"
#include "kernels/cuda_pixel_sums.h"
#include "kernels/cuda_reduce.h"

namespace convoy::CONVOY_DEVICE {
namespace {

// Bins of up to this many pixels are summed by one thread.
constexpr int64_t kSmallBin = 32;

struct Span {
  int first, last;
  __device__ int count() const { return last - first; }
};

// One axis of a pooling: extents of input and output.
struct Axis {
  int in, out, kernel, stride, pad;

  // The input positions of window o.
  __device__ Span window(int o) const {
    const int start = o * stride - pad, end = start + kernel;
    return {start > 0 ? start : 0, end < in ? end : in};
  }
  // How many positions of the padded input window o has.
  __device__ int padded(int o) const {
    const int start = o * stride - pad, end = start + kernel;
    return (end < in + pad ? end : in + pad) - start;
  }
  // The windows that cover input position i.
  __device__ Span over(int i) const {
    const auto at = static_cast<unsigned>(i + pad), step = static_cast<unsigned>(stride);
    const int first = i + pad < kernel ? 0 : static_cast<int>((at - static_cast<unsigned>(kernel)) / step) + 1;
    const int last = static_cast<int>(at / step) + 1;
    return {first, last < out ? last : out};
  }
};

struct Axes {
  Axis rows, columns;
};

Axes axes_of(const View& in, const View& out, const Pool2d& pool) {
  return {
      {static_cast<int>(in.h), static_cast<int>(out.h), pool.kernel_h, pool.stride_h, pool.pad_h},
      {static_cast<int>(in.w), static_cast<int>(out.w), pool.kernel_w, pool.stride_w, pool.pad_w},
  };
}

template <class T, int kLanes>
__global__ void __launch_bounds__(kBlockThreads, kWalkBlocks)
    max_kernel(Operand<const T> x, Operand<T> y, Operand<int32_t> index, Rows shape, PixelWalk walk, Axes axes) {
  for_each_pixel<kLanes>(walk, [&](int64_t n, int oh, int ow, int64_t c) {
    const Span rows = axes.rows.window(oh), columns = axes.columns.window(ow);
    float best[kLanes];
    int32_t position[kLanes];
#pragma unroll
    for (int j = 0; j < kLanes; ++j) {
      best[j] = -INFINITY;
      position[j] = rows.first * axes.columns.in + columns.first;
    }
    for (int h = rows.first; h < rows.last; ++h) {
      for (int w = columns.first; w < columns.last; ++w) {
        const int32_t at = h * axes.columns.in + w;
        float value[kLanes];
        load_lanes<kLanes>(x, shape, n * axes.rows.in * axes.columns.in + at, c, value);
#pragma unroll
        for (int j = 0; j < kLanes; ++j) {
          const bool better = value[j] > best[j] || value[j] != value[j];
          best[j] = better ? value[j] : best[j];
          position[j] = better ? at : position[j];
        }
      }
    }
    const int64_t to = (n * walk.height + oh) * walk.width + ow;
    store_lanes<kLanes>(y, shape, to, c, best);
    if (index.data) store_indices<kLanes>(index, shape, to, c, position);
  });
}

template <class T, int kLanes>
__global__ void __launch_bounds__(kBlockThreads, kWalkBlocks)
    max_backward_kernel(Operand<const T> dy, Operand<const int32_t> index, Operand<T> dx, Rows shape, PixelWalk walk,
                        Axes axes) {
  for_each_pixel<kLanes>(walk, [&](int64_t n, int h, int w, int64_t c) {
    const Span rows = axes.rows.over(h), columns = axes.columns.over(w);
    const int32_t here = h * walk.width + w;
    float sum[kLanes] = {};
    for (int oh = rows.first; oh < rows.last; ++oh) {
      for (int ow = columns.first; ow < columns.last; ++ow) {
        const int64_t from = (n * axes.rows.out + oh) * axes.columns.out + ow;
        float g[kLanes];
        int32_t position[kLanes];
        load_indices<kLanes>(index, shape, from, c, position);
        load_lanes<kLanes>(dy, shape, from, c, g);
#pragma unroll
        for (int j = 0; j < kLanes; ++j) sum[j] += position[j] == here ? g[j] : 0.f;
      }
    }
    store_lanes<kLanes>(dx, shape, (n * walk.height + h) * walk.width + w, c, sum);
  });
}

template <class T, int kLanes>
__global__ void __launch_bounds__(kBlockThreads, kWalkBlocks)
    average_kernel(Operand<const T> x, Operand<T> y, Rows shape, PixelWalk walk, Axes axes, bool include_pad) {
  for_each_pixel<kLanes>(walk, [&](int64_t n, int oh, int ow, int64_t c) {
    const Span rows = axes.rows.window(oh), columns = axes.columns.window(ow);
    float sum[kLanes] = {};
    for (int h = rows.first; h < rows.last; ++h) {
      for (int w = columns.first; w < columns.last; ++w) {
        float value[kLanes];
        load_lanes<kLanes>(x, shape, (n * axes.rows.in + h) * axes.columns.in + w, c, value);
#pragma unroll
        for (int j = 0; j < kLanes; ++j) sum[j] += value[j];
      }
    }
    const int area = include_pad ? axes.rows.padded(oh) * axes.columns.padded(ow) : rows.count() * columns.count();
    const float share = 1.f / static_cast<float>(area);
#pragma unroll
    for (int j = 0; j < kLanes; ++j) sum[j] *= share;
    store_lanes<kLanes>(y, shape, (n * walk.height + oh) * walk.width + ow, c, sum);
  });
}

template <class T, int kLanes>
__global__ void __launch_bounds__(kBlockThreads, kWalkBlocks)
    average_backward_kernel(Operand<const T> dy, Operand<T> dx, Rows shape, PixelWalk walk, Axes axes,
                            bool include_pad) {
  for_each_pixel<kLanes>(walk, [&](int64_t n, int h, int w, int64_t c) {
    const Span rows = axes.rows.over(h), columns = axes.columns.over(w);
    float sum[kLanes] = {};
    for (int oh = rows.first; oh < rows.last; ++oh) {
      const int height = include_pad ? axes.rows.padded(oh) : axes.rows.window(oh).count();
      for (int ow = columns.first; ow < columns.last; ++ow) {
        const int width = include_pad ? axes.columns.padded(ow) : axes.columns.window(ow).count();
        const float share = 1.f / static_cast<float>(height * width);
        float g[kLanes];
        load_lanes<kLanes>(dy, shape, (n * axes.rows.out + oh) * axes.columns.out + ow, c, g);
#pragma unroll
        for (int j = 0; j < kLanes; ++j) sum[j] += g[j] * share;
      }
    }
    store_lanes<kLanes>(dx, shape, (n * walk.height + h) * walk.width + w, c, sum);
  });
}

// One axis of an adaptive pooling; extents up to 65535, so that products fit 32 bits.
struct Bins {
  unsigned extent, bins;

  // The positions of bin o.
  __device__ Span of(unsigned o) const {
    if (bins == 1) return {0, static_cast<int>(extent)};
    return {static_cast<int>(o * extent / bins), static_cast<int>(((o + 1) * extent + bins - 1) / bins)};
  }
  // The bins that cover position i.
  __device__ Span over(unsigned i) const {
    if (bins == 1) return {0, 1};
    return {static_cast<int>(i * bins / extent), static_cast<int>(((i + 1) * bins + extent - 1) / extent)};
  }
};

struct BinAxes {
  Bins rows, columns;
};

BinAxes bin_axes(const char* kernel, const View& in, const View& out) {
  if (std::max({in.h, in.w, out.h, out.w}) >= 65535)
    throw std::invalid_argument(std::string(CONVOY_DEVICE_NAME "::") + kernel + ": extents must be below 65535");
  return {{static_cast<unsigned>(in.h), static_cast<unsigned>(out.h)},
          {static_cast<unsigned>(in.w), static_cast<unsigned>(out.w)}};
}

// Pixels of the largest bin, or a few more.
int64_t largest_bin(const View& in, const View& out) {
  const auto along = [](int64_t extent, int64_t bins) {
    return extent % bins == 0 ? extent / bins : std::min(extent, extent / bins + 2);
  };
  return along(in.h, out.h) * along(in.w, out.w);
}

template <class T, int kLanes>
__global__ void __launch_bounds__(kBlockThreads, kWalkBlocks)
    small_bins_kernel(Operand<const T> x, Operand<T> y, Rows shape, PixelWalk walk, BinAxes axes) {
  for_each_pixel<kLanes>(walk, [&](int64_t n, int oh, int ow, int64_t c) {
    const Span rows = axes.rows.of(oh), columns = axes.columns.of(ow);
    float sum[kLanes] = {};
    for (int h = rows.first; h < rows.last; ++h) {
      for (int w = columns.first; w < columns.last; ++w) {
        float value[kLanes];
        load_lanes<kLanes>(x, shape, (n * axes.rows.extent + h) * axes.columns.extent + w, c, value);
#pragma unroll
        for (int j = 0; j < kLanes; ++j) sum[j] += value[j];
      }
    }
    const float share = 1.f / static_cast<float>(rows.count() * columns.count());
#pragma unroll
    for (int j = 0; j < kLanes; ++j) sum[j] *= share;
    store_lanes<kLanes>(y, shape, (n * walk.height + oh) * walk.width + ow, c, sum);
  });
}

// First stage for large bins. Grid (parts of a bin, tiles of channels, bins of all images).
template <class T, int kLanes>
__global__ void __launch_bounds__(kBlockThreads, kWalkBlocks)
    large_bins_kernel(Operand<const T> x, Rows shape, BinAxes axes, int64_t length, int64_t bins,
                      float* __restrict__ partial) {
  const int64_t tile = static_cast<int64_t>(blockIdx.y) * blockDim.x * kLanes, c = tile + threadIdx.x * kLanes;
  const int64_t part = blockIdx.x;
  const auto per_image = static_cast<int64_t>(axes.rows.bins) * axes.columns.bins;
  for (int64_t bin = blockIdx.z; bin < bins; bin += gridDim.z) {
    const int64_t n = bin / per_image;
    const auto within = static_cast<unsigned>(bin - n * per_image);
    const Span rows = axes.rows.of(within / axes.columns.bins), columns = axes.columns.of(within % axes.columns.bins);
    const int width = columns.count(), pixels = rows.count() * width;
    const int64_t end = (part + 1) * length < pixels ? (part + 1) * length : pixels;
    int64_t p = part * length + threadIdx.y;
    float sums[1][kLanes] = {};
    if (c < shape.channels && p < end) {
      // Row and column of pixel p of the bin, kept without a division.
      int row = static_cast<int>(p) / width, column = static_cast<int>(p) - row * width;
      for (; p < end; p += blockDim.y) {
        float value[kLanes];
        load_lanes<kLanes>(x, shape,
                           (n * axes.rows.extent + rows.first + row) * axes.columns.extent + columns.first + column, c,
                           value);
#pragma unroll
        for (int j = 0; j < kLanes; ++j) sums[0][j] += value[j];
        for (column += blockDim.y; column >= width; column -= width) ++row;
      }
    }
    merge_rows<kLanes, 1>(sums, tile, shape.channels, partial + (bin * gridDim.x + part) * shape.channels);
  }
}

template <class T>
struct StoreBin {
  Operand<T> y;
  BinAxes axes;
  __device__ void operator()(int64_t bin, int64_t c, const double (&totals)[1]) const {
    const auto within = static_cast<unsigned>(bin % (static_cast<int64_t>(axes.rows.bins) * axes.columns.bins));
    const int area =
        axes.rows.of(within / axes.columns.bins).count() * axes.columns.of(within % axes.columns.bins).count();
    y.data[bin * y.pitch + c] = from_float<T>(static_cast<float>(totals[0] / area));
  }
};

template <class T, int kLanes>
__global__ void __launch_bounds__(kBlockThreads, kWalkBlocks)
    bins_backward_kernel(Operand<const T> dy, Operand<T> dx, Rows shape, PixelWalk walk, BinAxes axes) {
  for_each_pixel<kLanes>(walk, [&](int64_t n, int h, int w, int64_t c) {
    const Span rows = axes.rows.over(h), columns = axes.columns.over(w);
    float sum[kLanes] = {};
    for (int oh = rows.first; oh < rows.last; ++oh) {
      const int height = axes.rows.of(oh).count();
      for (int ow = columns.first; ow < columns.last; ++ow) {
        const float share = 1.f / static_cast<float>(height * axes.columns.of(ow).count());
        float g[kLanes];
        load_lanes<kLanes>(dy, shape, (n * axes.rows.bins + oh) * axes.columns.bins + ow, c, g);
#pragma unroll
        for (int j = 0; j < kLanes; ++j) sum[j] += g[j] * share;
      }
    }
    store_lanes<kLanes>(dx, shape, (n * walk.height + h) * walk.width + w, c, sum);
  });
}

__global__ void __launch_bounds__(kBlockThreads, kWalkBlocks) clear_kernel(int32_t* __restrict__ last, int64_t count) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * kBlockThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kBlockThreads + threadIdx.x; i < count; i += step) last[i] = -1;
}

// last[(n*pixels + place)*channels + c] = the last pixel of z whose index is `place`. Walks over z; one channel each.
__global__ void __launch_bounds__(kBlockThreads, kWalkBlocks)
    last_of_place_kernel(Operand<const int32_t> index, int64_t channels, PixelWalk walk, int32_t pixels,
                         int32_t* __restrict__ last, int64_t* __restrict__ fault) {
  for_each_pixel<1>(walk, [&](int64_t n, int h, int w, int64_t c) {
    if (c >= channels) return;
    const int32_t p = h * walk.width + w;
    const int64_t plane = static_cast<int64_t>(walk.height) * walk.width;
    const int32_t place = index.data[(n * plane + p) * index.pitch + c];
    if (place >= 0 && place < pixels)
      atomicMax(last + (n * pixels + place) * channels + c, p);
    else
      report_fault(fault, (n * channels + c) * plane + p);
  });
}

template <class T>
__global__ void __launch_bounds__(kBlockThreads, kWalkBlocks)
    unpool_kernel(Operand<const T> z, const int32_t* __restrict__ last, Operand<T> y, int64_t channels, PixelWalk walk,
                  int64_t z_pixels) {
  for_each_pixel<1>(walk, [&](int64_t n, int h, int w, int64_t c) {
    const int64_t row = (n * walk.height + h) * walk.width + w;
    const int32_t from = c < channels ? last[row * channels + c] : -1;
    y.data[row * y.pitch + c] = from < 0 ? from_float<T>(0.f) : z.data[(n * z_pixels + from) * z.pitch + c];
  });
}

template <class T>
__global__ void __launch_bounds__(kBlockThreads, kWalkBlocks)
    unpool_backward_kernel(Operand<const T> dy, Operand<const int32_t> index, Operand<T> dz, int64_t channels,
                           PixelWalk walk, int32_t pixels) {
  for_each_pixel<1>(walk, [&](int64_t n, int h, int w, int64_t c) {
    const int64_t row = (n * walk.height + h) * walk.width + w;
    const int32_t place = c < channels ? index.data[row * index.pitch + c] : -1;
    dz.data[row * dz.pitch + c] =
        place >= 0 && place < pixels ? dy.data[(n * pixels + place) * dy.pitch + c] : from_float<T>(0.f);
  });
}

void check_pool(const char* kernel, const View& from, const View& to) {
  check_operands(kernel, {&from, &to}, true);
  if (from.n != to.n)
    throw std::invalid_argument(std::string(CONVOY_DEVICE_NAME "::") + kernel + ": numbers of images differ");
}

void check_index(const char* kernel, const View& of, const View& index) {
  if (index.dtype != DType::kI32 || index.layout != Layout::kNhwc || index.n != of.n || index.c != of.c ||
      index.h != of.h || index.w != of.w || index.block != of.block)
    throw std::invalid_argument(std::string(CONVOY_DEVICE_NAME "::") + kernel +
                                ": the index must be i32, nhwc, of the pooled shape");
}

}  // namespace

void max_pool(cudaStream_t stream, const View& x, const Pool2d& pool, const View& y, const View* index) {
  check_pool("max_pool", x, y);
  if (index) check_index("max_pool", y, *index);
  dispatch("max_pool", x.dtype, vectors_fit({&x, &y, index}, 2),
           [&]<class T, int kLanes>(Element<T>, std::integral_constant<int, kLanes>) {
             const WalkGeometry g = walk_geometry(y, kLanes);
             launch({g.grid, g.block, 0, stream}, max_kernel<T, kLanes>, operand<const T>(x), operand<T>(y),
                    index ? operand<int32_t>(*index) : Operand<int32_t>{nullptr, 0}, pixel_rows(y), g.walk,
                    axes_of(x, y, pool));
           });
}

void max_pool_backward(cudaStream_t stream, const View& dy, const View& index, const Pool2d& pool, const View& dx) {
  check_pool("max_pool_backward", dy, dx);
  check_index("max_pool_backward", dy, index);
  dispatch("max_pool_backward", dx.dtype, vectors_fit({&dy, &dx, &index}, 2),
           [&]<class T, int kLanes>(Element<T>, std::integral_constant<int, kLanes>) {
             const WalkGeometry g = walk_geometry(dx, kLanes);
             launch({g.grid, g.block, 0, stream}, max_backward_kernel<T, kLanes>, operand<const T>(dy),
                    operand<const int32_t>(index), operand<T>(dx), pixel_rows(dx), g.walk, axes_of(dx, dy, pool));
           });
}

void avg_pool(cudaStream_t stream, const View& x, const Pool2d& pool, const View& y) {
  check_pool("avg_pool", x, y);
  dispatch("avg_pool", x.dtype, vectors_fit({&x, &y}, 2),
           [&]<class T, int kLanes>(Element<T>, std::integral_constant<int, kLanes>) {
             const WalkGeometry g = walk_geometry(y, kLanes);
             launch({g.grid, g.block, 0, stream}, average_kernel<T, kLanes>, operand<const T>(x), operand<T>(y),
                    pixel_rows(y), g.walk, axes_of(x, y, pool), pool.count_include_pad);
           });
}

void avg_pool_backward(cudaStream_t stream, const View& dy, const Pool2d& pool, const View& dx) {
  check_pool("avg_pool_backward", dy, dx);
  dispatch("avg_pool_backward", dx.dtype, vectors_fit({&dy, &dx}, 2),
           [&]<class T, int kLanes>(Element<T>, std::integral_constant<int, kLanes>) {
             const WalkGeometry g = walk_geometry(dx, kLanes);
             launch({g.grid, g.block, 0, stream}, average_backward_kernel<T, kLanes>, operand<const T>(dy),
                    operand<T>(dx), pixel_rows(dx), g.walk, axes_of(dx, dy, pool), pool.count_include_pad);
           });
}

size_t adaptive_pool_cuda_workspace_bytes(const View& x, const View& y) {
  const int64_t largest = largest_bin(x, y);
  if (largest <= kSmallBin) return 0;
  return static_cast<size_t>(partial_floats(y.n * y.pixels(), pixel_parts(largest).parts, y.c, 1)) * sizeof(float);
}

void adaptive_avg_pool(cudaStream_t stream, const View& x, const View& y, float* workspace) {
  check_pool("adaptive_avg_pool", x, y);
  const BinAxes axes = bin_axes("adaptive_avg_pool", x, y);
  const int64_t largest = largest_bin(x, y), bins = y.n * y.pixels();
  dispatch("adaptive_avg_pool", x.dtype, vectors_fit({&x, &y}, 2),
           [&]<class T, int kLanes>(Element<T>, std::integral_constant<int, kLanes>) {
             const Rows shape = pixel_rows(y);
             if (largest <= kSmallBin) {
               const WalkGeometry g = walk_geometry(y, kLanes);
               launch({g.grid, g.block, 0, stream}, small_bins_kernel<T, kLanes>, operand<const T>(x), operand<T>(y),
                      shape, g.walk, axes);
               return;
             }
             const PixelParts parts = pixel_parts(largest);
             Geometry g = geometry(shape, kLanes, kSumTileThreads, 1, 65535);
             g.grid.x = static_cast<unsigned>(parts.parts);
             g.grid.z = static_cast<unsigned>(std::min(bins, kMostGridZ));
             launch({g.grid, g.block, 0, stream}, large_bins_kernel<T, kLanes>, operand<const T>(x), shape, axes,
                    parts.length, bins, workspace);
             merge_parts<1>(stream, workspace, parts.parts, y.c, shape.padded, bins, StoreBin<T>{operand<T>(y), axes});
           });
}

void adaptive_avg_pool_backward(cudaStream_t stream, const View& dy, const View& dx) {
  check_pool("adaptive_avg_pool_backward", dy, dx);
  const BinAxes axes = bin_axes("adaptive_avg_pool_backward", dx, dy);
  dispatch("adaptive_avg_pool_backward", dx.dtype, vectors_fit({&dy, &dx}, 2),
           [&]<class T, int kLanes>(Element<T>, std::integral_constant<int, kLanes>) {
             const WalkGeometry g = walk_geometry(dx, kLanes);
             launch({g.grid, g.block, 0, stream}, bins_backward_kernel<T, kLanes>, operand<const T>(dy), operand<T>(dx),
                    pixel_rows(dx), g.walk, axes);
           });
}

size_t max_unpool_cuda_workspace_bytes(const View& y) {
  return static_cast<size_t>(y.count()) * sizeof(int32_t);
}

void max_unpool(cudaStream_t stream, const View& z, const View& index, const View& y, int64_t* fault,
                int32_t* workspace) {
  check_pool("max_unpool", z, y);
  check_index("max_unpool", z, index);
  const int64_t blocks = std::clamp<int64_t>(ceil_div(y.count(), kBlockThreads), 1, kMostRowBlocks);
  launch({static_cast<unsigned>(blocks), kBlockThreads, 0, stream}, clear_kernel, workspace, y.count());
  const WalkGeometry from = walk_geometry(z, 1), to = walk_geometry(y, 1);
  launch({from.grid, from.block, 0, stream}, last_of_place_kernel, operand<const int32_t>(index), z.c, from.walk,
         static_cast<int32_t>(y.pixels()), workspace, fault);
  dispatch("max_unpool", y.dtype, false, [&]<class T, int kLanes>(Element<T>, std::integral_constant<int, kLanes>) {
    launch({to.grid, to.block, 0, stream}, unpool_kernel<T>, operand<const T>(z), workspace, operand<T>(y), y.c,
           to.walk, z.pixels());
  });
}

void max_unpool_backward(cudaStream_t stream, const View& dy, const View& index, const View& dz) {
  check_pool("max_unpool_backward", dy, dz);
  check_index("max_unpool_backward", dz, index);
  const WalkGeometry g = walk_geometry(dz, 1);
  dispatch("max_unpool_backward", dz.dtype, false,
           [&]<class T, int kLanes>(Element<T>, std::integral_constant<int, kLanes>) {
             launch({g.grid, g.block, 0, stream}, unpool_backward_kernel<T>, operand<const T>(dy),
                    operand<const int32_t>(index), operand<T>(dz), dz.c, g.walk, static_cast<int32_t>(dy.pixels()));
           });
}

}  // namespace convoy::CONVOY_DEVICE
