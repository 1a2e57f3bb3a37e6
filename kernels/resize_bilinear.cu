// Bilinear resizing of nhwc images and its gradient in gather form.
// Bytes: forward: y once, x once from memory and four times from cache; backward: dx once, dy once from memory and four
// times from cache (every output pixel lies between four source pixels, each of which reads it). Bound by memory: on
// an H100 (3.35 TB/s) writing a bf16 tensor of 100 M elements should take 0.06 ms plus the read of x.
// FLOPs: forward about 8 per element of y, backward about 10 per element of dy and reader.
// Numerics: storage fp32, fp16 or bf16, arithmetic in fp32. Coordinates are formed without fused operations, so that
// both directions and all devices agree on them. Backward sums in order of rows, then columns: no atomics,
// deterministic.
#include "kernels/resize_bilinear.h"

#include "kernels/cuda_common.h"
#include "kernels/cuda_resize_axis.h"

namespace convoy::CONVOY_DEVICE {
namespace {

constexpr int kTileThreads = 32;  // most threads of a block along the channels
constexpr int64_t kMostGrid = 65535;

// Both kernels: grid (columns, rows, images) and block (channels, columns) of the tensor that they write.
template <class T, int kLanes>
__global__ void __launch_bounds__(kBlockThreads)
    forward_kernel(Operand<const T> x, Operand<T> y, Rows shape, int64_t images, Axis rows, Axis columns) {
  const int64_t w = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y, step = blockDim.x * kLanes;
  if (w >= columns.out) return;
  const Source column = columns.source(w);
  const float left = 1.f - column.weight;
  for (int64_t h = blockIdx.y; h < rows.out; h += gridDim.y) {
    const Source row = rows.source(h);
    const float top = 1.f - row.weight;
    for (int64_t n = blockIdx.z; n < images; n += gridDim.z) {
      const int64_t upper = (n * rows.in + row.low) * columns.in, lower = (n * rows.in + row.high) * columns.in;
      for (int64_t c = threadIdx.x * kLanes; c < shape.padded; c += step) {
        float value[kLanes], low[kLanes], high[kLanes];
        load_lanes<kLanes>(x, shape, upper + column.low, c, low);
        load_lanes<kLanes>(x, shape, upper + column.high, c, high);
#pragma unroll
        for (int j = 0; j < kLanes; ++j) value[j] = top * (left * low[j] + column.weight * high[j]);
        load_lanes<kLanes>(x, shape, lower + column.low, c, low);
        load_lanes<kLanes>(x, shape, lower + column.high, c, high);
#pragma unroll
        for (int j = 0; j < kLanes; ++j) value[j] += row.weight * (left * low[j] + column.weight * high[j]);
        store_lanes<kLanes>(y, shape, (n * rows.out + h) * columns.out + w, c, value);
      }
    }
  }
}

template <class T, int kLanes>
__global__ void __launch_bounds__(kBlockThreads)
    backward_kernel(Operand<const T> dy, Operand<T> dx, Rows shape, int64_t images, Axis rows, Axis columns) {
  const int64_t w = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y, step = blockDim.x * kLanes;
  if (w >= columns.in) return;
  const Range across = columns.readers(w);
  for (int64_t h = blockIdx.y; h < rows.in; h += gridDim.y) {
    const Range down = rows.readers(h);
    for (int64_t n = blockIdx.z; n < images; n += gridDim.z) {
      for (int64_t c = threadIdx.x * kLanes; c < shape.padded; c += step) {
        float sum[kLanes] = {};
        for (int64_t oh = down.begin; oh < down.end; ++oh) {
          const float row_weight = rows.weight_of(h, oh);
          for (int64_t ow = across.begin; ow < across.end; ++ow) {
            const float weight = row_weight * columns.weight_of(w, ow);
            float g[kLanes];
            load_lanes<kLanes>(dy, shape, (n * rows.out + oh) * columns.out + ow, c, g);
#pragma unroll
            for (int j = 0; j < kLanes; ++j) sum[j] += weight * g[j];
          }
        }
        store_lanes<kLanes>(dx, shape, (n * rows.in + h) * columns.in + w, c, sum);
      }
    }
  }
}

// The geometry for a kernel that writes `to`.
Geometry image_geometry(const View& to, int lanes) {
  Geometry g = geometry({to.w, to.c, to.blocks() * to.block}, lanes, kTileThreads, INT32_MAX, 1);
  g.grid.y = static_cast<unsigned>(std::min(to.h, kMostGrid));
  g.grid.z = static_cast<unsigned>(std::min(to.n, kMostGrid));
  return g;
}

void check(const char* kernel, const View& from, const View& to) {
  check_operands(kernel, {&from, &to}, true);
  if (from.n != to.n)
    throw std::invalid_argument(std::string(CONVOY_DEVICE_NAME "::") + kernel + ": numbers of images differ");
}

}  // namespace

void resize_bilinear(cudaStream_t stream, const View& x, const ResizeParams& params, const View& y) {
  check("resize_bilinear", x, y);
  const Axis rows = make_axis(x.h, y.h, params.align_corners, params.scale_h);
  const Axis columns = make_axis(x.w, y.w, params.align_corners, params.scale_w);
  dispatch("resize_bilinear", y.dtype, vectors_fit({&x, &y}, 2),
           [&]<class T, int kLanes>(Element<T>, std::integral_constant<int, kLanes>) {
             const Geometry g = image_geometry(y, kLanes);
             launch({g.grid, g.block, 0, stream}, forward_kernel<T, kLanes>, operand<const T>(x), operand<T>(y),
                    pixel_rows(y), y.n, rows, columns);
           });
}

void resize_bilinear_backward(cudaStream_t stream, const View& dy, const ResizeParams& params, const View& dx) {
  check("resize_bilinear_backward", dy, dx);
  const Axis rows = make_axis(dx.h, dy.h, params.align_corners, params.scale_h);
  const Axis columns = make_axis(dx.w, dy.w, params.align_corners, params.scale_w);
  dispatch("resize_bilinear_backward", dx.dtype, vectors_fit({&dy, &dx}, 2),
           [&]<class T, int kLanes>(Element<T>, std::integral_constant<int, kLanes>) {
             const Geometry g = image_geometry(dx, kLanes);
             launch({g.grid, g.block, 0, stream}, backward_kernel<T, kLanes>, operand<const T>(dy), operand<T>(dx),
                    pixel_rows(dx), dx.n, rows, columns);
           });
}

}  // namespace convoy::CONVOY_DEVICE
