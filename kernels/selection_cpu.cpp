// Selection by histograms.
//   Bytes: each pass reads the values once. Expected bound: memory for the counts, the increments of bins for the
//   histograms.
//   Numerics: integers only, so results depend on neither threads nor the division of the values.
#include "kernels/selection.h"

#include "kernels/blocked.h"
#include "kernels/softmax_ce.h"

namespace convoy::cpu::CONVOY_ISA {
namespace {
constexpr int64_t kWorthThreads = 65536;
constexpr int64_t kChunk = 16384;

bool is_candidate(float v) {
  return v >= 0 && v <= 1;
}
}  // namespace

void count_candidates(const float* values, int64_t count, float limit, int64_t* counts) {
  int64_t valid = 0, below = 0;
#pragma omp parallel for schedule(static) reduction(+ : valid, below) if (count >= kWorthThreads)
  for (int64_t first = 0; first < count; first += kChunk) {
    const int64_t last = smaller(first + kChunk, count);
    int32_t v = 0, b = 0;  // of a chunk
    for (int64_t i = first; i < last; ++i) {
      const bool candidate = values[i] >= 0 && values[i] <= 1;
      v += candidate;
      b += candidate && values[i] <= limit;
    }
    valid += v;
    below += b;
  }
  counts[0] = valid;
  counts[1] = below;
}

void selection_histogram(const float* values, int64_t count, bool descending, int64_t upper, int64_t* bins) {
#pragma omp parallel for schedule(static) reduction(+ : bins[:kSelectionBins]) if (count >= kWorthThreads)
  for (int64_t i = 0; i < count; ++i) {
    if (!is_candidate(values[i])) continue;
    const uint32_t key = selection_key(values[i] + 0.0f, descending);  // -0 becomes 0
    if (upper < 0)
      ++bins[key >> 15];
    else if (static_cast<int64_t>(key >> 15) == upper)
      ++bins[key & (kSelectionBins - 1)];
  }
}

void keep_hard_labels(const int32_t* target, const float* probability, int64_t count, int32_t ignore_index,
                      const float* threshold, int32_t* kept) {
  const float limit = *threshold;
  parallel_for(ceil_div(count, kChunk), kChunk, [&](int64_t chunk) {
    const int64_t last = smaller((chunk + 1) * kChunk, count);
    for (int64_t i = chunk * kChunk; i < last; ++i)
      kept[i] = probability[i] > limit && probability[i] != kNoProbability ? ignore_index : target[i];
  });
}

}  // namespace convoy::cpu::CONVOY_ISA
