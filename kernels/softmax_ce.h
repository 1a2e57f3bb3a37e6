// Softmax cross entropy over pixels, fused with the bilinear upsampling of the logits: the full-resolution logits,
// probabilities and gradients are never stored.
#pragma once
#include "kernels/isa.h"
#include "kernels/view.h"

namespace convoy {

/// Source rows of one unit of work of upsample_softmax_ce; a function of the shape alone.
constexpr int64_t softmax_ce_band_rows(int64_t rows) {
  return (rows + 15) / 16;
}

/// Pixels of a row whose exponentials are held at a time.
constexpr int64_t kSoftmaxCeChunk = 64;

/// Stands where a pixel has no class: above every probability.
constexpr float kNoProbability = 2;

/// Bytes of `workspace` for upsample_softmax_ce, whatever H and W.
inline size_t softmax_ce_workspace_bytes(const View& logits) {
  const int64_t rows = softmax_ce_band_rows(logits.h), bands = (logits.h + rows - 1) / rows;
  const int64_t floats_per_band =
      (3 * (logits.w + 1) + kSoftmaxCeChunk + 2) * logits.blocks() * logits.block + 2 * logits.block;
  return static_cast<size_t>(logits.n * bands * floats_per_band) * sizeof(float);
}

}  // namespace convoy

CONVOY_CPU_KERNELS(
    /// loss (1 value) = sum over labelled pixels of class_weight[t] * -log softmax(up(logits))[t], divided by
    /// *normalizer; 0 where that is 0. logits (N,C,h,w) blocked; up = bilinear to H x W by the rule of ResizeParams
    /// without scale (none where h x w is H x W). target (N,H,W): a class, or ignore_index.
    /// class_weight: C values, null for ones. d_logits: gradient of the loss, same shape; null data: not wanted.
    /// A target that is neither is skipped and the first such flat index put into *bad_index, -1 where all are good.
    /// workspace: softmax_ce_workspace_bytes, aligned to 64.
    void upsample_softmax_ce(const View& logits, const int32_t* target, int64_t H, int64_t W, bool align_corners,
                             int32_t ignore_index, const float* class_weight, const float* normalizer, float* loss,
                             const View& d_logits, int64_t* bad_index, float* workspace);

    /// The same for the focal loss of Lin et al. 2017 (Focal Loss for Dense Object Detection, eq. 5), taken per pixel:
    /// a pixel whose class has probability p adds class_weight[t] * alpha * (1 - p)^gamma * -log p. gamma >= 0.
    void upsample_focal_ce(const View& logits, const int32_t* target, int64_t H, int64_t W, bool align_corners,
                           int32_t ignore_index, const float* class_weight, const float* normalizer, float alpha,
                           float gamma, float* loss, const View& d_logits, int64_t* bad_index, float* workspace);

    /// probability (N,H,W) = softmax(up(logits)) of each pixel's class, at most 1; kNoProbability where the target is
    /// no class. Arguments as above.
    void upsample_label_probability(const View& logits, const int32_t* target, int64_t H, int64_t W, bool align_corners,
                                    int32_t ignore_index, float* probability, float* workspace);

    /// *result = number of labels in [0, classes) other than ignore_index, or the sum of their class weights.
    void label_weight_sum(const int32_t* target, int64_t count, int64_t classes, int32_t ignore_index,
                          const float* class_weight, float* result);)
