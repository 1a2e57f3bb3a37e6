// Exact order statistics of probabilities by histograms of their bits: floats in [0,1] have the order of their bit
// patterns, which are below 2^30. Counts of several lanes and ranks add up, so a threshold over all of them needs two
// histograms and no sorting.
#pragma once
#include <cstring>

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
