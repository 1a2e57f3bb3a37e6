// Pointwise arithmetic, activations and channel gates.
// Bytes: every operand once; FLOPs: one or two per element, about 10 for the sigmoid. Bound by memory: on an H100
// (3.35 TB/s) an fp32 add of 100 M elements should take 0.36 ms, a gate's gradient from a bf16 tensor of 100 M elements
// 0.12 ms.
// Numerics: storage fp32, fp16 or bf16; arithmetic in fp32, one rounding at the store; a gate's gradient in fp32 over
// parts of an image, merged in double; dot in double. Deterministic: sums in two launches of fixed order.
// An output may be an operand of the same call: each element is read before it is written, by the same thread.
#include "kernels/elementwise.h"

#include "kernels/cuda_pixel_sums.h"
#include "kernels/cuda_reduce.h"

namespace convoy::CONVOY_DEVICE {
namespace {

struct Add {
  __device__ float operator()(const float (&v)[2]) const { return v[0] + v[1]; }
};
struct Multiply {
  __device__ float operator()(const float (&v)[2]) const { return v[0] * v[1]; }
};
struct Scale {
  float factor;
  __device__ float operator()(const float (&v)[1]) const { return v[0] * factor; }
};
struct ScaleByScalar {
  const float* factor;
  __device__ float operator()(const float (&v)[1]) const { return v[0] * *factor; }
};
struct Activate {
  Activation act;
  __device__ float operator()(const float (&v)[1]) const { return activate(v[0], act); }
};
struct ActivateBackward {
  Activation act;
  __device__ float operator()(const float (&v)[2]) const { return activate_backward(v[0], v[1], act); }
};
struct LeakyRelu {
  float slope;
  __device__ float operator()(const float (&v)[1]) const { return v[0] > 0.f ? v[0] : v[0] * slope; }
};
struct LeakyReluBackward {
  float slope;
  __device__ float operator()(const float (&v)[2]) const { return v[1] > 0.f ? v[0] : v[0] * slope; }
};
struct Hardswish {
  __device__ float operator()(const float (&v)[1]) const {
    return v[0] * activate(v[0] + 3.f, Activation::kRelu6) * (1.f / 6);
  }
};
struct HardswishBackward {
  __device__ float operator()(const float (&v)[2]) const {
    const float slope = v[1] > 3.f ? 1.f : v[1] * (1.f / 3) + 0.5f;
    return v[1] < -3.f ? 0.f : v[0] * slope;
  }
};

template <class T, int kInputs>
struct Inputs {
  Operand<const T> operand[kInputs];
};

template <class T, int kLanes, int kInputs, class Op>
__global__ void __launch_bounds__(kBlockThreads)
    pointwise_kernel(Inputs<T, kInputs> inputs, Operand<T> out, Rows shape, Op op) {
  const int64_t column_step = static_cast<int64_t>(gridDim.y) * blockDim.x * kLanes;
  const int64_t row_step = static_cast<int64_t>(gridDim.x) * blockDim.y;
  for (int64_t c = (static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x) * kLanes; c < shape.padded;
       c += column_step) {
    for (int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y; row < shape.rows; row += row_step) {
      float value[kInputs][kLanes], result[kLanes];
#pragma unroll
      for (int k = 0; k < kInputs; ++k) load_lanes<kLanes>(inputs.operand[k], shape, row, c, value[k]);
#pragma unroll
      for (int j = 0; j < kLanes; ++j) {
        float v[kInputs];
#pragma unroll
        for (int k = 0; k < kInputs; ++k) v[k] = value[k][j];
        result[j] = op(v);
      }
      store_lanes<kLanes>(out, shape, row, c, result);
    }
  }
}

template <class T, int kLanes>
__global__ void __launch_bounds__(kBlockThreads) fill_kernel(Operand<T> y, Rows shape, float value) {
  const int64_t column_step = static_cast<int64_t>(gridDim.y) * blockDim.x * kLanes;
  const int64_t row_step = static_cast<int64_t>(gridDim.x) * blockDim.y;
  float values[kLanes];
#pragma unroll
  for (int j = 0; j < kLanes; ++j) values[j] = value;
  for (int64_t c = (static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x) * kLanes; c < shape.padded;
       c += column_step)
    for (int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y; row < shape.rows; row += row_step)
      store_lanes<kLanes>(y, shape, row, c, values);
}

// y = op(x, gate). Grid (pixels, tiles of channels, images); `shape` is one image's, `gates` that of all gates.
template <class T, int kLanes, class Op>
__global__ void __launch_bounds__(kBlockThreads)
    gate_kernel(Operand<const T> x, Operand<const T> gate, Operand<T> y, Rows shape, Rows gates, Op op) {
  const int64_t column_step = static_cast<int64_t>(gridDim.y) * blockDim.x * kLanes;
  const int64_t row_step = static_cast<int64_t>(gridDim.x) * blockDim.y;
  for (int64_t n = blockIdx.z; n < gates.rows; n += gridDim.z) {
    for (int64_t c = (static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x) * kLanes; c < shape.padded;
         c += column_step) {
      float channel[kLanes];
      load_lanes<kLanes>(gate, gates, n, c, channel);
      for (int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y; row < shape.rows;
           row += row_step) {
        float value[kLanes];
        load_lanes<kLanes>(x, shape, n * shape.rows + row, c, value);
#pragma unroll
        for (int j = 0; j < kLanes; ++j) {
          const float v[2] = {value[j], channel[j]};
          value[j] = op(v);
        }
        store_lanes<kLanes>(y, shape, n * shape.rows + row, c, value);
      }
    }
  }
}

// What a gate's gradient sums.
template <class T>
struct Products {
  Operand<const T> a, b;

