// Matrix products by tiles in shared memory.
// FLOPs: 2 m n k per product, on the fp32 units. Bytes: C once, A once per tile column, B once per tile row; of those
// reads all but the first mostly come from the L2 cache. 4096 x 4096 x 4096 are 137 GFLOP: 2.1 ms at the 67 TFLOP/s
// of an H100, while 0.2 GB of fp32 operands take 0.06 ms; such sizes are bound by arithmetic, thin ones by memory. A
// small C with a large k has few blocks, for k is not shared between them: most of a GPU idles then. Numerics: operands
// converted to fp32, products with fused adds, summed over k in order. Every element of C is computed by one thread, so
// results do not depend on the order of execution.
//
// A block of 256 threads owns a tile of 128 x 128 or 64 x 64 elements of C, a thread 8 x 8 or 4 x 4 of them. Slices of
// kDepth of both operands pass through two buffers: the next one is on its way from memory while this one is used.
#include "kernels/gemm.h"

#include "kernels/cuda_common.h"

namespace convoy::CONVOY_DEVICE {
namespace {

constexpr int kSide = 16;  // threads of a block along either side of its tile
constexpr int kDepth = 16;
constexpr int kQuad = 4;  // elements of one access
constexpr int64_t kMostBatches = 65535;
constexpr int64_t kFullGpu = 264;  // blocks: two for each multiprocessor of an H100

// An operand seen as rows of the tile by k: element (r, k) at data + r*row + k*depth, one of the two steps being 1.
struct Operand2d {
  const void* data;
  DType dtype;
  int64_t row, depth, stride;
  bool vectors;  // quads can be read by one access
};

struct Result {
  void* data;
  DType dtype;
  int64_t pitch, stride;
  bool vectors;
};

template <class T>
__device__ void load_quad(const T* p, bool vectors, int64_t valid, float (&value)[kQuad]) {
  if (vectors && valid >= kQuad) {
    const auto pack = *reinterpret_cast<const Pack<T, kQuad>*>(p);
#pragma unroll
    for (int j = 0; j < kQuad; ++j) value[j] = to_float(pack.lane[j]);
  } else {
#pragma unroll
    for (int j = 0; j < kQuad; ++j) value[j] = j < valid ? to_float(p[j]) : 0.f;
  }
}

__device__ void load_quad(const Operand2d& x, int64_t at, int64_t valid, float (&value)[kQuad]) {
  switch (x.dtype) {
    case DType::kF16:
      return load_quad(static_cast<const __half*>(x.data) + at, x.vectors, valid, value);
    case DType::kBF16:
      return load_quad(static_cast<const __nv_bfloat16*>(x.data) + at, x.vectors, valid, value);
    default:
      return load_quad(static_cast<const float*>(x.data) + at, x.vectors, valid, value);
  }
}

template <class T>
__device__ void store_quad(T* p, bool vectors, int64_t valid, float alpha, const float* sum, float beta) {
  float before[kQuad] = {};
  if (beta != 0.f) load_quad(p, vectors, valid, before);
  if (vectors && valid >= kQuad) {
    Pack<T, kQuad> pack;
#pragma unroll
    for (int j = 0; j < kQuad; ++j) pack.lane[j] = from_float<T>(alpha * sum[j] + beta * before[j]);
    *reinterpret_cast<Pack<T, kQuad>*>(p) = pack;
  } else {
#pragma unroll
    for (int j = 0; j < kQuad; ++j)
      if (j < valid) p[j] = from_float<T>(alpha * sum[j] + beta * before[j]);
  }
}

// What one thread moves of a slice of kSize rows by kDepth: quads along the step of 1.
template <int kSize>
struct Slice {
  static constexpr int kQuads = kSize * kDepth / kQuad / (kSide * kSide);
  static constexpr int kPitch = kSize + kQuad;
  float value[kQuads][kQuad];

