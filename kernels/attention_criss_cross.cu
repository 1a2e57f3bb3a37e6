// Criss-cross attention by matrix products: an image row is one of W x C by C x W, an image column one of H x C by C x
// H. The weights within columns lie in a workspace of their own, as (image, column, row, attended row) with zeros on
// the diagonal, since the pixel itself belongs to the row.
// FLOPs: 2 N H W (H+W) C each. Bytes: operands twice. One 97 x 97 image of 512 channels: 1.9 GFLOP, 0.03 ms at the
// 67 TFLOP/s of an H100's fp32 units, and 70 MB of fp32, 0.02 ms; bound by arithmetic, by launches where images are
// small: columns take a launch per image.
// Numerics: fp32 sums, rows before columns, each element by one thread.
#include "kernels/attention.h"
#include "kernels/cuda_attention.h"

namespace convoy::CONVOY_DEVICE {
namespace {

constexpr int kAcross = 32, kPixels = 8;  // threads of a block over attended rows and over columns of the image

struct Extents {
  int64_t images, height, width, pitch;  // pitch of a row of the columns' weights
};

/// The weights of a pixel's column among its channels of w: attended row r at W + r, or one less behind the pixel.
__device__ inline int64_t column_channel(const Extents& e, int64_t y, int64_t r) {
  return e.width + r - (r > y ? 1 : 0);
}

// Grid (columns, rows, images). columns[n][x][y][r] = w, or the other way round.
template <class T>
__global__ void __launch_bounds__(kAcross* kPixels)
    gather_columns_kernel(Operand<const T> w, Extents e, float* __restrict__ columns) {
  const int64_t x = static_cast<int64_t>(blockIdx.x) * kPixels + threadIdx.y;
  if (x >= e.width) return;
  for (int64_t n = blockIdx.z; n < e.images; n += gridDim.z)
    for (int64_t y = blockIdx.y; y < e.height; y += gridDim.y) {
      const T* pixel = w.data + ((n * e.height + y) * e.width + x) * w.pitch;
      float* to = columns + ((n * e.width + x) * e.height + y) * e.pitch;
      for (int64_t r = threadIdx.x; r < e.height; r += kAcross)
        to[r] = r == y ? 0.f : to_float(pixel[column_channel(e, y, r)]);
    }
}
template <class T>
__global__ void __launch_bounds__(kAcross* kPixels)
    scatter_columns_kernel(const float* __restrict__ columns, Extents e, Operand<T> w, int64_t channels,
                           int64_t padded) {
  const int64_t x = static_cast<int64_t>(blockIdx.x) * kPixels + threadIdx.y;
  if (x >= e.width) return;
  for (int64_t n = blockIdx.z; n < e.images; n += gridDim.z)
    for (int64_t y = blockIdx.y; y < e.height; y += gridDim.y) {
      T* pixel = w.data + ((n * e.height + y) * e.width + x) * w.pitch;
      const float* from = columns + ((n * e.width + x) * e.height + y) * e.pitch;
      for (int64_t r = threadIdx.x; r < e.height; r += kAcross)
        if (r != y) pixel[column_channel(e, y, r)] = from_float<T>(from[r]);
      for (int64_t c = channels + threadIdx.x; c < padded; c += kAcross) pixel[c] = from_float<T>(0.f);
    }
}

/// The columns' weights, and the sums of an output image.
struct Space {
  Extents extents;
  float* columns;
  View sums;
  size_t bytes;
  /// Without an output the sums are left out.
  Space(const View& image, const View* output, float* workspace)
      : extents{image.n, image.h, image.w, row_floats(image.h)} {
    Carver carver(workspace);
    columns = carver.take(image.n * image.w * image.h * extents.pitch);
    if (output) sums = sums_for(*output, carver);
    bytes = carver.bytes();
  }
  dim3 grid() const {
    return dim3(grid_extent(ceil_div(extents.width, kPixels), INT32_MAX), grid_extent(extents.height, kMostGridPlanes),
                grid_extent(extents.images, kMostGridPlanes));
  }
  GemmMatrix weights(int64_t n) const {
    const int64_t matrix = extents.height * extents.pitch;
    return float_matrix(columns + n * extents.width * matrix, extents.pitch, matrix);
  }
};

/// Pixels x channels of every row of all images, and of every column of image n.
GemmMatrix rows_of(const View& v) {
  GemmMatrix m = pixel_matrix(v);
  m.stride = v.w * v.pitch;
  return m;
}
GemmMatrix columns_of(const View& v, int64_t n) {
  GemmMatrix m = behind(pixel_matrix(v), n * v.image_stride());
  m.pitch = v.w * v.pitch;
  m.stride = v.pitch;
  return m;
}

/// y(pixel) = sum over attended pixels of w * g, or with `flipped` over the pixels that attend it.
void map(cudaStream_t stream, const char* name, const View& w, const View& g, const View& y, bool flipped,
         float* workspace) {
  require_nhwc(name, {&w, &g, &y});
  const Space s(g, &y, workspace);
  dispatch(name, w.dtype, false, [&]<class T>(Element<T>, auto) {
    launch({s.grid(), dim3(kAcross, kPixels), 0, stream}, gather_columns_kernel<T>, operand<const T>(w), s.extents,
           s.columns);
  });
  const auto turned = [flipped](const GemmMatrix& m) { return flipped ? transposed(m) : m; };
  gemm(stream, {g.w, g.c, g.w, g.n * g.h}, 1, turned(rows_of(w)), rows_of(g), 0, rows_of(s.sums));
  for (int64_t n = 0; n < g.n; ++n)
    gemm(stream, {g.h, g.c, g.h, g.w}, 1, turned(s.weights(n)), columns_of(g, n), 1, columns_of(s.sums, n));
  store_sums(stream, s.sums, y);
}

}  // namespace

size_t criss_cross_cuda_workspace_bytes(const View& image, const View& output) {
  return Space(image, &output, nullptr).bytes;
}

void ca_weight(cudaStream_t stream, const View& t, const View& f, const View& w, float* workspace) {
  require_nhwc("ca_weight", {&t, &f, &w});
  const Space s(t, nullptr, workspace);
  gemm(stream, {t.w, t.w, t.c, t.n * t.h}, 1, rows_of(t), transposed(rows_of(f)), 0, rows_of(w));
  for (int64_t n = 0; n < t.n; ++n)
    gemm(stream, {t.h, t.h, t.c, t.w}, 1, columns_of(t, n), transposed(columns_of(f, n)), 0, s.weights(n));
  dispatch("ca_weight", w.dtype, false, [&]<class T>(Element<T>, auto) {
    launch({s.grid(), dim3(kAcross, kPixels), 0, stream}, scatter_columns_kernel<T>, s.columns, s.extents,
           operand<T>(w), w.c, w.blocks() * w.block);
  });
}

void ca_map(cudaStream_t stream, const View& w, const View& g, const View& y, float* workspace) {
  map(stream, "ca_map", w, g, y, false, workspace);
}

void ca_map_transposed(cudaStream_t stream, const View& w, const View& t, const View& df, float* workspace) {
  map(stream, "ca_map_transposed", w, t, df, true, workspace);
}

}  // namespace convoy::CONVOY_DEVICE