  template <int kLanes>
  __device__ const Products& at(const Rows&, int64_t, int64_t) const {
    return *this;
  }
  template <int kLanes>
  __device__ void add(const Rows& shape, int64_t row, int64_t c, float (&sums)[1][kLanes]) const {
    float left[kLanes], right[kLanes];
    load_lanes<kLanes>(a, shape, row, c, left);
    load_lanes<kLanes>(b, shape, row, c, right);
#pragma unroll
    for (int j = 0; j < kLanes; ++j) sums[0][j] += left[j] * right[j];
  }
};
template <class T>
struct StoreGate {
  Operand<T> gate;
  __device__ void operator()(int64_t n, int64_t c, const double (&totals)[1]) const {
    gate.data[n * gate.pitch + c] = from_float<T>(static_cast<float>(totals[0]));
  }
};

constexpr int kDotBlocks = 512;

template <class T>
__global__ void __launch_bounds__(kBlockThreads)
    dot_kernel(const T* __restrict__ a, const T* __restrict__ b, int64_t count, double* __restrict__ partial) {
  double sum = 0;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kBlockThreads + threadIdx.x; i < count;
       i += static_cast<int64_t>(kDotBlocks) * kBlockThreads)
    sum += static_cast<double>(to_float(a[i])) * static_cast<double>(to_float(b[i]));
  sum = block_sum(sum);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kBlockThreads)
    dot_merge_kernel(const double* __restrict__ partial, int blocks, float* __restrict__ result) {
  const double sum = array_sum(partial, blocks);
  if (threadIdx.x == 0) *result = static_cast<float>(sum);
}

// Images of one pitch without pads are one long row, like plain arrays.
Rows shape_of(const View& y, std::initializer_list<const View*> views) {
  bool dense = true;
  for (const View* v : views) dense &= v->pitch == v->c;
  if (dense) return {1, y.count(), y.count()};
  if (y.layout == Layout::kNhwc) return pixel_rows(y);
  return {y.n, y.c * y.pixels(), y.c * y.pixels()};
}

template <class Op>
void pointwise(const char* name, cudaStream_t stream, const View& a, const View* b, const View& y, Op op) {
  const View& second = b ? *b : a;
  check_operands(name, {&y, &a, &second}, false);
  const Rows shape = shape_of(y, {&y, &a, &second});
  if (shape.rows == 0 || shape.channels == 0) return;
  const bool vectors = vectors_fit({&y, &a, &second}, shape.rows);
  dispatch(name, y.dtype, vectors, [&]<class T, int kLanes>(Element<T>, std::integral_constant<int, kLanes>) {
    const Geometry g = geometry(shape, kLanes, kBlockThreads, kMostRowBlocks, kMostColumnBlocks);
    if constexpr (requires(const float(&v)[2]) { op(v); })
      launch({g.grid, g.block, 0, stream}, pointwise_kernel<T, kLanes, 2, Op>,
             Inputs<T, 2>{operand<const T>(a), operand<const T>(second)}, operand<T>(y), shape, op);
    else
      launch({g.grid, g.block, 0, stream}, pointwise_kernel<T, kLanes, 1, Op>, Inputs<T, 1>{operand<const T>(a)},
             operand<T>(y), shape, op);
  });
}

// A gate has the channels of its images and one pixel.
void check_gate(const char* name, const View& x, const View& gate) {
  if (gate.n != x.n || gate.c != x.c || gate.pixels() != 1 || gate.dtype != x.dtype || gate.layout == Layout::kBlocked)
    throw std::invalid_argument(std::string(CONVOY_DEVICE_NAME "::") + name +
                                ": the gate must be (N,C,1,1), nhwc or plain, of the image's dtype");
}

template <class Op>
void per_channel(const char* name, cudaStream_t stream, const View& x, const View& gate, const View& y, Op op) {
  check_operands(name, {&x, &y}, true);
  check_gate(name, x, gate);
  const Rows shape = image_rows(x);
  if (x.count() == 0) return;
  const bool vectors = vectors_fit({&x, &y}, x.n * x.pixels()) && vectors_fit({&gate}, x.n);
  dispatch(name, x.dtype, vectors, [&]<class T, int kLanes>(Element<T>, std::integral_constant<int, kLanes>) {
    const int64_t images = std::min(x.n, kMostGridZ);
    Geometry g = geometry(shape, kLanes, kSumTileThreads, std::max<int64_t>(1, kMostRowBlocks / images), 65535);
    g.grid.z = static_cast<unsigned>(images);
    launch({g.grid, g.block, 0, stream}, gate_kernel<T, kLanes, Op>, operand<const T>(x), operand<const T>(gate),
           operand<T>(y), shape, pixel_rows(gate), op);
  });
}

}  // namespace

