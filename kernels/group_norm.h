// Group normalisation (Wu, He 2018) and the L2 normalisation across channels of SSD (Liu et al. 2016), blocked images.
#pragma once
#include "kernels/cuda_stream.h"
#include "kernels/isa.h"
#include "kernels/view.h"

namespace convoy {

/// Doubles of scratch memory that group_norm and group_norm_backward need for a blocked x.
inline int64_t group_norm_workspace(const View& x, int64_t groups) {
  return 2 * x.n * x.blocks() * x.block + x.n * groups;
}
/// Floats of scratch memory that l2_norm_backward needs.
inline int64_t l2_norm_workspace(const View& x) {
  return x.n * x.pixels();
}

}  // namespace convoy

// Images blocked (N,C,H,W), each perhaps a slice; weight, bias, dweight, dbias C values. dx may alias dy, y may alias
// x.
//
// group_norm            per image and group of C/groups channels: y = (x - mean) * rstd * weight + bias with the
// group's
//                       mean and rstd = 1/sqrt(biased variance + eps), N x groups values each
// group_norm_backward   dx, dweight, dbias, through mean and rstd
// l2_norm               y = x / (sqrt(sum over c of x^2) + eps) * weight
// l2_norm_backward      dx, dweight; where x is 0 in all channels dx is weight * dy / eps
CONVOY_CPU_KERNELS(void group_norm(const View& x, const float* weight, const float* bias, int64_t groups, float eps,
                                   const View& y, float* mean, float* rstd, double* workspace);
                   void group_norm_backward(const View& dy, const View& x, const float* mean, const float* rstd,
                                            const float* weight, int64_t groups, const View& dx, float* dweight,
                                            float* dbias, double* workspace);
                   void l2_norm(const View& x, const float* weight, float eps, const View& y);
                   void l2_norm_backward(const View& dy, const View& x, const float* weight, float eps, const View& dx,
                                         float* dweight, float* workspace);)

// On the GPU: nhwc images of fp32, fp16 or bf16, all pointers to device memory, work enqueued on `stream`; workspaces
// of group_norm_cuda_workspace_bytes and l2_norm_cuda_workspace_bytes. In l2_norm_backward dx may not alias dy. Throws
// std::invalid_argument on another layout or dtype.
CONVOY_CUDA_KERNELS(size_t group_norm_cuda_workspace_bytes(const View& x, int64_t groups);
                    void group_norm(cudaStream_t stream, const View& x, const float* weight, const float* bias,
                                    int64_t groups, float eps, const View& y, float* mean, float* rstd,
                                    double* workspace);
                    void group_norm_backward(cudaStream_t stream, const View& dy, const View& x, const float* mean,
                                             const float* rstd, const float* weight, int64_t groups, const View& dx,
                                             float* dweight, float* dbias, double* workspace);
                    void l2_norm(cudaStream_t stream, const View& x, const float* weight, float eps, const View& y);
                    size_t l2_norm_cuda_workspace_bytes(const View& x);
                    void l2_norm_backward(cudaStream_t stream, const View& dy, const View& x, const float* weight,
                                          float eps, const View& dx, float* dweight, float* workspace);)