  __device__ static void place(const Operand2d& x, int thread, int q, int* r, int* k) {
    const int quad = q * kSide * kSide + thread;
    if (x.depth == 1) {
      *r = quad / (kDepth / kQuad);
      *k = quad % (kDepth / kQuad) * kQuad;
    } else {
      *r = quad % (kSize / kQuad) * kQuad;
      *k = quad / (kSize / kQuad);
    }
  }
  __device__ void load(const Operand2d& x, int64_t base, int64_t rows, int64_t depth, int thread) {
#pragma unroll
    for (int q = 0; q < kQuads; ++q) {
      int r, k;
      place(x, thread, q, &r, &k);
      const bool inside = r < rows && k < depth;
      const int64_t valid = !inside ? 0 : x.depth == 1 ? depth - k : rows - r;
      load_quad(x, base + r * x.row + k * x.depth, valid, value[q]);
    }
  }
  // to[k*kPitch + r]
  __device__ void store(const Operand2d& x, float* to, int thread) const {
#pragma unroll
    for (int q = 0; q < kQuads; ++q) {
      int r, k;
      place(x, thread, q, &r, &k);
      const int step = x.depth == 1 ? kPitch : 1;
#pragma unroll
      for (int j = 0; j < kQuad; ++j) to[k * kPitch + r + j * step] = value[q][j];
    }
  }
};

// Grid: tiles of C, row by row; batches.
template <int kSize>
__global__ void __launch_bounds__(kSide* kSide, kSize == 64 ? 2 : 1)
    gemm_kernel(Operand2d a, Operand2d b, Result c, GemmSize size, int64_t tile_columns, float alpha, float beta) {
  constexpr int kGroups = kSize / kSide / kQuad, kStep = kSide * kQuad, kPitch = Slice<kSize>::kPitch;
  CONVOY_SHARED(float[2][2][kDepth * kPitch], shared);  // [buffer][operand][k][row]
  const int tx = threadIdx.x, ty = threadIdx.y, thread = ty * kSide + tx;
  const int64_t tile_row = blockIdx.x / tile_columns;
  const int64_t row = tile_row * kSize, column = (blockIdx.x - tile_row * tile_columns) * kSize;
  for (int64_t batch = blockIdx.y; batch < size.batch; batch += gridDim.y) {
    float sum[kGroups][kQuad][kGroups][kQuad] = {};
    Slice<kSize> left, right;
    const int64_t left_base = batch * a.stride + row * a.row, right_base = batch * b.stride + column * b.row;
    left.load(a, left_base, size.m - row, size.k, thread);
    right.load(b, right_base, size.n - column, size.k, thread);
    int buffer = 0;
    for (int64_t k = 0; k < size.k; k += kDepth) {
      left.store(a, shared[buffer][0], thread);
      right.store(b, shared[buffer][1], thread);
      __syncthreads();
      const int64_t next = k + kDepth;
      if (next < size.k) {
        left.load(a, left_base + next * a.depth, size.m - row, size.k - next, thread);
        right.load(b, right_base + next * b.depth, size.n - column, size.k - next, thread);
      }
#pragma unroll
      for (int d = 0; d < kDepth; ++d) {
        float x[kGroups][kQuad], y[kGroups][kQuad];
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
          const auto from_a =
              *reinterpret_cast<const Pack<float, kQuad>*>(&shared[buffer][0][d * kPitch + g * kStep + ty * kQuad]);
          const auto from_b =
              *reinterpret_cast<const Pack<float, kQuad>*>(&shared[buffer][1][d * kPitch + g * kStep + tx * kQuad]);
#pragma unroll
          for (int j = 0; j < kQuad; ++j) {
            x[g][j] = from_a.lane[j];
            y[g][j] = from_b.lane[j];
          }
        }
#pragma unroll
        for (int g = 0; g < kGroups; ++g)
#pragma unroll
          for (int i = 0; i < kQuad; ++i)
#pragma unroll
            for (int h = 0; h < kGroups; ++h)
#pragma unroll
              for (int j = 0; j < kQuad; ++j) sum[g][i][h][j] += x[g][i] * y[h][j];
      }
      buffer ^= 1;
    }
#pragma unroll
    for (int g = 0; g < kGroups; ++g)
#pragma unroll
      for (int i = 0; i < kQuad; ++i) {
        const int64_t r = row + g * kStep + ty * kQuad + i;
        if (r >= size.m) continue;
#pragma unroll
        for (int h = 0; h < kGroups; ++h) {
          const int64_t first = column + h * kStep + tx * kQuad, valid = size.n - first;
          const int64_t at = batch * c.stride + r * c.pitch + first;
          if (c.dtype == DType::kF16)
            store_quad(static_cast<__half*>(c.data) + at, c.vectors, valid, alpha, sum[g][i][h], beta);
          else if (c.dtype == DType::kBF16)
            store_quad(static_cast<__nv_bfloat16*>(c.data) + at, c.vectors, valid, alpha, sum[g][i][h], beta);
          else
            store_quad(static_cast<float*>(c.data) + at, c.vectors, valid, alpha, sum[g][i][h], beta);
        }
      }
    __syncthreads();  // the next product starts with buffer 0 again
  }
}

bool quads_fit(const GemmMatrix& m) {
  const size_t bytes = kQuad * dtype_size(m.dtype);
  return reinterpret_cast<uintptr_t>(m.data) % bytes == 0 && m.pitch % kQuad == 0 && m.stride % kQuad == 0;
}

// `rows_first`: a row of the tile is a row of the matrix.
Operand2d operand_of(const GemmMatrix& m, bool rows_first) {
  return {m.data, m.dtype, rows_first ? m.pitch : 1, rows_first ? 1 : m.pitch, m.stride, quads_fit(m)};
}

template <int kSize>
void launch_tiles(cudaStream_t stream, const GemmSize& size, float alpha, const GemmMatrix& a, const GemmMatrix& b,
                  float beta, const GemmMatrix& c) {
  const int64_t columns = ceil_div(size.n, kSize), tiles = ceil_div(size.m, kSize) * columns;
  if (tiles > INT32_MAX) throw std::invalid_argument(CONVOY_DEVICE_NAME "::gemm: the result is too large");
  const dim3 grid(static_cast<unsigned>(tiles), static_cast<unsigned>(std::min(size.batch, kMostBatches)));
  launch({grid, dim3(kSide, kSide), 0, stream}, gemm_kernel<kSize>, operand_of(a, !a.transposed),
         operand_of(b, b.transposed), Result{c.data, c.dtype, c.pitch, c.stride, quads_fit(c)}, size, columns, alpha,
         beta);
}

}  // namespace

void gemm(cudaStream_t stream, const GemmSize& size, float alpha, const GemmMatrix& a, const GemmMatrix& b, float beta,
          const GemmMatrix& c) {
  for (const GemmMatrix* m : {&a, &b, &c})
    if (m->dtype != DType::kF32 && m->dtype != DType::kF16 && m->dtype != DType::kBF16)
      throw std::invalid_argument(std::string(CONVOY_DEVICE_NAME "::gemm: dtype ") + dtype_name(m->dtype) +
                                  ", expected f32, f16 or bf16");
  if (c.transposed) throw std::invalid_argument(CONVOY_DEVICE_NAME "::gemm: the result cannot be transposed");
  if (size.m == 0 || size.n == 0 || size.batch == 0) return;
  if (size.batch * ceil_div(size.m, 128) * ceil_div(size.n, 128) >= kFullGpu)
    launch_tiles<128>(stream, size, alpha, a, b, beta, c);
  else
    launch_tiles<64>(stream, size, alpha, a, b, beta, c);
}

}  // namespace convoy::CONVOY_DEVICE
