// Losses and counts over plain row-major arrays.
#pragma once
#include <algorithm>

#include "kernels/cuda_stream.h"
#include "kernels/isa.h"

namespace convoy {

/// Blocks of the GPU's bce_with_logits and smooth_l1, each with one double of workspace.
inline int64_t plain_loss_parts(int64_t count) {
  return std::clamp<int64_t>(count / 2048, 1, 1024);
}
/// Bytes of `workspace` for the GPU's label_counts and class_presence.
constexpr size_t label_counts_cuda_workspace_bytes(int64_t rows, int64_t classes) {
  return static_cast<size_t>(rows * classes) * 8;
}

}  // namespace convoy

CONVOY_CPU_KERNELS(
    /// loss = scale * sum of max(x,0) - x t + log(1 + exp(-|x|)), the cross entropy of sigmoid(x) with targets t in
    /// [0,1]. d_x: its gradient; null: not wanted.
    void bce_with_logits(const float* x, const float* t, int64_t count, double scale, float* loss, float* d_x);

    /// loss = scale * sum of f(x - t), f(d) = d^2 / (2 beta) for |d| < beta, else |d| - beta/2 (Girshick 2015, Fast
    /// R-CNN, eq. 3). beta > 0. d_x: its gradient; null: not wanted.
    void smooth_l1(const float* x, const float* t, int64_t count, double beta, double scale, float* loss, float* d_x);

    /// counts[r * classes + c] = how many of row r's `count` labels are c; labels that are no class count nowhere.
    void label_counts(const int32_t* target, int64_t rows, int64_t count, int64_t classes, float* counts);)

// On the GPU: as above, all pointers to device memory.
CONVOY_CUDA_KERNELS(
    /// workspace: plain_loss_parts.
    void bce_with_logits(cudaStream_t stream, const float* x, const float* t, int64_t count, double scale, float* loss,
                         float* d_x, double* workspace);
    void smooth_l1(cudaStream_t stream, const float* x, const float* t, int64_t count, double beta, double scale,
                   float* loss, float* d_x, double* workspace);

    /// workspace: label_counts_cuda_workspace_bytes, aligned to 8.
    void label_counts(cudaStream_t stream, const int32_t* target, int64_t rows, int64_t count, int64_t classes,
                      float* counts, void* workspace);
    /// presence[r * classes + c] = 1 where row r has label c, else 0.
    void class_presence(cudaStream_t stream, const int32_t* target, int64_t rows, int64_t count, int64_t classes,
                        float* presence, void* workspace);

    /// loss = alpha (1 - exp(-mean))^gamma * part, and slope = its derivative by mean where part = mean.
    void focal_of_mean(cudaStream_t stream, const float* part, const float* mean, double alpha, double gamma,
                       float* loss, float* slope);)
