// Exact order statistics of probabilities by histograms of their bits: floats in [0,1] have the order of their bit
// patterns, which are below 2^30. Counts of several lanes and ranks add up, so a threshold over all of them needs two
// histograms and no sorting.
#pragma once
#include <cstring>

#include "kernels/cuda_stream.h"
#include "kernels/isa.h"

namespace convoy {

/// Bins of one histogram: one half of a pattern's 30 bits.
constexpr int64_t kSelectionBins = int64_t{1} << 15;
constexpr uint32_t kBitsOfOne = 0x3f800000;

/// Position of a value in [0,1] in the order of selection: ascending, or descending by mirrored patterns. Smaller comes
/// first.
inline uint32_t selection_key(float value, bool descending) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return descending ? kBitsOfOne - bits : bits;
}
inline float selection_value(uint32_t key, bool descending) {
  const uint32_t bits = descending ? kBitsOfOne - key : key;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

/// Values among which the GPU's box_selection looks for equals at a time.
constexpr int64_t kTieChunk = 4096;

/// Bytes of `workspace` for the GPU's hard_threshold and box_selection of `count` values: three histograms of 1024
/// bins, a few scalars, and a count per chunk.
constexpr size_t selection_cuda_workspace_bytes(int64_t count) {
  return 3 * 1024 * 8 + 64 + static_cast<size_t>((count + kTieChunk - 1) / kTieChunk) * 8;
}

}  // namespace convoy

CONVOY_CPU_KERNELS(
    /// counts[0] = values in [0,1], counts[1] = those of them that are at most `limit`. Other values are none (pixels
    /// without a class, anchors that are no candidates).
    void count_candidates(const float* values, int64_t count, float limit, int64_t* counts);

    /// Adds to bins[kSelectionBins] the upper 15 bits of the keys of values in [0,1] (upper < 0), or the lower 15 bits
    /// of those whose upper ones are `upper`.
    void selection_histogram(const float* values, int64_t count, bool descending, int64_t upper, int64_t* bins);

    /// kept = ignore_index where the probability is above *threshold, else target: also where that is no class
    /// (kNoProbability) and where the probability is NaN, for the loss to show.
    void keep_hard_labels(const int32_t* target, const float* probability, int64_t count, int32_t ignore_index,
                          const float* threshold, int32_t* kept);)

// On the GPU selections over one lane run to their end without the host: all pointers are device memory.
CONVOY_CUDA_KERNELS(
    /// *threshold = limit where at least min_kept of the values in [0,1] are at most that; else the min_kept-th
    /// smallest of them; 1, and *keeps_all = 1 (else 0), where there are fewer. workspace:
    /// selection_cuda_workspace_bytes, aligned to 8.
    void hard_threshold(cudaStream_t stream, const float* values, int64_t count, float limit, int64_t min_kept,
                        float* threshold, float* keeps_all, void* workspace);

    /// As above.
    void keep_hard_labels(cudaStream_t stream, const int32_t* target, const float* probability, int64_t count,
                          int32_t ignore_index, const float* threshold, int32_t* kept);

    /// Which negatives of hardness (N,A) take part (BoxSelection of kernels/multibox.h as three floats): the *wanted
    /// hardest in [0,1], or without_positives where that is 0; of equal ones those of smaller index. selection[0] = 2
    /// where none does. workspace as above.
    void box_selection(cudaStream_t stream, const float* hardness, int64_t images, int64_t anchors, const float* wanted,
                       int64_t without_positives, float* selection, void* workspace);)
