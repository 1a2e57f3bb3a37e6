// Boxes of a single-shot detector (Liu et al. 2016, SSD): anchors, ground truths, predictions. Plain fp32 arrays of
// corners (x1, y1, x2, y2), anchors (A,4) for all N images. Class 0 is the background.
#pragma once
#include "kernels/cuda_stream.h"
#include "kernels/isa.h"

namespace convoy {

/// N images, A anchors, room for G ground truths per image; truth_counts (N) of them are in use.
struct MatchSize {
  int64_t images = 0, anchors = 0, truths = 0;
};

enum class BoxMatching : uint8_t {
  /// First pairs of a ground truth and an anchor, best overlap first until one side is used up or nothing overlaps;
  /// of equal overlaps the smaller ground truth, then the smaller anchor. Then every other anchor goes to the ground
  /// truth that it overlaps most, if by more than the threshold.
  kBipartite,
  /// As the reference encodes: a ground truth claims the anchors that it overlaps by more than the threshold, or its
  /// best one where there are none; an anchor goes to the claim of the largest overlap. A ground truth may lose its
  /// only anchor to another.
  kLegacy,
};
struct MatchRule {
  BoxMatching matching = BoxMatching::kBipartite;
  float threshold = 0.5f;
};

/// Scales of the offsets of centres and of the logarithms of sizes.
struct BoxVariances {
  float center = 0.1f, size = 0.2f;
};

/// N images, A anchors (fewer than 2^31), C classes with the background.
struct DetectionSize {
  int64_t images = 0, anchors = 0, classes = 0;
};
struct NmsRule {
  float score_threshold = 0.5f;     ///< candidates score higher
  float overlap_threshold = 0.45f;  ///< what overlaps a better one of its class by more than this is removed
  int64_t top_k = 0;                ///< candidates per class, best first; 0: all
};

/// Detections of a class that nms has room for.
constexpr int64_t nms_capacity(const DetectionSize& size, const NmsRule& rule) {
  return rule.top_k > 0 && rule.top_k < size.anchors ? rule.top_k : size.anchors;
}

/// Bytes of `workspace`, aligned to 8.
constexpr size_t match_boxes_workspace_bytes(const MatchSize& size) {
  return static_cast<size_t>(size.images * size.truths) * (sizeof(double) + sizeof(int64_t));
}
constexpr size_t nms_workspace_bytes(const DetectionSize& size) {
  const int64_t candidates = size.images * size.classes * size.anchors, lists = size.images * size.classes;
  return static_cast<size_t>(candidates * 17 + lists * 8 + 8);
}

}  // namespace convoy

// match_boxes    matches (N,A) = ground truth of each anchor, -1 for background. truths (N,G,4). Empty boxes and those
//                with NaN match nothing; ties by the smallest index.
// encode_boxes   targets (N,A,4) = offsets of the anchors' ground truths: (centre difference / anchor size /
//                variances.center, log(size ratio) / variances.size), 0 for background; classes (N,A) = 1 + class of
//                the ground truth, 0 for background. truth_classes (N,G).
// decode_boxes   boxes (N,A,4) = corners of the anchors moved by offsets (N,A,4), the inverse; `clip` to [0,1].
// nms            per image and class but the background, greedy: kept (N,C,capacity) = anchors, best score first, of
//                equal ones the smaller anchor, then -1; counts (N,C). boxes (N,A,4), scores (N,A,C); NaN scores and
//                boxes with NaN are no candidates, empty boxes remove none and are removed by none.
CONVOY_CPU_KERNELS(void match_boxes(const float* anchors, const float* truths, const int32_t* truth_counts,
                                    const MatchSize& size, const MatchRule& rule, int32_t* matches, void* workspace);
                   void encode_boxes(const float* anchors, const float* truths, const int32_t* truth_classes,
                                     const int32_t* matches, const MatchSize& size, const BoxVariances& variances,
                                     float* targets, int32_t* classes);
                   void decode_boxes(const float* offsets, const float* anchors, int64_t images, int64_t anchor_count,
                                     const BoxVariances& variances, bool clip, float* boxes);
                   void nms(const float* boxes, const float* scores, const DetectionSize& size, const NmsRule& rule,
                            int32_t* kept, int32_t* counts, void* workspace);)

// On the GPU: as above, matches and detections to the bit. Nothing is read by the host between launches.
CONVOY_CUDA_KERNELS(void match_boxes(cudaStream_t stream, const float* anchors, const float* truths,
                                     const int32_t* truth_counts, const MatchSize& size, const MatchRule& rule,
                                     int32_t* matches, void* workspace);
                    void encode_boxes(cudaStream_t stream, const float* anchors, const float* truths,
                                      const int32_t* truth_classes, const int32_t* matches, const MatchSize& size,
                                      const BoxVariances& variances, float* targets, int32_t* classes);
                    void decode_boxes(cudaStream_t stream, const float* offsets, const float* anchors, int64_t images,
                                      int64_t anchor_count, const BoxVariances& variances, bool clip, float* boxes);
                    void nms(cudaStream_t stream, const float* boxes, const float* scores, const DetectionSize& size,
                             const NmsRule& rule, int32_t* kept, int32_t* counts, void* workspace);)
