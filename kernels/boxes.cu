// Boxes of a detector.
// Matching: a block per ground truth looks for its best anchor; a block per image forms the pairs, where only ground
// truths that lost their anchor look again; a thread per anchor picks among the ground truths. 32 images of 8732
// anchors and 10 ground truths: 2 x 2.8 M overlaps of about 20 FLOPs in double, 0.01 ms at 34 TFLOP/s of an H100, so
// bound by launches and the latency of the pairing rounds.
// Suppression: a block per image and class gathers its candidates in order; their ranks are counted, tile against tile
// of keys; then one block per image and class goes through the candidates by tiles of 64: bit masks of who removes whom
// within the tile, a serial sweep over them, and all later candidates against what was kept. 0.1 to 1 ms where
// thousands of candidates pass; the reading of 32 x 8732 x 21 scores, 23 MB, takes 0.01 ms.
// Numerics: overlaps in double from sides of 26 bits, equal to the CPU's to the bit; offsets in fp32.
#include "kernels/boxes.h"

#include "kernels/box_math.h"
#include "kernels/cuda_common.h"

namespace convoy::CONVOY_DEVICE {
namespace {

constexpr int kWarp = 32, kWarps = kBlockThreads / kWarp;
constexpr int kSweepTile = 64;
constexpr int64_t kMostGridPlanes = 65535;

unsigned extent(int64_t blocks, int64_t most) {
  return static_cast<unsigned>(std::clamp<int64_t>(blocks, 1, most));
}

struct Best {
  double overlap;
  int64_t index;
};

__device__ inline Best better(const Best& a, const Best& b) {
  return b.overlap > a.overlap || (b.overlap == a.overlap && b.index < a.index) ? b : a;
}

/// The best of all threads of the block, for all of them.
__device__ Best block_best(Best best) {
  CONVOY_SHARED(double[kWarps], overlaps);
  CONVOY_SHARED(int64_t[kWarps], indices);
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) {
    const Best other{__shfl_xor_sync(~0u, best.overlap, step), __shfl_xor_sync(~0u, best.index, step)};
    best = better(best, other);
  }
  __syncthreads();
  if (threadIdx.x % kWarp == 0) {
    overlaps[threadIdx.x / kWarp] = best.overlap;
    indices[threadIdx.x / kWarp] = best.index;
  }
  __syncthreads();
  best = {overlaps[0], indices[0]};
  for (int warp = 1; warp < kWarps; ++warp) best = better(best, {overlaps[warp], indices[warp]});
  return best;
}

/// As on the CPU: the first anchor of the largest overlap, (0, 0) where nothing overlaps. `matches` may be null.
__device__ Best best_anchor(const float* anchors, int64_t count, const Box& truth, const int32_t* matches) {
  Best best{0, 0};
  for (int64_t a = threadIdx.x; a < count; a += kBlockThreads) {
    if (matches && matches[a] >= 0) continue;
    const double overlap = box_overlap(box_at(anchors, a), truth);
    if (overlap > best.overlap) best = {overlap, a};
  }
  return block_best(best);
}

// Grid (ground truths, images).
template <class T>
__global__ void __launch_bounds__(kBlockThreads)
    best_anchors_kernel(const T* __restrict__ anchors, const T* __restrict__ truths,
                        const int32_t* __restrict__ truth_counts, MatchSize size, Best* __restrict__ best) {
  for (int64_t n = blockIdx.y; n < size.images; n += gridDim.y) {
    const int64_t in_use = truths_in_use(truth_counts[n], size.truths);
    for (int64_t g = blockIdx.x; g < in_use; g += gridDim.x) {
      const Best found = best_anchor(anchors, size.anchors, box_at(truths, n * size.truths + g), nullptr);
      if (threadIdx.x == 0) best[n * size.truths + g] = found;
    }
  }
}

template <class T>
__global__ void __launch_bounds__(kBlockThreads) clear_kernel(T* to, int64_t count, T value) {
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kBlockThreads + threadIdx.x; i < count;
       i += static_cast<int64_t>(gridDim.x) * kBlockThreads)
    to[i] = value;
}

