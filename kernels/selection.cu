// Selection by histograms, wholly on the GPU: exact order statistics of values in [0,1], whose bit patterns have 30
// bits and the order of the values. Three passes count 10 bits each, from the top, of the values that share the bits
// found before; a launch of one block in between finds the bin. Three histograms of 1024 bins rather than the CPU's two
// of 32768: they fit into 4 KB of shared memory, so many blocks run at a time and nothing large is cleared or merged.
//   Bytes: the values once per pass, in three passes (one where the fixed threshold decides). For 4 x 1024 x 2048
//   probabilities 34 MB a pass: 0.03 ms on an H100 (3.35 TB/s) in all. Probabilities crowd near 1, in
//   one bin: count_bins counts them without contention.
//   Numerics: integers only (64 bits), so results do not depend on the order of execution.
#include "kernels/selection.h"

#include "kernels/cuda_common.h"
#include "kernels/cuda_reduce.h"
#include "kernels/softmax_ce.h"

namespace convoy::CONVOY_DEVICE {
namespace {

constexpr int kLevels = 3, kLevelBits = 10, kBins = 1 << kLevelBits;
constexpr int64_t kMostBlocks = 1024, kValuesPerBlock = 4096;

using Count = unsigned long long;

// In the workspace; behind it a count of equals per chunk.
struct State {
  Count bins[kLevels][kBins];
  Count below;     // candidates that are at most the limit
  int64_t left;    // which candidate is sought among those that share the bits found
  uint32_t found;  // bits
  int32_t sought;  // 0: the answer is known already
};
static_assert(sizeof(State) <= 3 * 1024 * 8 + 64);

// What is sought, of values whose number is known only on the device.
struct Goal {
  bool boxes;
  int64_t at_least;     // hard_threshold's min_kept, box_selection's without_positives
  float limit;          // of hard_threshold
  const float* wanted;  // of box_selection
  float* out;
  float* keeps_all;
};

__global__ void __launch_bounds__(kBlockThreads) clear_kernel(State* state) {
  for (int level = 0; level < kLevels; ++level)
    for (int b = threadIdx.x; b < kBins; b += kBlockThreads) state->bins[level][b] = 0;
  if (threadIdx.x == 0) state->below = 0;
}

template <int kLevel, bool kDescending>
__global__ void __launch_bounds__(kBlockThreads)
    histogram_kernel(const float* __restrict__ values, int64_t count, float limit, State* state) {
  CONVOY_SHARED(unsigned[kBins], bins);
  if (kLevel > 0 && !state->sought) return;
  for (int b = threadIdx.x; b < kBins; b += kBlockThreads) bins[b] = 0;
  __syncthreads();
  const uint32_t found = kLevel > 0 ? state->found : 0;
  constexpr int kShift = (kLevels - 1 - kLevel) * kLevelBits;
  unsigned below = 0;
  // All lanes of a warp take the same number of turns.
  for (int64_t first = static_cast<int64_t>(blockIdx.x) * kBlockThreads; first < count;
       first += static_cast<int64_t>(gridDim.x) * kBlockThreads) {
    const int64_t i = first + threadIdx.x;
    int bin = -1;
    if (i < count) {
      const float v = values[i] + 0.f;  // -0 becomes 0
      if (v >= 0.f && v <= 1.f) {
        const uint32_t bits = __float_as_uint(v), key = kDescending ? kBitsOfOne - bits : bits;
        if (kLevel == 0 || key >> (kShift + kLevelBits) == found) bin = static_cast<int>(key >> kShift & (kBins - 1));
        below += v <= limit;
      }
    }
    count_bins(bins, bin);
  }
  __syncthreads();
  for (int b = threadIdx.x; b < kBins; b += kBlockThreads)
    if (bins[b]) atomicAdd(&state->bins[kLevel][b], static_cast<Count>(bins[b]));
  if (kLevel == 0 && !kDescending) {
    below = block_sum(below);
    if (threadIdx.x == 0 && below) atomicAdd(&state->below, static_cast<Count>(below));
  }
}

// Which candidate is sought, 1 the first; 0 where the answer is known, which is then written.
__device__ int64_t candidate_of(const Goal& goal, int64_t candidates, int64_t below) {
  if (goal.boxes) {
    const auto wanted = static_cast<int64_t>(*goal.wanted);
    const int64_t k = min(wanted > 0 ? wanted : goal.at_least, candidates);
    if (k > 0) return k;
    goal.out[0] = 2.f;  // above every candidate
    goal.out[1] = goal.out[2] = 0.f;
    return 0;
  }
  const bool keeps_all = goal.at_least > candidates;
  *goal.keeps_all = keeps_all ? 1.f : 0.f;
  if (!keeps_all && below < goal.at_least) return goal.at_least;
  *goal.out = keeps_all ? 1.f : goal.limit;
  return 0;
}

// One block, a few bins per thread: finds the bin of the sought candidate. The last level knows the value.
template <int kLevel, bool kDescending>
__global__ void __launch_bounds__(kBlockThreads) pick_kernel(Goal goal, State* state) {
  CONVOY_SHARED(int64_t, sought);
  if (kLevel > 0 && !state->sought) return;
  constexpr int kOwn = kBins / kBlockThreads;
  int64_t own[kOwn], here = 0, candidates = 0;
#pragma unroll
  for (int b = 0; b < kOwn; ++b) {
    own[b] = static_cast<int64_t>(state->bins[kLevel][threadIdx.x * kOwn + b]);
    here += own[b];
  }
  int64_t before = block_exclusive_sum(here, &candidates);
  if (threadIdx.x == 0) {
    sought = kLevel == 0 ? candidate_of(goal, candidates, static_cast<int64_t>(state->below)) : state->left;
    if (kLevel == 0) state->sought = sought > 0;
  }
  __syncthreads();
  if (before >= sought || before + here < sought) return;
  uint32_t bin = 0;
#pragma unroll
  for (int b = 0; b < kOwn - 1; ++b)
    if (before + own[b] < sought && bin == static_cast<uint32_t>(b)) {
      before += own[b];
      ++bin;
    }
  const uint32_t found = (kLevel == 0 ? 0 : state->found) << kLevelBits | (threadIdx.x * kOwn + bin);
  state->found = found;
  state->left = sought - before;
  if (kLevel == kLevels - 1) *goal.out = __uint_as_float(kDescending ? kBitsOfOne - found : found);
}

__global__ void __launch_bounds__(kBlockThreads)
    keep_kernel(const int32_t* __restrict__ target, const float* __restrict__ probability, int64_t count,
                int32_t ignore_index, const float* __restrict__ threshold, int32_t* __restrict__ kept) {
  const float limit = *threshold;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kBlockThreads + threadIdx.x; i < count;
       i += static_cast<int64_t>(gridDim.x) * kBlockThreads)
    kept[i] = probability[i] > limit && probability[i] != kNoProbability ? ignore_index : target[i];
}

// Of every chunk how many values are equal to the one found.
__global__ void __launch_bounds__(kBlockThreads)
    tie_count_kernel(const float* __restrict__ values, int64_t count, const float* __restrict__ found,
                     const State* __restrict__ state, int64_t* __restrict__ ties) {
  if (!state->sought) return;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kTieChunk, last = min(first + kTieChunk, count);
  int equal = 0;
  for (int64_t i = first + threadIdx.x; i < last; i += kBlockThreads) equal += values[i] == *found;
  equal = block_sum(equal);
  if (threadIdx.x == 0) ties[blockIdx.x] = equal;
}

// One block: the place of the last of them that takes part.
__global__ void __launch_bounds__(kBlockThreads, 3)
    tie_place_kernel(const float* __restrict__ values, int64_t count, int64_t anchors, const State* __restrict__ state,
                     const int64_t* __restrict__ ties, int64_t chunks, float* selection) {
  CONVOY_SHARED(int64_t[2], chunk);  // its number, and how many of its equals take part
  if (!state->sought) return;
  // Every thread has a range of the chunks, then of the values of the chunk found.
  const int64_t range = (chunks + kBlockThreads - 1) / kBlockThreads;
  const int64_t begin = min(threadIdx.x * range, chunks), end = min(begin + range, chunks);
  int64_t here = 0;
  for (int64_t i = begin; i < end; ++i) here += ties[i];
  int64_t before = block_exclusive_sum(here);
  const int64_t sought = state->left;
  if (before < sought && sought <= before + here) {
    int64_t i = begin;
    while (before + ties[i] < sought) before += ties[i++];
    chunk[0] = i;
    chunk[1] = sought - before;
  }
  __syncthreads();
  constexpr int64_t kRange = kTieChunk / kBlockThreads;
  const int64_t first = chunk[0] * kTieChunk + threadIdx.x * kRange, last = min(first + kRange, count);
  const float found = selection[0];
  here = 0;
  for (int64_t i = first; i < last; ++i) here += values[i] == found;
  before = block_exclusive_sum(here);
  if (before >= chunk[1] || before + here < chunk[1]) return;
  for (int64_t i = first; i < last; ++i) {
    if (values[i] != found || ++before != chunk[1]) continue;
    selection[1] = static_cast<float>(i / anchors);
    selection[2] = static_cast<float>(i % anchors);
  }
}

template <bool kDescending>
void select(cudaStream_t stream, const float* values, int64_t count, const Goal& goal, State* state) {
  const dim3 blocks(static_cast<unsigned>(std::clamp<int64_t>(ceil_div(count, kValuesPerBlock), 1, kMostBlocks)));
  launch({dim3(1), dim3(kBlockThreads), 0, stream}, clear_kernel, state);
  const auto level = [&]<int kLevel>(std::integral_constant<int, kLevel>) {
    launch({blocks, dim3(kBlockThreads), 0, stream}, histogram_kernel<kLevel, kDescending>, values, count, goal.limit,
           state);
    launch({dim3(1), dim3(kBlockThreads), 0, stream}, pick_kernel<kLevel, kDescending>, goal, state);
  };
  level(std::integral_constant<int, 0>{});
  level(std::integral_constant<int, 1>{});
  level(std::integral_constant<int, 2>{});
}

}  // namespace

