// What the CUDA kernels of attention share: images as matrices, fp32 sums for images of any dtype, products over pixels
// cut into parts. Included by *.cu only.
#pragma once
#include "kernels/cuda_common.h"
#include "kernels/gemm.h"

namespace convoy::CONVOY_DEVICE {

constexpr int kWarp = 32;
constexpr int kRowsOfBlock = kBlockThreads / kWarp;  ///< rows of a block whose warps own one each
/// For __launch_bounds__ of kernels that need more than 32 registers: 64 of them. Without it ptxas spills a few.
constexpr int kRoomyBlocks = 4;
constexpr int64_t kMostGridPlanes = 65535;  ///< of gridDim.y and gridDim.z

inline unsigned grid_extent(int64_t blocks, int64_t most) {
  return static_cast<unsigned>(std::clamp<int64_t>(blocks, 1, most));
}

/// Floats of a row of a workspace matrix: rows begin at 16 bytes, what is behind `columns` is never read.
inline int64_t row_floats(int64_t columns) {
  return (columns + 3) / 4 * 4;
}

/// Cuts a workspace into arrays that begin at 16 bytes. Without memory it only counts.
class Carver {
 public:
  explicit Carver(float* workspace) : workspace_(workspace) {}
  float* take(int64_t floats) {
    float* part = workspace_ ? workspace_ + used_ : nullptr;
    used_ += row_floats(floats);
    return part;
  }
  size_t bytes() const { return static_cast<size_t>(used_) * sizeof(float); }

 private:
  float* workspace_;
  int64_t used_ = 0;
};

inline void require_nhwc(const char* kernel, std::initializer_list<const View*> images) {
  for (const View* v : images)
    if (v->layout != Layout::kNhwc)
      throw std::invalid_argument(std::string(CONVOY_DEVICE_NAME "::") + kernel + ": layout " + layout_name(v->layout) +
                                  ", expected nhwc");
}

/// The matrix `elements` behind m.
inline GemmMatrix behind(GemmMatrix m, int64_t elements) {
  m.data = static_cast<unsigned char*>(m.data) + elements * static_cast<int64_t>(dtype_size(m.dtype));
  return m;
}
inline GemmMatrix transposed(GemmMatrix m) {
  m.transposed = !m.transposed;
  return m;
}
/// Pixels x channels of an nhwc image, one matrix per image.
inline GemmMatrix pixel_matrix(const View& v) {
  return {.data = v.data, .pitch = v.pitch, .dtype = v.dtype, .stride = v.image_stride()};
}
inline GemmMatrix float_matrix(float* data, int64_t pitch, int64_t stride) {
  return {.data = data, .pitch = pitch, .dtype = DType::kF32, .stride = stride};
}

/// Where the fp32 sums for image `to` are formed: in itself where it is fp32, else in a workspace.
inline View sums_for(const View& to, Carver& workspace) {
  if (to.dtype == DType::kF32) return to;
  View sums = to;
  sums.dtype = DType::kF32;
  sums.pitch = row_floats(to.c);
  sums.block = 1;
  sums.data = workspace.take(to.n * to.pixels() * sums.pitch);
  return sums;
}

template <class T>
__global__ void __launch_bounds__(kBlockThreads) zero_pads_kernel(Operand<T> to, Rows shape) {
  const int64_t pads = shape.padded - shape.channels, threads = static_cast<int64_t>(gridDim.x) * blockDim.y;
  for (int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y; row < shape.rows; row += threads)
    for (int64_t c = threadIdx.x; c < pads; c += blockDim.x)
      to.data[row * to.pitch + shape.channels + c] = from_float<T>(0.f);
}

/// to = from, and `scale[row] * plus` added where plus.data is not null. Pads of `to` become zero.
template <class T>
__global__ void __launch_bounds__(kBlockThreads)
    store_sums_kernel(Operand<const float> from, const float* __restrict__ scale, Operand<const T> plus, Operand<T> to,
                      Rows shape) {
  const int64_t rows = static_cast<int64_t>(gridDim.x) * blockDim.y, columns = gridDim.y * blockDim.x;
  for (int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y; row < shape.rows; row += rows)
    for (int64_t c = blockIdx.y * blockDim.x + threadIdx.x; c < shape.padded; c += columns) {
      float value = 0;
      if (c < shape.channels) {
        value = from.data[row * from.pitch + c];
        if (plus.data) value += scale[row] * to_float(plus.data[row * plus.pitch + c]);
      }
      to.data[row * to.pitch + c] = from_float<T>(value);
    }
}

/// Makes image `to` of its sums: converts them, adds scale (a number per pixel) times `plus` (of the dtype of `to`)
/// where that is not null, and sets the pads to zero.
inline void store_sums(cudaStream_t stream, const View& sums, const View& to, const float* scale = nullptr,
                       const View* plus = nullptr) {
  const Rows shape = pixel_rows(to);
  dispatch("attention", to.dtype, false, [&]<class T>(Element<T>, auto) {
    if (sums.data == to.data && !plus) {
      if (shape.padded == shape.channels) return;
      const dim3 block(8, kBlockThreads / 8);
      launch({grid_extent(ceil_div(shape.rows, block.y), kMostRowBlocks), block, 0, stream}, zero_pads_kernel<T>,
             operand<T>(to), shape);
      return;
    }
    const Geometry g = geometry(shape, 1, kBlockThreads, kMostRowBlocks, kMostColumnBlocks);
    const Operand<const T> added = plus ? operand<const T>(*plus) : Operand<const T>{nullptr, 0};
    launch({g.grid, g.block, 0, stream}, store_sums_kernel<T>, operand<const float>(sums), scale, added, operand<T>(to),
           shape);
  });
}

/// A product over the pixels of each image: to(r, c) = sum over p of a(p, r) * b(p, c). Pixels are cut into parts so
/// that few rows and columns still fill a GPU; the cut depends on the sizes only.
struct PixelProduct {
  int64_t images, rows, columns, pixels, pitch, length, parts;