// A block per image. `best` and `matches` of an image are its block's alone.
template <class T>
__global__ void __launch_bounds__(kBlockThreads)
    pairs_kernel(const T* __restrict__ anchors, const T* __restrict__ truths, const int32_t* __restrict__ truth_counts,
                 MatchSize size, int32_t* matches, Best* all_best) {
  for (int64_t n = blockIdx.x; n < size.images; n += gridDim.x) {
    const int64_t in_use = truths_in_use(truth_counts[n], size.truths);
    Best* best = all_best + n * size.truths;
    int32_t* match = matches + n * size.anchors;
    for (int64_t round = 0; round < in_use; ++round) {
      Best winner{0, size.truths};
      for (int64_t g = threadIdx.x; g < in_use; g += kBlockThreads)
        if (best[g].overlap > 0) winner = better(winner, {best[g].overlap, g});
      winner = block_best(winner);
      if (!(winner.overlap > 0)) break;
      const int64_t anchor = best[winner.index].index;
      __syncthreads();
      if (threadIdx.x == 0) {
        match[anchor] = static_cast<int32_t>(winner.index);
        best[winner.index].overlap = 0;
      }
      __syncthreads();
      for (int64_t g = 0; g < in_use; ++g) {
        const bool lost = best[g].overlap > 0 && best[g].index == anchor;
        if (!lost) continue;  // the same for all threads
        const Best next = best_anchor(anchors, size.anchors, box_at(truths, n * size.truths + g), match);
        if (threadIdx.x == 0) best[g] = next;
      }
      __syncthreads();
    }
  }
}

// Grid (blocks of anchors, images).
template <class T>
__global__ void __launch_bounds__(kBlockThreads, 4)
    choose_kernel(const T* __restrict__ anchors, const T* __restrict__ truths, const int32_t* __restrict__ truth_counts,
                  MatchSize size, bool legacy, double threshold, const Best* __restrict__ best, int32_t* matches) {
  const int64_t a = static_cast<int64_t>(blockIdx.x) * kBlockThreads + threadIdx.x;
  if (a >= size.anchors) return;
  const Box anchor = box_at(anchors, a);
  for (int64_t n = blockIdx.y; n < size.images; n += gridDim.y) {
    int32_t match = matches[n * size.anchors + a];
    if (match >= 0) continue;
    const int64_t in_use = truths_in_use(truth_counts[n], size.truths);
    double most = 0;
    for (int64_t g = 0; g < in_use; ++g) {
      const double overlap = box_overlap(anchor, box_at(truths, n * size.truths + g));
      const Best own = best[n * size.truths + g];
      const bool forced = legacy && own.overlap <= threshold && own.index == a;
      if (!(overlap > threshold || forced) || !(overlap > most)) continue;
      most = overlap;
      match = static_cast<int32_t>(g);
    }
    matches[n * size.anchors + a] = match;
  }
}

template <class T>
__global__ void __launch_bounds__(kBlockThreads, 4)
    encode_kernel(const T* __restrict__ anchors, const T* __restrict__ truths,
                  const int32_t* __restrict__ truth_classes, const int32_t* __restrict__ matches, MatchSize size,
                  BoxVariances variances, T* __restrict__ targets, int32_t* __restrict__ classes) {
  const int64_t a = static_cast<int64_t>(blockIdx.x) * kBlockThreads + threadIdx.x;
  if (a >= size.anchors) return;
  const Box anchor = box_at(anchors, a);
  const float w = anchor.x2 - anchor.x1, h = anchor.y2 - anchor.y1;
  for (int64_t n = blockIdx.y; n < size.images; n += gridDim.y) {
    const int64_t i = n * size.anchors + a;
    float target[4] = {};
    int32_t of_class = 0;
    if (matches[i] >= 0) {
      const int64_t g = n * size.truths + matches[i];
      const Box truth = box_at(truths, g);
      target[0] = 0.5f * ((truth.x1 - anchor.x1) + (truth.x2 - anchor.x2)) / w / variances.center;
      target[1] = 0.5f * ((truth.y1 - anchor.y1) + (truth.y2 - anchor.y2)) / h / variances.center;
      target[2] = logf((truth.x2 - truth.x1) / w) / variances.size;
      target[3] = logf((truth.y2 - truth.y1) / h) / variances.size;
      of_class = truth_classes[g] + 1;
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) targets[4 * i + k] = target[k];
    classes[i] = of_class;
  }
}

