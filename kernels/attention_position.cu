// Position attention without its H*W x H*W matrix: the energies of a strip of queries with all keys are made by one
// matrix product, turned into weights row by row, and used by the next products while they are still in the L2 cache.
// A strip has position_attention_strip() queries of every image: 16 MB of energies, so memory grows with H*W only.
// FLOPs: forward 2 N (HW)^2 (D + C), backward 2 N (HW)^2 (3 D + 2 C). One 97 x 97 image, D = 64, C = 512: 102 GFLOP
// forward, at least 1.5 ms at the 67 TFLOP/s of an H100's fp32 units; its 354 MB of energies pass the L2 cache 4 times,
// mostly without reaching memory. One image's strips give the products few blocks, which do not share k: it will take
// longer than that, several images less so.
// Numerics: fp32; weights below 1e-30 of the largest are 0; a softmax's sum is fp32 per thread, double between threads;
// the sums over strips (dk, dv) are added in order. Backward makes the weights again from the saved logarithms of the
// softmax's sums and forms the means of the softmax's gradient from weights and gradients, not from a rounded y.
#include "kernels/attention.h"
#include "kernels/cuda_attention.h"

namespace convoy::CONVOY_DEVICE {
namespace {

constexpr int64_t kStripFloats = 1 << 22;
constexpr int64_t kTile = 64;

/// The energies of `rows` queries from `first` on of every image: `capacity` rows of `pitch` floats per image.
struct Strip {
  float* energies;
  int64_t first, rows, capacity, pixels, pitch, images;
};

// Energies become weights; lse (image, pixel) = logarithm of the softmax's sum. Grid (rows, images).
template <class T>
__global__ void __launch_bounds__(kBlockThreads) row_softmax_kernel(Strip s, T* __restrict__ lse) {
  const auto larger = [](float a, float b) { return fmaxf(a, b); };
  const auto add = [](double a, double b) { return a + b; };
  for (int64_t n = blockIdx.y; n < s.images; n += gridDim.y)
    for (int64_t r = blockIdx.x; r < s.rows; r += gridDim.x) {
      float* row = s.energies + (n * s.capacity + r) * s.pitch;
      float high = -INFINITY, sum = 0;
      for (int64_t j = threadIdx.x; j < s.pixels; j += kBlockThreads) high = fmaxf(high, row[j]);
      high = block_all(high, larger);
      for (int64_t j = threadIdx.x; j < s.pixels; j += kBlockThreads) {
        const float weight = weight_of(row[j] - high);
        row[j] = weight;
        sum += weight;
      }
      const double total = block_all(static_cast<double>(sum), add);
      const auto factor = static_cast<float>(1 / total);
      for (int64_t j = threadIdx.x; j < s.pixels; j += kBlockThreads) row[j] *= factor;
      if (threadIdx.x == 0) lse[n * s.pixels + s.first + r] = static_cast<T>(static_cast<double>(high) + log(total));
    }
}

// Energies become weights, d_weights (the weights' gradients) those of the energies.
template <class T>
__global__ void __launch_bounds__(kBlockThreads)
    row_softmax_backward_kernel(Strip s, const T* __restrict__ lse, T* __restrict__ d_weights) {
  const auto add = [](float a, float b) { return a + b; };
  for (int64_t n = blockIdx.y; n < s.images; n += gridDim.y)
    for (int64_t r = blockIdx.x; r < s.rows; r += gridDim.x) {
      float* row = s.energies + (n * s.capacity + r) * s.pitch;
      float* d_row = d_weights + (n * s.capacity + r) * s.pitch;
      const float shift = lse[n * s.pixels + s.first + r];
      float mean = 0;
      for (int64_t j = threadIdx.x; j < s.pixels; j += kBlockThreads) {
        const float weight = weight_of(row[j] - shift);
        row[j] = weight;
        mean += weight * d_row[j];
      }
      mean = block_all(mean, add);
      for (int64_t j = threadIdx.x; j < s.pixels; j += kBlockThreads) d_row[j] = row[j] * (d_row[j] - mean);
    }
}

int64_t strip_floats(const View& q, int64_t strip) {
  return q.n * std::min(strip, q.pixels()) * row_floats(q.pixels());
}

/// The strip from query `first` on, and its products' operands.
Strip strip_at(const View& q, int64_t strip, int64_t first, float* energies) {
  const int64_t capacity = std::min(strip, q.pixels());
  return {energies, first, std::min(capacity, q.pixels() - first), capacity, q.pixels(), row_floats(q.pixels()), q.n};
}
GemmMatrix matrix_of(const Strip& s, float* data) {
  return float_matrix(data, s.pitch, s.capacity * s.pitch);
}
GemmMatrix rows_of(const View& v, const Strip& s) {
  return behind(pixel_matrix(v), s.first * v.pitch);
}
dim3 grid_of(const Strip& s) {
  return dim3(grid_extent(s.rows, INT32_MAX), grid_extent(s.images, kMostGridPlanes));
}

struct ForwardSpace {
  float* energies;
  View y;
  size_t bytes;
  ForwardSpace(const View& q, const View& to, int64_t strip, float* workspace) {
    Carver carver(workspace);
    energies = carver.take(strip_floats(q, strip));
    y = sums_for(to, carver);
    bytes = carver.bytes();
  }
};

struct BackwardSpace {
  float *energies, *d_weights;
  View dq, dk, dv;
  size_t bytes;
  BackwardSpace(const View& to_q, const View& to_k, const View& to_v, int64_t strip, float* workspace) {
    Carver carver(workspace);
    energies = carver.take(strip_floats(to_q, strip));
    d_weights = carver.take(strip_floats(to_q, strip));
    dq = sums_for(to_q, carver);
    dk = sums_for(to_k, carver);
    dv = sums_for(to_v, carver);
    bytes = carver.bytes();
  }
};

}  // namespace

int64_t position_attention_strip(const View& q) {
  const int64_t row = q.n * row_floats(q.pixels());
  return std::max(kTile, kStripFloats / std::max<int64_t>(1, row) / kTile * kTile);
}

size_t position_attention_cuda_workspace_bytes(const View& q, const View& y, int64_t strip) {
  return ForwardSpace(q, y, strip, nullptr).bytes;
}

void position_attention(cudaStream_t stream, const View& q, const View& k, const View& v, const View& y,
                        const View& lse, int64_t strip, float* workspace) {
  require_nhwc("position_attention", {&q, &k, &v, &y});
  const ForwardSpace space(q, y, strip, workspace);
  const int64_t pixels = q.pixels();
  for (int64_t first = 0; first < pixels; first += strip) {
    const Strip s = strip_at(q, strip, first, space.energies);
    const GemmMatrix weights = matrix_of(s, s.energies);
    gemm(stream, {s.rows, pixels, q.c, q.n}, 1, rows_of(q, s), transposed(pixel_matrix(k)), 0, weights);
    launch({grid_of(s), dim3(kBlockThreads), 0, stream}, row_softmax_kernel<float>, s, lse.f32());
    gemm(stream, {s.rows, v.c, pixels, q.n}, 1, weights, pixel_matrix(v), 0, rows_of(space.y, s));
  }
  store_sums(stream, space.y, y);
}

size_t position_attention_backward_cuda_workspace_bytes(const View& dq, const View& dk, const View& dv, int64_t strip) {
  return BackwardSpace(dq, dk, dv, strip, nullptr).bytes;
}

void position_attention_backward(cudaStream_t stream, const View& dy, const View& q, const View& k, const View& v,
                                 const View& lse, const View& dq, const View& dk, const View& dv, int64_t strip,
                                 float* workspace) {
  require_nhwc("position_attention_backward", {&dy, &q, &k, &v, &dq, &dk, &dv});
  const BackwardSpace space(dq, dk, dv, strip, workspace);
  const int64_t pixels = q.pixels();
  for (int64_t first = 0; first < pixels; first += strip) {
    const Strip s = strip_at(q, strip, first, space.energies);
    const GemmMatrix weights = matrix_of(s, s.energies), d_energies = matrix_of(s, space.d_weights);
    const float add = first > 0;
    gemm(stream, {s.rows, pixels, q.c, q.n}, 1, rows_of(q, s), transposed(pixel_matrix(k)), 0, weights);
    gemm(stream, {s.rows, pixels, v.c, q.n}, 1, rows_of(dy, s), transposed(pixel_matrix(v)), 0, d_energies);
    launch({grid_of(s), dim3(kBlockThreads), 0, stream}, row_softmax_backward_kernel<float>, s, lse.f32(),
           space.d_weights);
    gemm(stream, {pixels, v.c, s.rows, q.n}, 1, transposed(weights), rows_of(dy, s), add, pixel_matrix(space.dv));
    gemm(stream, {pixels, q.c, s.rows, q.n}, 1, transposed(d_energies), rows_of(q, s), add, pixel_matrix(space.dk));
    gemm(stream, {s.rows, q.c, pixels, q.n}, 1, d_energies, pixel_matrix(k), 0, rows_of(space.dq, s));
  }
  store_sums(stream, space.dq, dq);
  store_sums(stream, space.dk, dk);
  store_sums(stream, space.dv, dv);
}

}  // namespace convoy::CONVOY_DEVICE
