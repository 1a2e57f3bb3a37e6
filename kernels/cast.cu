// Tensors as another element type and in another layout, in one pass. Bytes: every element read once and written once,
// 6 in all. Bound by memory: 100 M elements should take 0.18 ms on an H100 (3.35 TB/s). Between the layouts, tiles of
// 32 pixels by 32 channels pass through shared memory, so that both sides are read and written in whole lines. Within a
// layout, rows are cast 4 elements at a time where pointers and pitches allow it. Numerics: one rounding, to the
// nearest, ties to even; NaN stays NaN.
#include "kernels/cast.h"

#include "kernels/cuda_common.h"

namespace convoy::CONVOY_DEVICE {
namespace {

constexpr int kTile = 32, kTileRows = 8;
constexpr int64_t kLanesOfRows = 4, kMostGrid = 65535;

// Grid as geometry().
template <class To, class From, int kLanes>
__global__ void __launch_bounds__(kBlockThreads)
    cast_rows_kernel(Operand<const From> from, Operand<To> to, Rows in, Rows out) {
  const int64_t column_step = static_cast<int64_t>(gridDim.y) * blockDim.x * kLanes;
  const int64_t row_step = static_cast<int64_t>(gridDim.x) * blockDim.y;
  for (int64_t c = (static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x) * kLanes; c < out.padded;
       c += column_step)
    for (int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y; row < out.rows; row += row_step) {
      float value[kLanes];
      load_lanes<kLanes>(from, in, row, c, value);
      store_lanes<kLanes>(to, out, row, c, value);
    }
}

// Grid: tiles of pixels, tiles of channels, images. One side is nhwc, the other nchw. `channels` are read, those up to
// `padded` are written.
template <class To, class From, bool kToNhwc>
__global__ void __launch_bounds__(kTile* kTileRows)
    cast_tiles_kernel(Operand<const From> from, Operand<To> to, int64_t images, int64_t channels, int64_t padded,
                      int64_t pixels) {
  CONVOY_SHARED(float[kTile][kTile + 1], tile);  // [slow index of `from`][fast index]
  const int64_t first_pixel = static_cast<int64_t>(blockIdx.x) * kTile;
  const int64_t nhwc_pitch = kToNhwc ? to.pitch : from.pitch;
  for (int64_t n = blockIdx.z; n < images; n += gridDim.z)
    for (int64_t first_channel = static_cast<int64_t>(blockIdx.y) * kTile; first_channel < padded;
         first_channel += static_cast<int64_t>(gridDim.y) * kTile) {
      const int64_t nhwc = n * pixels * nhwc_pitch, nchw = n * channels * pixels;
      __syncthreads();  // the tile before has been written
      const int x = threadIdx.x;
      for (int k = threadIdx.y; k < kTile; k += kTileRows) {
        const int64_t c = first_channel + (kToNhwc ? k : x), p = first_pixel + (kToNhwc ? x : k);
        float value = 0.f;
        if (c < channels && p < pixels)
          value = to_float(from.data[kToNhwc ? nchw + c * pixels + p : nhwc + p * nhwc_pitch + c]);
        tile[k][x] = value;
      }
      __syncthreads();
      for (int k = threadIdx.y; k < kTile; k += kTileRows) {
        const int64_t c = first_channel + (kToNhwc ? x : k), p = first_pixel + (kToNhwc ? k : x);
        if (c < padded && p < pixels)
          to.data[kToNhwc ? nhwc + p * nhwc_pitch + c : nchw + c * pixels + p] = from_float<To>(tile[x][k]);
      }
    }
}

// Whether rows of both can be read and written kLanesOfRows elements at a time.
bool lanes_fit(const View& v, int64_t rows) {
  const int64_t pitch = v.layout == Layout::kNhwc ? v.pitch : v.image_stride();
  return reinterpret_cast<uintptr_t>(v.data) % (dtype_size(v.dtype) * kLanesOfRows) == 0 &&
         (rows == 1 || pitch % kLanesOfRows == 0);
}

// As rows: the pixels of nhwc images, else one row of everything.
Rows rows_of(const View& v) {
  if (v.layout == Layout::kNhwc) return pixel_rows(v);
  return {1, v.count(), v.count()};
}

template <class To, class From>
void cast_as(cudaStream_t stream, const View& from, const View& to) {
  const auto in = operand<const From>(from);
  const auto out = operand<To>(to);
  if (from.layout == to.layout) {
    const Rows in_rows = rows_of(from), out_rows = rows_of(to);
    const auto cast_rows = [&]<int kLanes>(std::integral_constant<int, kLanes>) {
      const Geometry g = geometry(out_rows, kLanes, kBlockThreads, kMostRowBlocks, kMostColumnBlocks);
      launch({g.grid, g.block, 0, stream}, cast_rows_kernel<To, From, kLanes>, in, out, in_rows, out_rows);
    };
    return lanes_fit(from, out_rows.rows) && lanes_fit(to, out_rows.rows)
               ? cast_rows(std::integral_constant<int, kLanesOfRows>{})
               : cast_rows(std::integral_constant<int, 1>{});
  }
  const bool to_nhwc = to.layout == Layout::kNhwc;
  const int64_t padded = to_nhwc ? to.blocks() * to.block : to.c;
  const dim3 grid(static_cast<unsigned>(ceil_div(to.pixels(), kTile)),
                  static_cast<unsigned>(std::min(ceil_div(padded, kTile), kMostGrid)),
                  static_cast<unsigned>(std::min(to.n, kMostGrid)));
  launch({grid, dim3(kTile, kTileRows), 0, stream},
         to_nhwc ? cast_tiles_kernel<To, From, true> : cast_tiles_kernel<To, From, false>, in, out, to.n, to.c, padded,
         to.pixels());
}

}  // namespace

void cast(cudaStream_t stream, const View& from, const View& to) {
  const std::string fault = CONVOY_DEVICE_NAME "::cast: ";
  const auto fits = [](const View& v) {
    return v.layout == Layout::kNhwc || (v.layout == Layout::kNchw && v.pitch == v.c);
  };
  if (!fits(from) || !fits(to) || from.n != to.n || from.c != to.c || from.pixels() != to.pixels())
    throw std::invalid_argument(fault + "tensors of one shape, nhwc or dense nchw, are expected");
  const DType a = from.dtype, b = to.dtype;
  const bool narrows = a == DType::kF32 && (b == DType::kF16 || b == DType::kBF16);
  const bool widens = b == DType::kF32 && (a == DType::kF16 || a == DType::kBF16);
  if (!narrows && !widens)
    throw std::invalid_argument(fault + dtype_name(a) + " to " + dtype_name(b) +
                                ", expected f32 and one of f16 and bf16");
  if (to.count() == 0) return;
  if (b == DType::kF16) return cast_as<__half, float>(stream, from, to);
  if (b == DType::kBF16) return cast_as<__nv_bfloat16, float>(stream, from, to);
  if (a == DType::kF16) return cast_as<float, __half>(stream, from, to);
  cast_as<float, __nv_bfloat16>(stream, from, to);
}

}  // namespace convoy::CONVOY_DEVICE
