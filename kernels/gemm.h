// Matrix products on the GPU.
#pragma once
#include "kernels/cuda_stream.h"
#include "kernels/dtype.h"

namespace convoy {

/// A row-major matrix: rows `pitch` elements apart; in a batched product one matrix every `stride` elements (0: all use
/// the same one). As an operand it may be stored transposed.
struct GemmMatrix {
  void* data = nullptr;
  int64_t pitch = 0;
  DType dtype = DType::kF32;  ///< f32, f16 or bf16
  bool transposed = false;
  int64_t stride = 0;
};

/// Extents of C (m x n) and of the sum (k), and the number of such products.
struct GemmSize {
  int64_t m = 0, n = 0, k = 0, batch = 1;
};

}  // namespace convoy

CONVOY_CUDA_KERNELS(
    /// C = alpha op(A) op(B) + beta C for every matrix of the batch: op(A) is m x k, op(B) k x n. The three dtypes are
    /// free; sums are in fp32. With beta = 0 C is not read. Nothing is read or written between the rows. Throws
    /// std::invalid_argument on another dtype or on a transposed C.
    void gemm(cudaStream_t stream, const GemmSize& size, float alpha, const GemmMatrix& a, const GemmMatrix& b,
              float beta, const GemmMatrix& c);)
