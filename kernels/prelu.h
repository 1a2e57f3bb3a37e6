// Parametric ReLU (He et al. 2015) on blocked images: y = x where x > 0, else slope * x.
#pragma once
#include "kernels/cuda_stream.h"
#include "kernels/isa.h"
#include "kernels/view.h"

namespace convoy {

/// Pixels that are summed in float.
constexpr int64_t kPreluChunk = 512;

/// Floats of scratch memory that prelu_backward needs for a blocked x.
inline int64_t prelu_workspace(const View& x) {
  return x.n * x.blocks() * x.block * ((x.pixels() + kPreluChunk - 1) / kPreluChunk);
}

}  // namespace convoy

// x, y, dy, dx blocked (N,C,H,W), each perhaps a slice; y may alias x and dx dy. `slopes` is 1 (one slope for all
// channels) or C.
//
// prelu            y
// prelu_backward   dx = dy or slope * dy; dslope (`slopes` values) = sum of x * dy over the places where x <= 0
CONVOY_CPU_KERNELS(void prelu(const View& x, const float* slope, int64_t slopes, const View& y);
                   void prelu_backward(const View& dy, const View& x, const float* slope, int64_t slopes,
                                       const View& dx, float* dslope, float* workspace);)

// On the GPU: nhwc images of fp32, fp16 or bf16, all pointers to device memory, work enqueued on `stream`;
// prelu_backward needs a workspace of prelu_cuda_workspace_bytes. Throws std::invalid_argument on another layout or
// dtype.
CONVOY_CUDA_KERNELS(void prelu(cudaStream_t stream, const View& x, const float* slope, int64_t slopes, const View& y);
                    size_t prelu_cuda_workspace_bytes(const View& x);
                    void prelu_backward(cudaStream_t stream, const View& dy, const View& x, const float* slope,
                                        int64_t slopes, const View& dx, float* dslope, void* workspace);)
