// Channel attention by matrix products.
// FLOPs: forward 4 N HW C^2, backward 8 N HW C^2. Bytes: the images twice, C x C weights a few times. One 97 x 97 image
// of 512 channels: 9.9 GFLOP forward, 0.15 ms at the 67 TFLOP/s of an H100's fp32 units, and 60 MB of fp32 or 0.02 ms;
// bound by arithmetic.
// Numerics: energies summed in fp32 within parts of the pixels, the parts in double in order; weights of the forward
// pass are fp32 whatever dtype they are stored in; sums of a softmax in fp32 per thread, merged in a fixed order.
#include "kernels/attention.h"
#include "kernels/cuda_attention.h"

namespace convoy::CONVOY_DEVICE {
namespace {

constexpr int kColumns = 32, kHeight = 8;  // threads of a block over the channels and over the rows of a column

struct Square {
  float* data;
  int64_t size, pitch;
};

/// Reduces over threadIdx.y; all threads of a column get the result.
template <class Op>
__device__ float column_all(float value, float (&shared)[kHeight][kColumns], const Op& op) {
  __syncthreads();
  shared[threadIdx.y][threadIdx.x] = value;
  __syncthreads();
  value = shared[0][threadIdx.x];
  for (int y = 1; y < kHeight; ++y) value = op(value, shared[y][threadIdx.x]);
  return value;
}

// energies(r, c) becomes softmax over r of -energies(r, c), which weights gets, too. Grid (tiles of channels, images).
template <class T>
__global__ void __launch_bounds__(kColumns* kHeight)
    column_softmax_kernel(Square energies, Operand<T> weights, int64_t padded, int64_t images) {
  CONVOY_SHARED(float[kHeight][kColumns], shared);
  const int64_t c = static_cast<int64_t>(blockIdx.x) * kColumns + threadIdx.x, size = energies.size;
  for (int64_t n = blockIdx.y; n < images; n += gridDim.y) {
    float* column = energies.data + n * size * energies.pitch + c;
    const int64_t rows = c < size ? size : 0;
    float low = INFINITY, total = 0;
    for (int64_t r = threadIdx.y; r < rows; r += kHeight) low = fminf(low, column[r * energies.pitch]);
    low = column_all(low, shared, [](float a, float b) { return fminf(a, b); });
    for (int64_t r = threadIdx.y; r < rows; r += kHeight) total += weight_of(low - column[r * energies.pitch]);
    total = column_all(total, shared, [](float a, float b) { return a + b; });
    const float factor = 1 / total;
    for (int64_t r = threadIdx.y; c < padded && r < size; r += kHeight) {
      float weight = 0;
      if (c < size) {
        weight = weight_of(low - column[r * energies.pitch]) * factor;
        column[r * energies.pitch] = weight;
      }
      weights.data[(n * size + r) * weights.pitch + c] = from_float<T>(weight);
    }
  }
}

// gradient(r, c), of the weights, becomes that of the energies.
template <class T>
__global__ void __launch_bounds__(kColumns* kHeight)
    column_softmax_backward_kernel(Operand<const T> weights, Square gradient, int64_t images) {
  CONVOY_SHARED(float[kHeight][kColumns], shared);
  const int64_t c = static_cast<int64_t>(blockIdx.x) * kColumns + threadIdx.x, size = gradient.size;
  for (int64_t n = blockIdx.y; n < images; n += gridDim.y) {
    const T* weight = weights.data + n * size * weights.pitch + c;
    float* column = gradient.data + n * size * gradient.pitch + c;
    const int64_t rows = c < size ? size : 0;
    float mean = 0;
    for (int64_t r = threadIdx.y; r < rows; r += kHeight)
      mean += to_float(weight[r * weights.pitch]) * column[r * gradient.pitch];
    mean = column_all(mean, shared, [](float a, float b) { return a + b; });
    for (int64_t r = threadIdx.y; r < rows; r += kHeight)
      column[r * gradient.pitch] = to_float(weight[r * weights.pitch]) * (mean - column[r * gradient.pitch]);
  }
}

// to(r, c) = from(r, c) + from(c, r). Grid (tiles of columns, tiles of rows, images).
template <class T>
__global__ void __launch_bounds__(kColumns* kHeight, kRoomyBlocks)
    add_transposed_kernel(const T* __restrict__ from, Square to, int64_t images) {
  CONVOY_SHARED(float[kColumns][kColumns + 1], tile);
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kColumns, row = static_cast<int64_t>(blockIdx.y) * kColumns;
  for (int64_t n = blockIdx.z; n < images; n += gridDim.z) {
    const int64_t base = n * to.size * to.pitch;
    __syncthreads();
    for (int k = threadIdx.y; k < kColumns; k += kHeight)
      if (column + k < to.size && row + threadIdx.x < to.size)
        tile[k][threadIdx.x] = from[base + (column + k) * to.pitch + row + threadIdx.x];
    __syncthreads();
    for (int k = threadIdx.y; k < kColumns; k += kHeight)
      if (row + k < to.size && column + threadIdx.x < to.size) {
        const int64_t at = base + (row + k) * to.pitch + column + threadIdx.x;
        to.data[at] = from[at] + tile[threadIdx.x][k];
      }
  }
}

struct ForwardSpace {
  PixelProduct product;
  float *energies, *partial;
  View sums;
  size_t bytes;
  ForwardSpace(const View& x, const View& y, float* workspace) : product(x.n, x.c, x.c, x.pixels()) {
    Carver carver(workspace);
    energies = carver.take(product.result_floats());
    partial = carver.take(product.partial_floats());
    sums = sums_for(y, carver);
    bytes = carver.bytes();
  }
};

struct BackwardSpace {
  PixelProduct product;
  float *gradient, *both, *partial;
  View sums;
  size_t bytes;
  BackwardSpace(const View& x, const View& dx, float* workspace) : product(x.n, x.c, x.c, x.pixels()) {
    Carver carver(workspace);
    gradient = carver.take(product.result_floats());
    both = carver.take(product.result_floats());
    partial = carver.take(product.partial_floats());
    sums = sums_for(dx, carver);
    bytes = carver.bytes();
  }
};

}  // namespace

size_t channel_attention_cuda_workspace_bytes(const View& x, const View& y) {
  return ForwardSpace(x, y, nullptr).bytes;
}

void channel_attention(cudaStream_t stream, const View& x, const View& y, const View& weights, float* workspace) {
  require_nhwc("channel_attention", {&x, &y, &weights});
  const ForwardSpace s(x, y, workspace);
  multiply_pixels(stream, s.product, pixel_matrix(x), pixel_matrix(x), s.energies, s.partial);
  const Square energies{s.energies, x.c, s.product.pitch};
  const int64_t padded = weights.blocks() * weights.block;
  const dim3 grid(grid_extent(ceil_div(padded, kColumns), INT32_MAX), grid_extent(x.n, kMostGridPlanes));
  dispatch("channel_attention", weights.dtype, false, [&]<class T>(Element<T>, auto) {
    launch({grid, dim3(kColumns, kHeight), 0, stream}, column_softmax_kernel<T>, energies, operand<T>(weights), padded,
           x.n);
  });
  gemm(stream, {x.pixels(), x.c, x.c, x.n}, 1, pixel_matrix(x),
       float_matrix(s.energies, energies.pitch, x.c * energies.pitch), 0, pixel_matrix(s.sums));
  store_sums(stream, s.sums, y);
}

size_t channel_attention_backward_cuda_workspace_bytes(const View& x, const View& dx) {
  return BackwardSpace(x, dx, nullptr).bytes;
}

void channel_attention_backward(cudaStream_t stream, const View& dy, const View& x, const View& weights, const View& dx,
                                float* workspace) {
  require_nhwc("channel_attention_backward", {&dy, &x, &weights, &dx});
  const BackwardSpace s(x, dx, workspace);
  multiply_pixels(stream, s.product, pixel_matrix(x), pixel_matrix(dy), s.gradient, s.partial);
  const Square gradient{s.gradient, x.c, s.product.pitch}, both{s.both, x.c, s.product.pitch};
  const unsigned tiles = grid_extent(ceil_div(x.c, kColumns), kMostGridPlanes),
                 images = grid_extent(x.n, kMostGridPlanes);
  const dim3 block(kColumns, kHeight);
  dispatch("channel_attention_backward", weights.dtype, false, [&]<class T>(Element<T>, auto) {
    launch({dim3(tiles, images), block, 0, stream}, column_softmax_backward_kernel<T>, operand<const T>(weights),
           gradient, x.n);
  });
  launch({dim3(tiles, tiles, images), block, 0, stream}, add_transposed_kernel<float>, s.gradient, both, x.n);
  const GemmSize size{x.pixels(), x.c, x.c, x.n};
  gemm(stream, size, 1, pixel_matrix(dy), transposed(pixel_matrix(weights)), 0, pixel_matrix(s.sums));
  gemm(stream, size, 1, pixel_matrix(x), float_matrix(s.both, both.pitch, x.c * both.pitch), 1, pixel_matrix(s.sums));
  store_sums(stream, s.sums, dx);
}

}  // namespace convoy::CONVOY_DEVICE
