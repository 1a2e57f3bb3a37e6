// Dense and grouped 2-D convolution (cross-correlation): the plain implementation of the CPU device. It takes any
// shape, grouping and pair of layouts; --direct-conv selects it, and it is what the faster ones are tested against.
#pragma once
#include "kernels/cuda_stream.h"
#include "kernels/isa.h"
#include "kernels/view.h"

namespace convoy {

/// Geometry of a convolution beyond its tensors; the same for h and w unless a network says otherwise.
struct Conv2dParams {
  int64_t stride_h = 1, stride_w = 1;
  int64_t pad_h = 0, pad_w = 0;
  int64_t dilation_h = 1, dilation_w = 1;
  int64_t groups = 1;
};

/// Output extent of a convolution: floor((in + 2 pad - dilation (kernel - 1) - 1) / stride) + 1; 0 or less where the
/// kernel does not fit.
constexpr int64_t conv_extent(int64_t in, int64_t kernel, int64_t stride, int64_t pad, int64_t dilation) {
  const int64_t room = in + 2 * pad - dilation * (kernel - 1) - 1;
  return room < 0 ? 0 : room / stride + 1;
}

}  // namespace convoy

CONVOY_CPU_KERNELS(
    /// y = conv(x, w) + bias. x (N,C,H,W) and y (N,O,OH,OW): blocked or nchw, fp32. w: O x C/groups x kernel_h x
    /// kernel_w, plain. bias: O values or null.
    void conv2d_direct(const View& x, const float* w, int64_t kernel_h, int64_t kernel_w, const float* bias,
                       const Conv2dParams& params, const View& y);

    /// dx = gradient of conv2d_direct with respect to x, given dy.
    void conv2d_direct_backward_data(const View& dy, const float* w, int64_t kernel_h, int64_t kernel_w,
                                     const Conv2dParams& params, const View& dx);

    /// dw (O x C/groups x kernel_h x kernel_w, plain) = gradient with respect to w.
    void conv2d_direct_backward_weights(const View& x, const View& dy, int64_t kernel_h, int64_t kernel_w,
                                        const Conv2dParams& params, float* dw);

    /// dbias (O values) = sum of dy over images and pixels.
    void conv2d_backward_bias(const View& dy, float* dbias);)

// On the GPU: images of fp32, fp16 or bf16 in device memory, fp32 weights. x is nhwc or nchw, every other image nhwc;
// else as above. Throws std::invalid_argument on another layout or dtype.
CONVOY_CUDA_KERNELS(
    void conv2d_direct(cudaStream_t stream, const View& x, const float* w, int64_t kernel_h, int64_t kernel_w,
                       const float* bias, const Conv2dParams& params, const View& y, float* workspace);
    void conv2d_direct_backward_data(cudaStream_t stream, const View& dy, const float* w, int64_t kernel_h,
                                     int64_t kernel_w, const Conv2dParams& params, const View& dx, float* workspace);
    void conv2d_direct_backward_weights(cudaStream_t stream, const View& x, const View& dy, int64_t kernel_h,
                                        int64_t kernel_w, const Conv2dParams& params, float* dw, float* workspace);
    void conv2d_backward_bias(cudaStream_t stream, const View& dy, float* dbias, float* workspace);

    /// Bytes of `workspace`: from x to y of conv2d_direct, from dy to dx of its input gradient.
    size_t conv2d_direct_cuda_workspace_bytes(const View& source, const View& target, int64_t kernel_h,
                                              int64_t kernel_w, int64_t groups);
    size_t conv2d_direct_weights_cuda_workspace_bytes(const View& x, const View& dy, int64_t kernel_h, int64_t kernel_w,
                                                      const Conv2dParams& params);
    size_t conv2d_bias_cuda_workspace_bytes(const View& dy);)