template <class T>
__global__ void __launch_bounds__(kBlockThreads)
    decode_kernel(const T* __restrict__ offsets, const T* __restrict__ anchors, int64_t images, int64_t anchor_count,
                  BoxVariances variances, bool clip, T* __restrict__ boxes) {
  const int64_t a = static_cast<int64_t>(blockIdx.x) * kBlockThreads + threadIdx.x;
  if (a >= anchor_count) return;
  const Box anchor = box_at(anchors, a);
  const float w = anchor.x2 - anchor.x1, h = anchor.y2 - anchor.y1;
  for (int64_t n = blockIdx.y; n < images; n += gridDim.y) {
    const T* offset = offsets + 4 * (n * anchor_count + a);
    const float cx = 0.5f * (anchor.x1 + anchor.x2) + offset[0] * variances.center * w;
    const float cy = 0.5f * (anchor.y1 + anchor.y2) + offset[1] * variances.center * h;
    const float half_w = 0.5f * w * expf(offset[2] * variances.size);
    const float half_h = 0.5f * h * expf(offset[3] * variances.size);
    const float corners[4] = {cx - half_w, cy - half_h, cx + half_w, cy + half_h};
#pragma unroll
    for (int k = 0; k < 4; ++k)
      boxes[4 * (n * anchor_count + a) + k] = !clip              ? corners[k]
                                              : corners[k] < 0.f ? 0.f
                                              : corners[k] > 1.f ? 1.f
                                                                 : corners[k];
  }
}

/// Per image and class: keys of the candidates as they come and in order, and what the sweep has removed.
struct Lists {
  uint64_t *keys, *sorted;
  int64_t* counts;
  uint8_t* removed;
};

Lists lists_of(const DetectionSize& size, void* workspace) {
  const int64_t lists = size.images * size.classes, candidates = lists * size.anchors;
  auto* keys = static_cast<uint64_t*>(workspace);
  auto* counts = reinterpret_cast<int64_t*>(keys + 2 * candidates);
  return {keys, keys + candidates, counts, reinterpret_cast<uint8_t*>(counts + lists)};
}

// A block per image and class: its candidates in the order of the anchors.
template <class T>
__global__ void __launch_bounds__(kBlockThreads)
    candidates_kernel(const T* __restrict__ boxes, const T* __restrict__ scores, DetectionSize size, float threshold,
                      Lists lists) {
  CONVOY_SHARED(int[kWarps], of_warp);
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  for (int64_t list = blockIdx.x; list < size.images * size.classes; list += gridDim.x) {
    const int64_t n = list / size.classes, c = list - n * size.classes;
    uint64_t* keys = lists.keys + list * size.anchors;
    int64_t count = 0;
    for (int64_t first = 0; c > 0 && first < size.anchors; first += kBlockThreads) {
      const int64_t a = first + threadIdx.x;
      float score = 0;
      bool candidate = false;
      if (a < size.anchors) {
        score = scores[(n * size.anchors + a) * size.classes + c];
        candidate = score > threshold && box_is_number(box_at(boxes, n * size.anchors + a));
      }
      const unsigned votes = __ballot_sync(~0u, candidate);
      __syncthreads();
      if (lane == 0) of_warp[warp] = __popc(votes);
      __syncthreads();
      int before = __popc(votes & ((1u << lane) - 1)), total = 0;
      for (int k = 0; k < kWarps; ++k) {
        before += k < warp ? of_warp[k] : 0;
        total += of_warp[k];
      }
      if (candidate) keys[count + before] = score_key(__float_as_uint(score), a);
      count += total;
    }
    if (threadIdx.x == 0) lists.counts[list] = count;
  }
}

