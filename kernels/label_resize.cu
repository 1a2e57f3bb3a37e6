// Labels resized as numbers.
// Bytes: y once, the labels once from memory: a microsecond for what losses resize labels to. FLOPs: about 10 an
// element, the positions in fp64.
// Numerics: the CPU twin's roundings in its order, without fused operations: the result is truncated, so that the last
// bit counts.
#include "kernels/label_resize.h"

#include "kernels/cuda_common.h"

namespace convoy::CONVOY_DEVICE {
namespace {

struct Mix {
  int64_t index, next;
  float weight;  // of the next pixel
};

struct LabelAxis {
  int64_t in, out;
  float scale;

  __device__ Mix at(int64_t o) const {
    const double position = static_cast<double>(scale) * static_cast<double>(o);
    const auto whole = static_cast<int64_t>(position);
    const int64_t index = whole < in - 1 ? whole : in - 1;
    return {index, index + 1 < in ? index + 1 : in - 1, static_cast<float>(position - static_cast<double>(index))};
  }
};

LabelAxis label_axis(int64_t in, int64_t out) {
  return {in, out, out > 1 ? static_cast<float>(in - 1) / static_cast<float>(out - 1) : 0.f};
}

__device__ float mixed(float a, float b, float weight) {
  return __fadd_rn(__fmul_rn(1.f - weight, a), __fmul_rn(weight, b));
}

// Grid (columns, rows, images).
__global__ void __launch_bounds__(kBlockThreads)
    resize_kernel(const int32_t* __restrict__ labels, int32_t* __restrict__ y, int64_t images, LabelAxis rows,
                  LabelAxis columns) {
  const int64_t w = static_cast<int64_t>(blockIdx.x) * kBlockThreads + threadIdx.x;
  if (w >= columns.out) return;
  const Mix column = columns.at(w);
  for (int64_t h = blockIdx.y; h < rows.out; h += gridDim.y) {
    const Mix row = rows.at(h);
    for (int64_t n = blockIdx.z; n < images; n += gridDim.z) {
      const auto across = [&](int64_t from) {
        const int32_t* line = labels + (n * rows.in + from) * columns.in;
        return mixed(static_cast<float>(line[column.index]), static_cast<float>(line[column.next]), column.weight);
      };
      y[(n * rows.out + h) * columns.out + w] =
          static_cast<int32_t>(mixed(across(row.index), across(row.next), row.weight));
    }
  }
}

}  // namespace

void label_resize(cudaStream_t stream, const View& labels, const View& y) {
  if (labels.dtype != DType::kI32 || y.dtype != DType::kI32 || labels.layout != Layout::kNchw ||
      y.layout != Layout::kNchw || labels.n != y.n)
    throw std::invalid_argument(CONVOY_DEVICE_NAME "::label_resize: plain i32 labels (N,H,W) are expected");
  // A plain (N,H,W) array is a view with n, c, h as its extents.
  const LabelAxis rows = label_axis(labels.c, y.c), columns = label_axis(labels.h, y.h);
  const auto most = [](int64_t extent) { return static_cast<unsigned>(std::min<int64_t>(extent, 65535)); };
  const dim3 grid(static_cast<unsigned>(ceil_div(y.h, kBlockThreads)), most(y.c), most(y.n));
  launch({grid, kBlockThreads, 0, stream}, resize_kernel, labels.i32(), y.i32(), y.n, rows, columns);
}

}  // namespace convoy::CONVOY_DEVICE
