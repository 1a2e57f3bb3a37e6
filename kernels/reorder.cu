// Copies of image tensors between nchw and nhwc, and of slices within one of them.
// Bytes: every element read once and written once; no arithmetic. Bound by memory: 100 M fp32 elements should take
// 0.24 ms on an H100 (3.35 TB/s). Between the layouts, tiles of 32 pixels by 32 channels pass through shared memory, so
// that both sides are read and written in whole lines. Within a layout, rows are copied by the widest accesses of 2 to
// 16 bytes that pointers, pitches and the first channel allow.
#include "kernels/reorder.h"

#include "kernels/cuda_common.h"

namespace convoy::CONVOY_DEVICE {
namespace {

constexpr int kTile = 32, kTileRows = 8;

/// Where element (image n, channel c, pixel p) lies.
struct Strides {
  int64_t image, channel, pixel;
};

Strides strides_of(const View& v) {
  return v.layout == Layout::kNhwc ? Strides{v.image_stride(), 1, v.pitch} : Strides{v.image_stride(), v.pixels(), 1};
}

// Grid: tiles of pixels, tiles of channels, images. `channels` are read, those up to `padded` are written.
template <class T>
__global__ void __launch_bounds__(kTile* kTileRows)
    reorder_kernel(const T* __restrict__ from, Strides in, T* __restrict__ to, Strides out, int64_t channels,
                   int64_t padded, int64_t pixels) {
  CONVOY_SHARED(T[kTile][kTile + 1], tile);  // [channel][pixel]
  const int64_t first_pixel = static_cast<int64_t>(blockIdx.x) * kTile;
  const int64_t first_channel = static_cast<int64_t>(blockIdx.y) * kTile, n = blockIdx.z;
  // The faster index of either side goes along threadIdx.x.
  const bool in_channels = in.channel == 1 && in.pixel != 1, out_channels = out.channel == 1 && out.pixel != 1;
  for (int k = threadIdx.y; k < kTile; k += kTileRows) {
    const int x = threadIdx.x;
    const int64_t c = first_channel + (in_channels ? x : k), p = first_pixel + (in_channels ? k : x);
    T value{};
    if (c < channels && p < pixels) value = from[n * in.image + c * in.channel + p * in.pixel];
    tile[in_channels ? x : k][in_channels ? k : x] = value;
  }
  __syncthreads();
  for (int k = threadIdx.y; k < kTile; k += kTileRows) {
    const int x = threadIdx.x;
    const int64_t c = first_channel + (out_channels ? x : k), p = first_pixel + (out_channels ? k : x);
    if (c < padded && p < pixels)
      to[n * out.image + c * out.channel + p * out.pixel] = tile[out_channels ? x : k][out_channels ? k : x];
  }
}

// to[c] = from[c - first] for the channels that `from` has, zero for the others up to shape.padded. Grid as geometry().
template <class T, int kLanes>
__global__ void __launch_bounds__(kBlockThreads)
    copy_rows_kernel(Operand<const T> from, Operand<T> to, Rows shape, int64_t first) {
  const int64_t column_step = static_cast<int64_t>(gridDim.y) * blockDim.x * kLanes;
  const int64_t row_step = static_cast<int64_t>(gridDim.x) * blockDim.y;
  for (int64_t c = (static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x) * kLanes; c < shape.padded;
       c += column_step) {
    const int64_t source = c - first;
    const bool whole = source >= 0 && source + kLanes <= shape.channels && c + kLanes <= shape.padded;
    for (int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y; row < shape.rows; row += row_step) {
      const T* in = from.data + row * from.pitch;
      T* out = to.data + row * to.pitch + c;
      if (whole) {
        *reinterpret_cast<Pack<T, kLanes>*>(out) = *reinterpret_cast<const Pack<T, kLanes>*>(in + source);
      } else {
#pragma unroll
        for (int j = 0; j < kLanes; ++j)
          if (c + j < shape.padded) out[j] = source + j >= 0 && source + j < shape.channels ? in[source + j] : T{};
      }
    }
  }
}

// The widest access, in bytes, at which all rows of both tensors and channel `first` of `to` lie.
int64_t access_bytes(const View& from, const View& to, int64_t rows, int64_t first) {
  const auto size = static_cast<int64_t>(dtype_size(to.dtype));
  const auto aligned = [&](const View& v, int64_t bytes) {
    const int64_t pitch = v.layout == Layout::kNhwc ? v.pitch : v.image_stride();
    return reinterpret_cast<uintptr_t>(v.data) % static_cast<uintptr_t>(bytes) == 0 &&
           (rows == 1 || pitch * size % bytes == 0);
  };
  int64_t bytes = 16;
  while (bytes > size && !(aligned(from, bytes) && aligned(to, bytes) && first * size % bytes == 0)) bytes /= 2;
  return bytes;
}

// Rows of `channels`, which are written up to `padded` of `to`.
template <class T>
void copy_rows(cudaStream_t stream, const View& from, const View& to, const Rows& shape, int64_t first) {
  const auto copy = [&]<int kLanes>(std::integral_constant<int, kLanes>) {
    const Geometry g = geometry(shape, kLanes, kBlockThreads, kMostRowBlocks, kMostColumnBlocks);
    launch({g.grid, g.block, 0, stream}, copy_rows_kernel<T, kLanes>, operand<const T>(from), operand<T>(to), shape,
           first);
  };
  switch (access_bytes(from, to, shape.rows, first) / static_cast<int64_t>(sizeof(T))) {
    case 8:
      if constexpr (sizeof(T) == 2) return copy(std::integral_constant<int, 8>{});
      break;
    case 4:
      return copy(std::integral_constant<int, 4>{});
    case 2:
      return copy(std::integral_constant<int, 2>{});
    default:
      return copy(std::integral_constant<int, 1>{});
  }
}

// Calls f(T) with an integer type of the elements' size.
template <class F>
void for_elements(const char* name, const View& from, const View& to, F f) {
  const std::string fault = std::string(CONVOY_DEVICE_NAME "::") + name + ": ";
  if (from.layout == Layout::kBlocked || to.layout == Layout::kBlocked || from.dtype != to.dtype)
    throw std::invalid_argument(fault + "images of one dtype, nchw or nhwc, are expected");
  switch (dtype_size(from.dtype)) {
    case 2:
      return f(uint16_t{});
    case 4:
      return f(uint32_t{});
    default:
      throw std::invalid_argument(fault + "dtype " + dtype_name(from.dtype) + ", expected one of 2 or 4 bytes");
  }
}

template <class T>
void reorder_elements(cudaStream_t stream, const View& from, const View& to) {
  const int64_t padded = to.layout == Layout::kNhwc ? to.blocks() * to.block : to.c;
  const dim3 grid(static_cast<unsigned>(ceil_div(from.pixels(), kTile)), static_cast<unsigned>(ceil_div(padded, kTile)),
                  static_cast<unsigned>(from.n));
  launch({grid, dim3(kTile, kTileRows), 0, stream}, reorder_kernel<T>, static_cast<const T*>(from.data),
         strides_of(from), static_cast<T*>(to.data), strides_of(to), from.c, padded, from.pixels());
}

}  // namespace

void reorder(cudaStream_t stream, const View& from, const View& to) {
  for_elements("reorder", from, to, [&]<class T>(T) {
    if (from.count() == 0) return;
    if (from.layout != to.layout)
      reorder_elements<T>(stream, from, to);
    else if (to.layout == Layout::kNhwc)
      copy_rows<T>(stream, from, to, {to.n * to.pixels(), to.c, to.blocks() * to.block}, 0);
    else
      copy_rows<T>(stream, from, to, {to.n, to.c * to.pixels(), to.c * to.pixels()}, 0);
  });
}

void insert_channels(cudaStream_t stream, const View& from, int64_t first, const View& to) {
  for_elements("insert_channels", from, to, [&]<class T>(T) {
    if (from.layout != Layout::kNhwc || to.layout != Layout::kNhwc)
      throw std::invalid_argument(CONVOY_DEVICE_NAME "::insert_channels: nhwc images are expected");
    if (to.count() > 0) copy_rows<T>(stream, from, to, {to.n * to.pixels(), from.c, to.blocks() * to.block}, first);
  });
}

}  // namespace convoy::CONVOY_DEVICE