// Grid (blocks of candidates, images and classes): a candidate's place is the number of larger keys.
template <class T>
__global__ void __launch_bounds__(kBlockThreads)
    rank_kernel(const T* __restrict__ all_keys, const int64_t* __restrict__ counts, int64_t list_count, int64_t anchors,
                int64_t capacity, T* __restrict__ sorted) {
  CONVOY_SHARED(T[kBlockThreads], tile);
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kBlockThreads, i = first + threadIdx.x;
  for (int64_t list = blockIdx.y; list < list_count; list += gridDim.y) {
    const int64_t count = counts[list];
    if (first >= count) continue;  // the same for all threads
    const T* keys = all_keys + list * anchors;
    const T key = i < count ? keys[i] : 0;
    int64_t rank = 0;
    for (int64_t start = 0; start < count; start += kBlockThreads) {
      const int length = static_cast<int>(count - start < kBlockThreads ? count - start : kBlockThreads);
      __syncthreads();
      if (threadIdx.x < static_cast<unsigned>(length)) tile[threadIdx.x] = keys[start + threadIdx.x];
      __syncthreads();
      for (int k = 0; k < length; ++k) rank += tile[k] > key;
    }
    if (i < count && rank < capacity) sorted[list * anchors + rank] = key;
  }
}

// A block per image and class.
template <class T>
__global__ void __launch_bounds__(kBlockThreads, 4)
    sweep_kernel(const T* __restrict__ boxes, DetectionSize size, int64_t capacity, double threshold, Lists lists,
                 int32_t* __restrict__ kept, int32_t* __restrict__ counts) {
  CONVOY_SHARED(Box[kSweepTile], tile);
  CONVOY_SHARED(uint64_t[kSweepTile], removes);
  CONVOY_SHARED(uint64_t, alive);
  for (int64_t list = blockIdx.x; list < size.images * size.classes; list += gridDim.x) {
    const T* image_boxes = boxes + 4 * (list / size.classes) * size.anchors;
    const uint64_t* keys = lists.sorted + list * size.anchors;
    uint8_t* removed = lists.removed + list * size.anchors;
    int32_t* detections = kept + list * capacity;
    const int64_t count = lists.counts[list] < capacity ? lists.counts[list] : capacity;
    for (int64_t i = threadIdx.x; i < count; i += kBlockThreads) removed[i] = 0;
    int64_t found = 0;
    for (int64_t first = 0; first < count; first += kSweepTile) {
      const int length = static_cast<int>(count - first < kSweepTile ? count - first : kSweepTile);
      __syncthreads();
      for (int k = threadIdx.x; k < length; k += kBlockThreads) {
        tile[k] = box_at(image_boxes, key_anchor(keys[first + k]));
        removes[k] = 0;
      }
      if (threadIdx.x == 0) alive = 0;
      __syncthreads();
      // A quarter of a row of the mask per thread; bits are added by integer atomics, in any order.
      static_assert(kBlockThreads == 4 * kSweepTile);
      const int row = threadIdx.x / 4, column = threadIdx.x % 4 * (kSweepTile / 4);
      if (row < length && !removed[first + row]) {
        if (column == 0) atomicOr(reinterpret_cast<unsigned long long*>(&alive), 1ull << row);
        unsigned long long bits = 0;
        for (int k = column; k < column + kSweepTile / 4 && k < length; ++k)
          if (k > row && box_overlap(tile[row], tile[k]) > threshold) bits |= 1ull << k;
        if (bits) atomicOr(reinterpret_cast<unsigned long long*>(&removes[row]), bits);
      }
      __syncthreads();
      if (threadIdx.x == 0) {
        uint64_t left = alive;
        for (int k = 0; k < length; ++k)
          if (left >> k & 1) left &= ~removes[k];
        alive = left;
      }
      __syncthreads();
      const uint64_t survivors = alive;
      if (static_cast<int>(threadIdx.x) < length && survivors >> threadIdx.x & 1)
        detections[found + __popcll(survivors & ((1ull << threadIdx.x) - 1))] =
            static_cast<int32_t>(key_anchor(keys[first + threadIdx.x]));
      found += __popcll(survivors);
      for (int64_t i = first + kSweepTile + threadIdx.x; i < count; i += kBlockThreads) {
        if (removed[i]) continue;
        const Box box = box_at(image_boxes, key_anchor(keys[i]));
        bool gone = false;
        for (uint64_t rest = survivors; rest && !gone; rest &= rest - 1)
          gone = box_overlap(tile[__ffsll(static_cast<long long>(rest)) - 1], box) > threshold;
        if (gone) removed[i] = 1;
      }
    }
    for (int64_t i = found + threadIdx.x; i < capacity; i += kBlockThreads) detections[i] = -1;
    if (threadIdx.x == 0) counts[list] = static_cast<int32_t>(found);
    __syncthreads();
  }
}