  PixelProduct(int64_t n, int64_t r, int64_t c, int64_t p)
      : images(n), rows(r), columns(c), pixels(p), pitch(row_floats(c)) {
    constexpr int64_t kTile = 64, kBlocks = 264, kShortest = 128;
    const int64_t tiles = n * ceil_div(r, kTile) * ceil_div(c, kTile);
    const int64_t most = std::clamp<int64_t>(kBlocks / std::max<int64_t>(tiles, 1), 1, ceil_div(p, kShortest));
    length = ceil_div(ceil_div(p, most), 16) * 16;
    parts = ceil_div(p, length);
  }
  int64_t result_floats() const { return images * rows * pitch; }
  int64_t partial_floats() const { return parts > 1 ? parts * result_floats() : 0; }
};

template <class T>
__global__ void __launch_bounds__(kBlockThreads)
    merge_products_kernel(const T* __restrict__ partial, PixelProduct product, T* __restrict__ to) {
  const int64_t pitch = product.pitch, matrix = product.rows * pitch;
  const int64_t total = product.images * product.rows, rows = static_cast<int64_t>(gridDim.x) * blockDim.y;
  for (int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y; row < total; row += rows) {
    const int64_t n = row / product.rows, r = row - n * product.rows;
    for (int64_t c = threadIdx.x; c < product.columns; c += blockDim.x) {
      double sum = 0;
      for (int64_t part = 0; part < product.parts; ++part)
        sum += partial[(n * product.parts + part) * matrix + r * pitch + c];
      to[row * pitch + c] = static_cast<T>(sum);
    }
  }
}

/// to[n][r][pitch] of the product; a and b are pixels x rows and pixels x columns.
inline void multiply_pixels(cudaStream_t stream, const PixelProduct& p, const GemmMatrix& a, const GemmMatrix& b,
                            float* to, float* partial) {
  const int64_t matrix = p.rows * p.pitch;
  if (p.parts == 1)
    return gemm(stream, {p.rows, p.columns, p.pixels, p.images}, 1, transposed(a), b, 0,
                float_matrix(to, p.pitch, matrix));
  const int64_t whole = p.pixels / p.length, rest = p.pixels - whole * p.length;
  for (int64_t n = 0; n < p.images; ++n) {
    GemmMatrix left = transposed(behind(a, n * a.stride)), right = behind(b, n * b.stride);
    left.stride = p.length * a.pitch;
    right.stride = p.length * b.pitch;
    const GemmMatrix result = float_matrix(partial + n * p.parts * matrix, p.pitch, matrix);
    gemm(stream, {p.rows, p.columns, p.length, whole}, 1, left, right, 0, result);
    if (rest > 0)
      gemm(stream, {p.rows, p.columns, rest, 1}, 1, behind(left, whole * left.stride),
           behind(right, whole * right.stride), 0, behind(result, whole * matrix));
  }
  const dim3 block(kWarp, kRowsOfBlock);
  launch({grid_extent(ceil_div(p.images * p.rows, kRowsOfBlock), kMostRowBlocks), block, 0, stream},
         merge_products_kernel<float>, partial, p, to);
}

/// What op makes of one value per thread, for all threads of a block of whole warps.
template <class T, class Op>
__device__ T block_all(T value, const Op& op) {
  CONVOY_SHARED(T[kWarp], of_warp);
  const int thread = threadIdx.y * blockDim.x + threadIdx.x, warps = blockDim.x * blockDim.y / kWarp;
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) value = op(value, __shfl_xor_sync(~0u, value, step));
  __syncthreads();  // what an earlier call left has been read
  if (thread % kWarp == 0) of_warp[thread / kWarp] = value;
  __syncthreads();
  value = of_warp[0];
  for (int warp = 1; warp < warps; ++warp) value = op(value, of_warp[warp]);
  return value;
}

template <class T>
__device__ T warp_all_sum(T value) {
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) value += __shfl_xor_sync(~0u, value, step);
  return value;
}

/// e^x, the share of an energy x below the largest one; 0 below 1e-30 as on the CPU. NaN stays NaN.
__device__ inline float weight_of(float x) {
  return x < -69.f ? 0.f : expf(x);
}

}  // namespace convoy::CONVOY_DEVICE
