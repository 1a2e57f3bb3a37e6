// Copies of image tensors between nchw and nhwc, and of slices within one of them.
// Bytes: every element read once and written once; no arithmetic. Bound by memory: 100 M fp32 elements should take
// 0.24 ms on an H100 (3.35 TB/s). Between the layouts, tiles of 32 pixels by 32 channels pass through shared memory, so
// that both sides are read and written in whole lines.
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
  if (from.layout == Layout::kBlocked || to.layout == Layout::kBlocked || from.dtype != to.dtype)
    throw std::invalid_argument(CONVOY_DEVICE_NAME "::reorder: images of one dtype, nchw or nhwc, are expected");
  if (from.count() == 0) return;
  switch (dtype_size(from.dtype)) {
    case 2:
      return reorder_elements<uint16_t>(stream, from, to);
    case 4:
      return reorder_elements<uint32_t>(stream, from, to);
    default:
      throw std::invalid_argument(std::string(CONVOY_DEVICE_NAME "::reorder: dtype ") + dtype_name(from.dtype) +
                                  ", expected one of 2 or 4 bytes");
  }
}

}  // namespace convoy::CONVOY_DEVICE