dim3 per_anchor(int64_t anchors, int64_t images) {
  return dim3(extent(ceil_div(anchors, kBlockThreads), INT32_MAX), extent(images, kMostGridPlanes));
}

}  // namespace

void match_boxes(cudaStream_t stream, const float* anchors, const float* truths, const int32_t* truth_counts,
                 const MatchSize& size, const MatchRule& rule, int32_t* matches, void* workspace) {
  if (size.images == 0 || size.anchors == 0) return;
  auto* best = static_cast<Best*>(workspace);
  const dim3 block(kBlockThreads);
  const int64_t all = size.images * size.anchors;
  launch({extent(ceil_div(all, kBlockThreads), kMostRowBlocks), block, 0, stream}, clear_kernel<int32_t>, matches, all,
         -1);
  if (size.truths == 0) return;
  const dim3 searches(extent(size.truths, INT32_MAX), extent(size.images, kMostGridPlanes));
  launch({searches, block, 0, stream}, best_anchors_kernel<float>, anchors, truths, truth_counts, size, best);
  const bool legacy = rule.matching == BoxMatching::kLegacy;
  if (!legacy)
    launch({extent(size.images, INT32_MAX), block, 0, stream}, pairs_kernel<float>, anchors, truths, truth_counts, size,
           matches, best);
  launch({per_anchor(size.anchors, size.images), block, 0, stream}, choose_kernel<float>, anchors, truths, truth_counts,
         size, legacy, static_cast<double>(rule.threshold), best, matches);
}

void encode_boxes(cudaStream_t stream, const float* anchors, const float* truths, const int32_t* truth_classes,
                  const int32_t* matches, const MatchSize& size, const BoxVariances& variances, float* targets,
                  int32_t* classes) {
  if (size.images == 0 || size.anchors == 0) return;
  launch({per_anchor(size.anchors, size.images), dim3(kBlockThreads), 0, stream}, encode_kernel<float>, anchors, truths,
         truth_classes, matches, size, variances, targets, classes);
}

void decode_boxes(cudaStream_t stream, const float* offsets, const float* anchors, int64_t images, int64_t anchor_count,
                  const BoxVariances& variances, bool clip, float* boxes) {
  if (images == 0 || anchor_count == 0) return;
  launch({per_anchor(anchor_count, images), dim3(kBlockThreads), 0, stream}, decode_kernel<float>, offsets, anchors,
         images, anchor_count, variances, clip, boxes);
}

void nms(cudaStream_t stream, const float* boxes, const float* scores, const DetectionSize& size, const NmsRule& rule,
         int32_t* kept, int32_t* counts, void* workspace) {
  const int64_t list_count = size.images * size.classes, capacity = nms_capacity(size, rule);
  if (list_count == 0) return;
  const Lists lists = lists_of(size, workspace);
  const dim3 block(kBlockThreads);
  const unsigned blocks = extent(list_count, INT32_MAX);
  launch({blocks, block, 0, stream}, candidates_kernel<float>, boxes, scores, size, rule.score_threshold, lists);
  launch({per_anchor(size.anchors, list_count), block, 0, stream}, rank_kernel<uint64_t>, lists.keys, lists.counts,
         list_count, size.anchors, capacity, lists.sorted);
  launch({blocks, block, 0, stream}, sweep_kernel<float>, boxes, size, capacity,
         static_cast<double>(rule.overlap_threshold), lists, kept, counts);
}

}  // namespace convoy::CONVOY_DEVICE
