// The loss of a single-shot detector (Liu et al. 2016, SSD, section 2.2) over N images of A anchors and C classes;
// class 0 is the background. Plain arrays: conf (N,A,C), classes (N,A), loc and boxes (N,A,4).
#pragma once
#include "kernels/cuda_stream.h"
#include "kernels/isa.h"

namespace convoy {

/// Units of work of multibox_loss, whatever the shape.
constexpr int64_t kBoxParts = 64;

/// Where the negatives that take part end: those of a larger hardness do, and of equal ones those up to an anchor of an
/// image.
struct BoxSelection {
  float hardness = 0;
  int64_t last_image = 0, last_anchor = 0;
};

/// Anchors of one block of the GPU's kernels.
constexpr int64_t kAnchorsPerBlock = 256;

/// Bytes of `workspace` for the GPU's box_hardness and multibox_loss.
constexpr size_t multibox_cuda_workspace_bytes(int64_t images, int64_t anchors) {
  return static_cast<size_t>(images * ((anchors + kAnchorsPerBlock - 1) / kAnchorsPerBlock)) * 8;
}

}  // namespace convoy

CONVOY_CPU_KERNELS(
    /// hardness (N,A) of background anchors: the sum of the probabilities of all other classes, in [0,1]; -1 for
    /// positives, which are no candidates. counts[0] = sum over images of min(ratio * positives, negatives), counts[1]
    /// = sum over images of max(positives, 1). *bad_index: the first flat index whose class is none, -1 where all are
    /// good; counts as background.
    void box_hardness(const float* conf, const int32_t* classes, int64_t images, int64_t anchors, int64_t class_count,
                      float ratio, float* hardness, float* counts, int64_t* bad_index);

    /// loss = (sum over positives of alpha * smooth L1 (beta 1) of loc - boxes, summed over 4, + sum over positives and
    /// selected negatives of -log max(softmax(conf)[class], 1e-7)) / normalizer; 0 where that is 0. first_image: number
    /// of image 0 in the batch that the selection is from. d_loc, d_conf: gradients; null: not wanted.
    void multibox_loss(const float* loc, const float* conf, const float* boxes, const int32_t* classes,
                       const float* hardness, int64_t images, int64_t anchors, int64_t class_count, float alpha,
                       const BoxSelection& selection, int64_t first_image, float normalizer, float* loss, float* d_loc,
                       float* d_conf);)

// On the GPU: as above, all pointers to device memory, workspace: multibox_cuda_workspace_bytes, aligned to 8.
CONVOY_CUDA_KERNELS(
    /// A class that is none lowers *fault to its flat index.
    void box_hardness(cudaStream_t stream, const float* conf, const int32_t* classes, int64_t images, int64_t anchors,
                      int64_t class_count, float ratio, float* hardness, float* counts, int64_t* fault,
                      void* workspace);

    /// selection: BoxSelection as three floats.
    void multibox_loss(cudaStream_t stream, const float* loc, const float* conf, const float* boxes,
                       const int32_t* classes, const float* hardness, int64_t images, int64_t anchors,
                       int64_t class_count, float alpha, const float* selection, int64_t first_image,
                       const float* normalizer, float* loss, float* d_loc, float* d_conf, void* workspace);)
