// Batch normalisation over (N,H,W) per channel, Ioffe and Szegedy 2015, with the conventions of PyTorch.
#pragma once
#include "kernels/activation.h"
#include "kernels/cuda_stream.h"
#include "kernels/isa.h"
#include "kernels/view.h"

namespace convoy {

/// Pixels whose sums are formed in one go; the cut depends on the shape only.
constexpr int64_t kBnChunk = 512;

/// Floats of workspace that bn_stats and bn_backward_reduce need for x: three per chunk and channel.
inline int64_t bn_workspace(const View& x) {
  return 3 * x.n * ((x.pixels() + kBnChunk - 1) / kBnChunk) * x.blocks() * x.block;
}

}  // namespace convoy

// x, y, residual, dy, dx are blocked (N,C,H,W); mean, var, gamma, beta and sums are arrays of C floats. `act` is
// kNone, kRelu or kRelu6 throughout.
//
// bn_stats            mean and biased variance over n, h, w.
// bn_apply            y = act((x - mean) / sqrt(var + eps) * gamma + beta [+ residual]); y may alias x or residual.
// bn_update_running   new = (1 - momentum) * old + momentum * batch, the variance made unbiased by count / (count - 1)
//                     (count >= 2); num_batches_tracked += 1.
// bn_backward_reduce  sum_dy = sum of g, sum_dy_xhat = sum of g * (x - mean) / sqrt(var + eps), where g is dy masked by
//                     the activation's output y (y may be null when act is kNone). They are the gradients of beta
//                     and gamma.
// bn_backward_apply   dx = gamma / sqrt(var + eps) * (g - sum_dy / count - xhat * sum_dy_xhat / count); `count` values
//                     per channel went into the statistics. With sum_dy null (frozen statistics) dx = gamma /
//                     sqrt(var + eps) * g. d_residual, where not null, receives g. dx and d_residual may alias dy.
CONVOY_CPU_KERNELS(
    void bn_stats(const View& x, float* mean, float* var, float* workspace);
    void bn_apply(const View& x, const View* residual, const float* mean, const float* var, const float* gamma,
                  const float* beta, float eps, Activation act, const View& y);
    void bn_update_running(const float* mean, const float* var, int64_t count, float momentum, float* running_mean,
                           float* running_var, int64_t* num_batches_tracked, int64_t channels);
    void bn_backward_reduce(const View& dy, const View* y, const View& x, const float* mean, const float* var,
                            float eps, Activation act, float* sum_dy, float* sum_dy_xhat, float* workspace);
    void bn_backward_apply(const View& dy, const View* y, const View& x, const float* mean, const float* var,
                           const float* gamma, float eps, Activation act, const float* sum_dy, const float* sum_dy_xhat,
                           int64_t count, const View& dx, const View* d_residual);)

// On the GPU: nhwc images of fp32, fp16 or bf16, all pointers to device memory, work enqueued on `stream`; else as
// above. Throws std::invalid_argument on another layout or dtype.
CONVOY_CUDA_KERNELS(
    void bn_stats(cudaStream_t stream, const View& x, float* mean, float* var, float* workspace);
    void bn_apply(cudaStream_t stream, const View& x, const View* residual, const float* mean, const float* var,
                  const float* gamma, const float* beta, float eps, Activation act, const View& y);
    void bn_update_running(cudaStream_t stream, const float* mean, const float* var, int64_t count, float momentum,
                           float* running_mean, float* running_var, int64_t* num_batches_tracked, int64_t channels);
    void bn_backward_reduce(cudaStream_t stream, const View& dy, const View* y, const View& x, const float* mean,
                            const float* var, float eps, Activation act, float* sum_dy, float* sum_dy_xhat,
                            float* workspace);
    void bn_backward_apply(cudaStream_t stream, const View& dy, const View* y, const View& x, const float* mean,
                           const float* var, const float* gamma, float eps, Activation act, const float* sum_dy,
                           const float* sum_dy_xhat, int64_t count, const View& dx, const View* d_residual);)