void add(cudaStream_t stream, const View& a, const View& b, const View& y) {
  pointwise("add", stream, a, &b, y, Add{});
}
void mul(cudaStream_t stream, const View& a, const View& b, const View& y) {
  pointwise("mul", stream, a, &b, y, Multiply{});
}
void accumulate(cudaStream_t stream, const View& x, const View& y) {
  pointwise("accumulate", stream, x, &y, y, Add{});
}
void scale(cudaStream_t stream, const View& x, float factor, const View& y) {
  pointwise("scale", stream, x, nullptr, y, Scale{factor});
}
void scale_by_scalar(cudaStream_t stream, const View& x, const float* factor, const View& y) {
  pointwise("scale_by_scalar", stream, x, nullptr, y, ScaleByScalar{factor});
}
void activation(cudaStream_t stream, const View& x, Activation act, const View& y) {
  pointwise("activation", stream, x, nullptr, y, Activate{act});
}
void activation_backward(cudaStream_t stream, const View& dy, const View& y, Activation act, const View& dx) {
  pointwise("activation_backward", stream, dy, &y, dx, ActivateBackward{act});
}
void leaky_relu(cudaStream_t stream, const View& x, float slope, const View& y) {
  pointwise("leaky_relu", stream, x, nullptr, y, LeakyRelu{slope});
}
void leaky_relu_backward(cudaStream_t stream, const View& dy, const View& x, float slope, const View& dx) {
  pointwise("leaky_relu_backward", stream, dy, &x, dx, LeakyReluBackward{slope});
}
void hardswish(cudaStream_t stream, const View& x, const View& y) {
  pointwise("hardswish", stream, x, nullptr, y, Hardswish{});
}
void hardswish_backward(cudaStream_t stream, const View& dy, const View& x, const View& dx) {
  pointwise("hardswish_backward", stream, dy, &x, dx, HardswishBackward{});
}

void fill(cudaStream_t stream, const View& y, float value) {
  check_operands("fill", {&y}, false);
  const Rows shape = shape_of(y, {&y});
  if (shape.rows == 0 || shape.channels == 0) return;
  dispatch("fill", y.dtype, vectors_fit({&y}, shape.rows),
           [&]<class T, int kLanes>(Element<T>, std::integral_constant<int, kLanes>) {
             const Geometry g = geometry(shape, kLanes, kBlockThreads, kMostRowBlocks, kMostColumnBlocks);
             launch({g.grid, g.block, 0, stream}, fill_kernel<T, kLanes>, operand<T>(y), shape, value);
           });
}

void add_channel(cudaStream_t stream, const View& x, const View& v, const View& y) {
  per_channel("add_channel", stream, x, v, y, Add{});
}
void mul_channel(cudaStream_t stream, const View& x, const View& gate, const View& y) {
  per_channel("mul_channel", stream, x, gate, y, Multiply{});
}

size_t gate_cuda_workspace_bytes(const View& x) {
  return pixel_sums_bytes(image_rows(x), x.n, 1);
}
void mul_channel_backward_gate(cudaStream_t stream, const View& dy, const View& x, const View& dgate,
                               float* workspace) {
  check_operands("mul_channel_backward_gate", {&dy, &x}, true);
  check_gate("mul_channel_backward_gate", x, dgate);
  if (x.count() == 0) return;
  dispatch("mul_channel_backward_gate", x.dtype, vectors_fit({&dy, &x}, x.n * x.pixels()),
           [&]<class T, int kLanes>(Element<T>, std::integral_constant<int, kLanes>) {
             sum_pixels<kLanes, 1>(stream, image_rows(x), x.n, Products<T>{operand<const T>(dy), operand<const T>(x)},
                                   dgate.blocks() * dgate.block, StoreGate<T>{operand<T>(dgate)}, workspace);
           });
}

size_t dot_cuda_workspace_bytes() {
  return kDotBlocks * sizeof(double);
}
void dot(cudaStream_t stream, const View& a, const View& b, float* result, double* workspace) {
  check_operands("dot", {&a, &b}, false);
  const int64_t count = a.count();
  const int blocks = static_cast<int>(std::clamp<int64_t>(ceil_div(count, kBlockThreads), 1, kDotBlocks));
  dispatch("dot", a.dtype, false, [&]<class T, int kLanes>(Element<T>, std::integral_constant<int, kLanes>) {
    launch({static_cast<unsigned>(blocks), kBlockThreads, 0, stream}, dot_kernel<T>, static_cast<const T*>(a.data),
           static_cast<const T*>(b.data), count, workspace);
  });
  launch({1, kBlockThreads, 0, stream}, dot_merge_kernel, workspace, blocks, result);
}

}  // namespace convoy::CONVOY_DEVICE
