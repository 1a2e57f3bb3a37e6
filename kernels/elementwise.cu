// Pointwise arithmetic and activations.
// Bytes: every operand once; FLOPs: one or two per element, about 10 for the sigmoid. Bound by memory: on an H100
// (3.35 TB/s) an fp32 add of 100 M elements should take 0.36 ms.
// Numerics: storage fp32, fp16 or bf16; arithmetic in fp32, one rounding at the store. Deterministic.
// An output may be an operand of the same call: each element is read before it is written, by the same thread.
#include "kernels/elementwise.h"

#include "kernels/cuda_common.h"

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

}  // namespace convoy::CONVOY_DEVICE
