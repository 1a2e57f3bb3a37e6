// Softmax and its logarithm over the channels of nhwc pixels, or over rows, which are the same thing: rows of
// `channels` elements, `pitch` apart.
// A row is the work of 1 to 32 neighbouring threads of a warp, which merge by shuffles.
// Bytes: x is read once from memory and y written once; the further two passes over a row find it in the L1 cache.
// Backward reads dy and y and writes dx. FLOPs: about 25 per element. Bound by memory: a bf16 tensor of 100 M elements
// should take 0.12 ms forward and 0.18 ms backward on an H100 (3.35 TB/s).
// Numerics: storage fp32, fp16 or bf16, arithmetic in fp32 with the accurate exponential, the maximum subtracted first.
// Every thread sums its own channels, threads are merged by a tree. Deterministic.
#include "kernels/softmax.h"

#include "kernels/cuda_row_groups.h"

namespace convoy::CONVOY_DEVICE {
namespace {

template <class T, int kLanes>
__global__ void __launch_bounds__(kBlockThreads)
    forward_kernel(Operand<const T> x, Operand<T> y, Rows shape, bool log) {
  const int64_t step = static_cast<int64_t>(blockDim.x) * kLanes, start = threadIdx.x * kLanes;
  for_each_row(shape.rows, [&](int64_t row, bool active) {
    const int64_t end = active ? shape.channels : 0;
    float high = -INFINITY;
    for (int64_t c = start; c < end; c += step) {
      float value[kLanes];
      load_lanes<kLanes>(x, shape, row, c, value);
#pragma unroll
      for (int j = 0; j < kLanes; ++j)
        if (c + j < shape.channels && value[j] > high) high = value[j];
    }
    high = group_max(high);
    float sum = 0.f;
    for (int64_t c = start; c < end; c += step) {
      float value[kLanes];
      load_lanes<kLanes>(x, shape, row, c, value);
#pragma unroll
      for (int j = 0; j < kLanes; ++j) sum += c + j < shape.channels ? expf(value[j] - high) : 0.f;
    }
    sum = group_sum(sum);
    if (!active) return;
    const float shift = log ? high + logf(sum) : high, factor = 1.f / sum;
    for (int64_t c = start; c < shape.padded; c += step) {
      float value[kLanes];
      load_lanes<kLanes>(x, shape, row, c, value);
#pragma unroll
      for (int j = 0; j < kLanes; ++j) value[j] = log ? value[j] - shift : expf(value[j] - shift) * factor;
      store_lanes<kLanes>(y, shape, row, c, value);
    }
  });
}

template <class T, int kLanes>
__global__ void __launch_bounds__(kBlockThreads)
    backward_kernel(Operand<const T> dy, Operand<const T> y, Operand<T> dx, Rows shape, bool log) {
  const int64_t step = static_cast<int64_t>(blockDim.x) * kLanes, start = threadIdx.x * kLanes;
  for_each_row(shape.rows, [&](int64_t row, bool active) {
    const int64_t end = active ? shape.channels : 0;
    float sum = 0.f;
    for (int64_t c = start; c < end; c += step) {
      float g[kLanes], out[kLanes];
      load_lanes<kLanes>(dy, shape, row, c, g);
      if (!log) load_lanes<kLanes>(y, shape, row, c, out);
#pragma unroll
      for (int j = 0; j < kLanes; ++j) sum += log ? g[j] : g[j] * out[j];
    }
    sum = group_sum(sum);
    if (!active) return;
    for (int64_t c = start; c < shape.padded; c += step) {
      float g[kLanes], out[kLanes];
      load_lanes<kLanes>(dy, shape, row, c, g);
      load_lanes<kLanes>(y, shape, row, c, out);
#pragma unroll
      for (int j = 0; j < kLanes; ++j) g[j] = log ? g[j] - expf(out[j]) * sum : out[j] * (g[j] - sum);
      store_lanes<kLanes>(dx, shape, row, c, g);
    }
  });
}

template <class T>
Operand<T> row_operand(const View& v, const Rows& shape) {
  return {static_cast<T*>(v.data),
          shape.rows == v.n * v.pixels() && v.layout == Layout::kNhwc ? v.pitch : shape.padded};
}

// Plain arrays have `length` elements a row.
Rows plain_rows(const char* kernel, std::initializer_list<const View*> views, int64_t rows, int64_t length) {
  for (const View* v : views)
    if (v->layout != Layout::kNchw || v->pitch != v->c || v->dtype != (*views.begin())->dtype ||
        v->count() != rows * length)
      throw std::invalid_argument(std::string(CONVOY_DEVICE_NAME "::") + kernel +
                                  ": dense plain arrays of rows x length elements of one dtype are expected");
  return {rows, length, length};
}

bool row_vectors_fit(std::initializer_list<const View*> views, const Rows& shape) {
  bool fit = shape.rows == 1 || shape.padded * static_cast<int64_t>(dtype_size((*views.begin())->dtype)) % 16 == 0;
  for (const View* v : views) fit &= reinterpret_cast<uintptr_t>(v->data) % 16 == 0;
  return fit;
}

void forward(const char* kernel, cudaStream_t stream, const View& x, const Rows& shape, bool vectors, bool log,
             const View& y) {
  if (shape.rows == 0) return;
  dispatch(kernel, y.dtype, vectors, [&]<class T, int kLanes>(Element<T>, std::integral_constant<int, kLanes>) {
    const Geometry g = row_geometry(shape, kLanes);
    launch({g.grid, g.block, 0, stream}, forward_kernel<T, kLanes>, row_operand<const T>(x, shape),
           row_operand<T>(y, shape), shape, log);
  });
}

void backward(const char* kernel, cudaStream_t stream, const View& dy, const View& y, const Rows& shape, bool vectors,
              bool log, const View& dx) {
  if (shape.rows == 0) return;
  dispatch(kernel, y.dtype, vectors, [&]<class T, int kLanes>(Element<T>, std::integral_constant<int, kLanes>) {
    const Geometry g = row_geometry(shape, kLanes);
    launch({g.grid, g.block, 0, stream}, backward_kernel<T, kLanes>, row_operand<const T>(dy, shape),
           row_operand<const T>(y, shape), row_operand<T>(dx, shape), shape, log);
  });
}

}  // namespace

void softmax_channels(cudaStream_t stream, const View& x, bool log, const View& y) {
  check_operands("softmax_channels", {&x, &y}, true);
  forward("softmax_channels", stream, x, pixel_rows(y), vectors_fit({&x, &y}, y.n * y.pixels()), log, y);
}
void softmax_channels_backward(cudaStream_t stream, const View& dy, const View& y, bool log, const View& dx) {
  check_operands("softmax_channels_backward", {&dy, &y, &dx}, true);
  const bool vectors = vectors_fit({&dy, &y, &dx}, y.n * y.pixels());
  backward("softmax_channels_backward", stream, dy, y, pixel_rows(y), vectors, log, dx);
}
void softmax_rows(cudaStream_t stream, const View& x, int64_t rows, int64_t length, bool log, const View& y) {
  const Rows shape = plain_rows("softmax_rows", {&x, &y}, rows, length);
  forward("softmax_rows", stream, x, shape, row_vectors_fit({&x, &y}, shape), log, y);
}
void softmax_rows_backward(cudaStream_t stream, const View& dy, const View& y, int64_t rows, int64_t length, bool log,
                           const View& dx) {
  const Rows shape = plain_rows("softmax_rows_backward", {&dy, &y, &dx}, rows, length);
  backward("softmax_rows_backward", stream, dy, y, shape, row_vectors_fit({&dy, &y, &dx}, shape), log, dx);
}

}  // namespace convoy::CONVOY_DEVICE
