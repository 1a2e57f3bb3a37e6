// Softmax cross entropy over pixels, fused with the bilinear upsampling of the logits: the full-resolution logits,
// probabilities and gradients are never stored.
#pragma once
#include <algorithm>
#include <cmath>

#include "kernels/cuda_stream.h"
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

/// How the GPU's kernels cut an output of H x W from logits of h x w: tiles of kRows x `width` pixels.
struct SoftmaxCeTiles {
  static constexpr int64_t kRows = 8, kMostColumns = 32;
  int64_t width, down, across;          ///< of a tile; tiles of an image
  int64_t source_rows, source_columns;  ///< most that a tile reads; 0 without a resize
};
inline SoftmaxCeTiles softmax_ce_tiles(int64_t h, int64_t w, int64_t H, int64_t W, bool align_corners) {
  // The pixels that `length` neighbouring output pixels read, of which the outer ones may begin anywhere.
  const auto span = [&](int64_t in, int64_t out, int64_t length) {
    const double scale = align_corners ? (out > 1 ? static_cast<double>(in - 1) / static_cast<double>(out - 1) : 0.0)
                                       : static_cast<double>(in) / static_cast<double>(out);
    return std::min(in, static_cast<int64_t>(std::ceil(static_cast<double>(length - 1) * scale)) + 3);
  };
  SoftmaxCeTiles t{SoftmaxCeTiles::kMostColumns, (H + SoftmaxCeTiles::kRows - 1) / SoftmaxCeTiles::kRows, 0, 0, 0};
  if (h != H || w != W) {
    while (t.width > 1 && span(w, W, t.width) > SoftmaxCeTiles::kMostColumns + 2) t.width /= 2;
    t.source_rows = span(h, H, SoftmaxCeTiles::kRows);
    t.source_columns = span(w, W, t.width);
  }
  t.across = (W + t.width - 1) / t.width;
  return t;
}

/// Bytes of `workspace` for the GPU's upsample_softmax_ce and upsample_focal_ce: of every tile the loss and the
/// gradients of what it reads.
inline size_t softmax_ce_cuda_workspace_bytes(const View& logits, int64_t H, int64_t W, bool align_corners) {
  const SoftmaxCeTiles t = softmax_ce_tiles(logits.h, logits.w, H, W, align_corners);
  return static_cast<size_t>(logits.n * t.down * t.across) *
         (sizeof(double) + static_cast<size_t>(t.source_rows * t.source_columns * logits.c) * sizeof(float));
}

/// Blocks of the GPU's label_weight_sum, each with one double of workspace.
inline int64_t label_weight_sum_parts(int64_t count) {
  return std::clamp<int64_t>(count / 4096, 1, 1024);
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

// On the GPU: logits and d_logits nhwc of fp32, fp16 or bf16, all pointers to device memory; else as above. A wrong
// label lowers *fault to its flat index. Throws std::invalid_argument on another layout or dtype.
CONVOY_CUDA_KERNELS(
    /// workspace: softmax_ce_cuda_workspace_bytes, aligned to 8.
    void upsample_softmax_ce(cudaStream_t stream, const View& logits, const int32_t* target, int64_t H, int64_t W,
                             bool align_corners, int32_t ignore_index, const float* class_weight,
                             const float* normalizer, float* loss, const View& d_logits, int64_t* fault,
                             void* workspace);
    void upsample_focal_ce(cudaStream_t stream, const View& logits, const int32_t* target, int64_t H, int64_t W,
                           bool align_corners, int32_t ignore_index, const float* class_weight, const float* normalizer,
                           float alpha, float gamma, float* loss, const View& d_logits, int64_t* fault,
                           void* workspace);
    void upsample_label_probability(cudaStream_t stream, const View& logits, const int32_t* target, int64_t H,
                                    int64_t W, bool align_corners, int32_t ignore_index, float* probability);
    /// workspace: label_weight_sum_parts.
    void label_weight_sum(cudaStream_t stream, const int32_t* target, int64_t count, int64_t classes,
                          int32_t ignore_index, const float* class_weight, float* result, double* workspace);)