void hard_threshold(cudaStream_t stream, const float* values, int64_t count, float limit, int64_t min_kept,
                    float* threshold, float* keeps_all, void* workspace) {
  const Goal goal{false, min_kept, limit, nullptr, threshold, keeps_all};
  select<false>(stream, values, count, goal, static_cast<State*>(workspace));
}

void keep_hard_labels(cudaStream_t stream, const int32_t* target, const float* probability, int64_t count,
                      int32_t ignore_index, const float* threshold, int32_t* kept) {
  const dim3 blocks(static_cast<unsigned>(std::clamp<int64_t>(ceil_div(count, kBlockThreads), 1, kMostRowBlocks)));
  launch({blocks, dim3(kBlockThreads), 0, stream}, keep_kernel, target, probability, count, ignore_index, threshold,
         kept);
}

void box_selection(cudaStream_t stream, const float* hardness, int64_t images, int64_t anchors, const float* wanted,
                   int64_t without_positives, float* selection, void* workspace) {
  const int64_t count = images * anchors, chunks = ceil_div(count, kTieChunk);
  auto* const state = static_cast<State*>(workspace);
  auto* const ties = reinterpret_cast<int64_t*>(state + 1);
  select<true>(stream, hardness, count, {true, without_positives, 0.f, wanted, selection, nullptr}, state);
  launch({dim3(static_cast<unsigned>(chunks)), dim3(kBlockThreads), 0, stream}, tie_count_kernel, hardness, count,
         selection, state, ties);
  launch({dim3(1), dim3(kBlockThreads), 0, stream}, tie_place_kernel, hardness, count, anchors, state, ties, chunks,
         selection);
}

}  // namespace convoy::CONVOY_DEVICE
