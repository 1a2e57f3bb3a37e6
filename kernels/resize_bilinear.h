// Resizing of images: bilinear and nearest, with their gradients, blocked layout.
#pragma once
#include "kernels/cuda_stream.h"
#include "kernels/isa.h"
#include "kernels/view.h"

namespace convoy {

/// Coordinate rule of PyTorch's interpolate, in float32. Output o reads source coordinate
///   align_corners   o (in - 1) / (out - 1), 0 where out is 1
///   otherwise       max((o + 0.5) s - 0.5, 0)
///   nearest         floor(o s)
/// with s = 1 / scale where interpolate was given a scale_factor, and in / out where it was given a size (scale 0).
struct ResizeParams {
  bool align_corners = false;
  double scale_h = 0, scale_w = 0;
};

}  // namespace convoy

CONVOY_CPU_KERNELS(
    /// y (N,C,OH,OW) from x (N,C,H,W), bilinear.
    void resize_bilinear(const View& x, const ResizeParams& params, const View& y);
    /// dx from dy: the transpose of resize_bilinear.
    void resize_bilinear_backward(const View& dy, const ResizeParams& params, const View& dx);
    /// y from x, nearest source pixel; params.align_corners is not read.
    void resize_nearest(const View& x, const ResizeParams& params, const View& y);
    /// dx from dy: every source pixel sums the output pixels that copied it.
    void resize_nearest_backward(const View& dy, const ResizeParams& params, const View& dx);)

// On the GPU: nhwc images of fp32, fp16 or bf16 in device memory, work enqueued on `stream`. Throws
// std::invalid_argument on another layout or dtype.
CONVOY_CUDA_KERNELS(void resize_bilinear(cudaStream_t stream, const View& x, const ResizeParams& params, const View& y);
                    void resize_bilinear_backward(cudaStream_t stream, const View& dy, const ResizeParams& params,
                                                  const View& dx);
                    void resize_nearest(cudaStream_t stream, const View& x, const ResizeParams& params, const View& y);
                    void resize_nearest_backward(cudaStream_t stream, const View& dy, const ResizeParams& params,
                                                 const View& dx);)
