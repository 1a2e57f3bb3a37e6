// Max, average and adaptive average pooling with PyTorch's conventions.
#pragma once
#include "kernels/cuda_stream.h"
#include "kernels/isa.h"
#include "kernels/view.h"

namespace convoy {

/// Window o along an axis covers [o*stride - pad, o*stride - pad + kernel). The extent of the output says whether the
/// last window may reach beyond the padded input (ceil mode); every window must start inside input or left padding.
/// count_include_pad: an average divides by the window clipped to the padded input, else to the input itself.
struct Pool2d {
  int kernel_h = 1, kernel_w = 1, stride_h = 1, stride_w = 1, pad_h = 0, pad_w = 0;
  bool count_include_pad = true;
};

}  // namespace convoy

// x, dx blocked (N,C,H,W); y, dy, index blocked (N,C,OH,OW); index is int32.
//
// max_pool                    y = maximum of each window, the first one where several are equal, NaN if one is in it;
//                             index (may be null) = its flat position h*W + w in the input plane.
// max_pool_backward           dx = sum of dy over the windows whose index points here.
// avg_pool, avg_pool_backward
// adaptive_avg_pool           bin o averages [floor(o*H/OH), ceil((o+1)*H/OH)); bins may overlap, OH > H is allowed.
// adaptive_avg_pool_backward
// max_unpool                  y blocked (N,C,H,W) = z at the places that index (both N,C,OH,OW) gives, zero elsewhere;
// the
//                             last one stays where several have the same place. *bad = flat position in index, as
//                             (N,C,OH,OW), of one that lies outside of the plane, which is left out, or -1.
// max_unpool_backward         dz = dy at those places
CONVOY_CPU_KERNELS(void max_pool(const View& x, const Pool2d& pool, const View& y, const View* index);
                   void max_pool_backward(const View& dy, const View& index, const Pool2d& pool, const View& dx);
                   void avg_pool(const View& x, const Pool2d& pool, const View& y);
                   void avg_pool_backward(const View& dy, const Pool2d& pool, const View& dx);
                   void adaptive_avg_pool(const View& x, const View& y);
                   void adaptive_avg_pool_backward(const View& dy, const View& dx);
                   void max_unpool(const View& z, const View& index, const View& y, int64_t* bad);
                   void max_unpool_backward(const View& dy, const View& index, const View& dz);)

// On the GPU: nhwc images of fp32, fp16 or bf16, an nhwc index of int32, all in device memory, work enqueued on
// `stream`. max_unpool puts the smallest bad position into *fault by a minimum and leaves it alone where there is none.
// Throws std::invalid_argument on another layout or dtype, and on extents of adaptive pooling from 65535 on.
CONVOY_CUDA_KERNELS(void max_pool(cudaStream_t stream, const View& x, const Pool2d& pool, const View& y,
                                  const View* index);
                    void max_pool_backward(cudaStream_t stream, const View& dy, const View& index, const Pool2d& pool,
                                           const View& dx);
                    void avg_pool(cudaStream_t stream, const View& x, const Pool2d& pool, const View& y);
                    void avg_pool_backward(cudaStream_t stream, const View& dy, const Pool2d& pool, const View& dx);
                    size_t adaptive_pool_cuda_workspace_bytes(const View& x, const View& y);
                    void adaptive_avg_pool(cudaStream_t stream, const View& x, const View& y, float* workspace);
                    void adaptive_avg_pool_backward(cudaStream_t stream, const View& dy, const View& dx);
                    size_t max_unpool_cuda_workspace_bytes(const View& y);
                    void max_unpool(cudaStream_t stream, const View& z, const View& index, const View& y,
                                    int64_t* fault, int32_t* workspace);
                    void max_unpool_backward(cudaStream_t stream, const View& dy, const View& index, const View& dz);)
