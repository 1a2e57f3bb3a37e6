// Depthwise 2-D convolution (groups = channels, one output channel each) and its gradients, blocked layout.
#pragma once
#include "kernels/conv2d.h"
#include "kernels/cuda_stream.h"

namespace convoy {

/// Kernels of more taps than this go to kernels/conv2d.h.
constexpr int64_t kMaxDepthwiseTaps = 121;

/// Rows of dy whose weight gradient is one partial sum; a function of the shape alone.
constexpr int64_t depthwise_band_rows(int64_t rows) {
  return rows <= 16 * 16 ? 16 : (rows + 15) / 16;
}

/// Bytes of `workspace` for depthwise_backward_weights.
inline size_t depthwise_workspace_bytes(const View& dy, int64_t kernel_h, int64_t kernel_w) {
  const int64_t rows = depthwise_band_rows(dy.h), bands = (dy.h + rows - 1) / rows;
  return static_cast<size_t>(dy.n * dy.blocks() * bands * kernel_h * kernel_w * dy.block) * sizeof(float);
}

}  // namespace convoy

CONVOY_CPU_KERNELS(
    /// y (N,C,OH,OW) = depthwise convolution of x (N,C,H,W) with w (C,1,kernel_h,kernel_w, plain) + bias (C, or null).
    /// Both blocked, kernel_h * kernel_w <= kMaxDepthwiseTaps; params.groups is not read.
    void depthwise(const View& x, const float* w, int64_t kernel_h, int64_t kernel_w, const float* bias,
                   const Conv2dParams& params, const View& y);

    /// dx = gradient with respect to x.
    void depthwise_backward_data(const View& dy, const float* w, int64_t kernel_h, int64_t kernel_w,
                                 const Conv2dParams& params, const View& dx);

    /// dw (C,1,kernel_h,kernel_w, plain) = gradient with respect to w.
    void depthwise_backward_weights(const View& x, const View& dy, int64_t kernel_h, int64_t kernel_w,
                                    const Conv2dParams& params, float* dw, float* workspace);)

// On the GPU: nhwc images of fp32, fp16 or bf16, fp32 weights; else as above. Throws std::invalid_argument on another
// layout or dtype and on too many taps.
CONVOY_CUDA_KERNELS(void depthwise(cudaStream_t stream, const View& x, const float* w, int64_t kernel_h,
                                   int64_t kernel_w, const float* bias, const Conv2dParams& params, const View& y);
                    void depthwise_backward_data(cudaStream_t stream, const View& dy, const float* w, int64_t kernel_h,
                                                 int64_t kernel_w, const Conv2dParams& params, const View& dx);
                    void depthwise_backward_weights(cudaStream_t stream, const View& x, const View& dy,
                                                    int64_t kernel_h, int64_t kernel_w, const Conv2dParams& params,
                                                    float* dw, float* workspace);
                    /// Bytes of `workspace` for depthwise_backward_weights.
                    size_t depthwise_cuda_workspace_bytes(const View& dy, int64_t kernel_h, int64_t kernel_w);)
