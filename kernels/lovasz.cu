// Lovasz-Softmax of nhwc logits. A list holds the errors of one class of one group (image, or whole batch); some lists
// are worked on at a time (LovaszLists), as many as fill the GPU. Their errors and pixels are sorted by the error's
// bits in four stable passes of 8 bits: count the digits of every block of 4096, sum the counts over blocks, scatter.
// In a warp the lanes with equal digits find each other by __match_any_sync. Then a list's slopes follow from the
// numbers of hits before each place; the gradient of the probabilities, kept in planes so that its scattered writes
// meet in the second-level cache, goes through the softmax in a last pass over the pixels. Lists of absent classes are
// skipped.
//   Bytes per pixel and class present: 8 written, 4 passes of 20, 8 + 4 for the slopes, 8 in the end: about 110. For 19
//   classes, 4 x 512 x 1024: 4.4 GB, 1.4 ms on an H100 (3.35 TB/s), and some 20 launches per 8 M errors.
//   Numerics: storage fp32, fp16 or bf16; errors in fp32; slopes from counts, in closed form and in double; losses
//   summed in double in a fixed order. Sorting is stable and pixels without a label sort last, so equal errors keep the
//   order of pixels.
#include "kernels/cuda_common.h"
#include "kernels/cuda_pixel_softmax.h"
#include "kernels/cuda_reduce.h"
#include "kernels/region_losses.h"

namespace convoy::CONVOY_DEVICE {
namespace {

constexpr int kWarps = kBlockThreads / 32;
constexpr int kOwn = LovaszLists::kBlock / kBlockThreads;  // errors of a thread
constexpr int kWarpErrors = kOwn * 32;                     // a warp's are neighbours
constexpr int kDigits = 256, kDigitBits = 8, kPasses = 4;
constexpr int64_t kMostClasses = 1024;
constexpr uint32_t kOne = 0x3f800000;  // bits of the largest error
// Keys ascend from the largest error, kOne - bits; then come NaN, to be seen, and pixels without a label.
constexpr uint32_t kNanKey = kOne + 1, kNoLabel = kOne + 2;
constexpr uint32_t kIsClass = 0x80000000;  // of Item::pixel
static_assert(kDigits == kBlockThreads);

using Count = unsigned long long;

struct alignas(8) Item {
  uint32_t key, pixel;
};

// The lists being worked on.
struct Lists {
  int64_t first, pixels, classes, blocks;
  const Count* positives;  // of all lists
};

// Whether the list of this block exists and its class occurs. blockIdx.y is its slot.
__device__ bool is_present(const Lists& lists) {
  return lists.positives[lists.first + blockIdx.y] > 0;
}

// The place of a thread's k-th error in its list: warps own neighbours, lanes take turns.
__device__ int64_t place_of(int k) {
  return static_cast<int64_t>(blockIdx.x) * LovaszLists::kBlock + threadIdx.x / 32 * kWarpErrors + k * 32 +
         threadIdx.x % 32;
}

// How many turns a warp has: the others are behind the end of the list.
__device__ int turns_of(const Lists& lists) {
  const int64_t left = lists.pixels - (place_of(0) - threadIdx.x % 32);
  return static_cast<int>(min((max(left, int64_t{0}) + 31) / 32, static_cast<int64_t>(kOwn)));
}

__global__ void __launch_bounds__(kBlockThreads) clear_kernel(Count* positives, int64_t count) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kBlockThreads + threadIdx.x;
  if (i < count) positives[i] = 0;
}

// Softmax of every labelled pixel, and how many pixels of a group have each class. Grid (blocks of a group's pixels,
// groups).
template <class T, int kLanes>
__global__ void __launch_bounds__(kBlockThreads)
    softmax_kernel(Operand<const T> logits, Rows shape, const int32_t* __restrict__ target, int64_t pixels,
                   int32_t ignore_index, float2* __restrict__ softmax, Count* positives, int64_t* fault) {
  CONVOY_DYNAMIC_SHARED(unsigned, bins);
  const int64_t group = blockIdx.y, step = static_cast<int64_t>(gridDim.x) * kBlockThreads;
  for (int64_t c = threadIdx.x; c < shape.channels; c += kBlockThreads) bins[c] = 0;
  __syncthreads();
  for (int64_t first = static_cast<int64_t>(blockIdx.x) * kBlockThreads; first < pixels; first += step) {
    const int64_t pixel = first + threadIdx.x, row = group * pixels + pixel;
    const int32_t label = pixel < pixels ? class_of(target, row, shape.channels, ignore_index, fault) : -1;
    count_bins(bins, label);
    if (label < 0) continue;
    const PixelSoftmax s = pixel_softmax<kLanes>(logits, shape, row);
    softmax[row] = float2{s.high, s.inverse};
  }
  __syncthreads();
  for (int64_t c = threadIdx.x; c < shape.channels; c += kBlockThreads)
    if (bins[c]) atomicAdd(&positives[group * shape.channels + c], static_cast<Count>(bins[c]));
}

// A block per group: 1 / the number of classes that occur, 0 where none does.
__global__ void __launch_bounds__(kBlockThreads)
    present_kernel(const Count* __restrict__ positives, int64_t classes, double* __restrict__ shares) {
  int present = 0;
  for (int64_t c = threadIdx.x; c < classes; c += kBlockThreads) present += positives[blockIdx.x * classes + c] > 0;
  present = block_sum(present);
  if (threadIdx.x == 0) shares[blockIdx.x] = present ? 1.0 / present : 0.0;
}

// A thread takes one pixel of a group and all slots, whose logits are mostly neighbours.
template <class T>
__global__ void __launch_bounds__(kBlockThreads)
    keys_kernel(Operand<const T> logits, Lists lists, int slots, const int32_t* __restrict__ target,
                int32_t ignore_index, const float2* __restrict__ softmax, Item* __restrict__ items) {
  const int64_t pixel = static_cast<int64_t>(blockIdx.x) * kBlockThreads + threadIdx.x;
  if (pixel >= lists.pixels) return;
  int64_t group = lists.first / lists.classes, c = lists.first - group * lists.classes;
  for (int slot = 0; slot < slots; ++slot) {
    if (lists.positives[lists.first + slot] > 0) {
      const int64_t row = group * lists.pixels + pixel;
      const int32_t label = class_of(target, row, lists.classes, ignore_index, nullptr);
      Item item{kNoLabel, static_cast<uint32_t>(pixel)};
      if (label >= 0) {
        const float2 s = softmax[row];
        float p = expf(to_float(logits.data[row * logits.pitch + c]) - s.x) * s.y;
        p = p > 1.f ? 1.f : p;
        const float error = label == c ? 1.f - p : p;
        item.key = isnan(error) ? kNanKey : kOne - __float_as_uint(error);
        if (label == c) item.pixel |= kIsClass;
      }
      items[slot * lists.pixels + pixel] = item;
    }
    if (++c == lists.classes) {
      c = 0;
      ++group;
    }
  }
}

// Grid (blocks of a list, slots). counts[(slot*kDigits + digit)*blocks + block].
__global__ void __launch_bounds__(kBlockThreads)
    digits_kernel(const Item* __restrict__ items, Lists lists, int shift, unsigned* __restrict__ counts) {
  CONVOY_SHARED(unsigned[kDigits], bins);
  if (!is_present(lists)) return;
  bins[threadIdx.x] = 0;
  __syncthreads();
  const Item* list = items + blockIdx.y * lists.pixels;
  const int turns = turns_of(lists);
  for (int k = 0; k < turns; ++k) {
    const int64_t at = place_of(k);
    count_bins(bins, at < lists.pixels ? static_cast<int>(list[at].key >> shift & (kDigits - 1)) : -1);
  }
  __syncthreads();
  counts[(static_cast<int64_t>(blockIdx.y) * kDigits + threadIdx.x) * lists.blocks + blockIdx.x] = bins[threadIdx.x];
}

// Every row of counts becomes the sums of those before; `lanes` neighbours share a row. Grid (blocks of rows, slots).
__global__ void __launch_bounds__(kBlockThreads)
    prefix_kernel(unsigned* __restrict__ counts, Lists lists, int rows, int lanes, unsigned* __restrict__ totals) {
  if (!is_present(lists)) return;
  const int shift = __ffs(lanes) - 1, lane = threadIdx.x & (lanes - 1);
  const int row = blockIdx.x * (kBlockThreads >> shift) + (threadIdx.x >> shift);
  const int64_t of_all = static_cast<int64_t>(blockIdx.y) * rows + row;
  unsigned* const values = counts + of_all * lists.blocks;
  unsigned before = 0;
  for (int64_t first = 0; first < lists.blocks; first += lanes) {
    const bool inside = row < rows && first + lane < lists.blocks;
    const unsigned value = inside ? values[first + lane] : 0;
    unsigned sum = value;
    for (int step = 1; step < lanes; step *= 2) {
      const unsigned other = __shfl_up_sync(~0u, sum, step, lanes);
      if (lane >= step) sum += other;
    }
    if (inside) values[first + lane] = before + sum - value;
    before += __shfl_sync(~0u, sum, lanes - 1, lanes);
  }
  if (row < rows && lane == 0) totals[of_all] = before;
}

// Grid (blocks of a list, slots).
__global__ void __launch_bounds__(kBlockThreads)
    scatter_kernel(const Item* __restrict__ from, Lists lists, int shift, const unsigned* __restrict__ counts,
                   const unsigned* __restrict__ totals, Item* __restrict__ to) {
  CONVOY_SHARED(unsigned[kWarps][kDigits], place);  // first counts per warp, then where its next item of a digit goes
  if (!is_present(lists)) return;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (int w = 0; w < kWarps; ++w) place[w][threadIdx.x] = 0;
  __syncthreads();
  const int64_t slot = blockIdx.y;
  const Item* list = from + slot * lists.pixels;
  Item own[kOwn];
  unsigned rank[kOwn];
  const int turns = turns_of(lists);
#pragma unroll
  for (int k = 0; k < kOwn; ++k) {
    if (k >= turns) continue;
    const int64_t at = place_of(k);
    const bool inside = at < lists.pixels;
    own[k] = inside ? list[at] : Item{0, 0};
    const unsigned digit = inside ? own[k].key >> shift & (kDigits - 1) : kDigits;
    const unsigned same = __match_any_sync(~0u, digit), before = same & ((1u << lane) - 1);
    rank[k] = (inside ? place[warp][digit] : 0) + __popc(before);
    __syncwarp();
    if (inside && before == 0) place[warp][digit] += __popc(same);
    __syncwarp();
  }
  __syncthreads();
  const int64_t digit_row = slot * kDigits + threadIdx.x;
  unsigned next = block_exclusive_sum(totals[digit_row]) + counts[digit_row * lists.blocks + blockIdx.x];
  for (int w = 0; w < kWarps; ++w) {
    const unsigned here = place[w][threadIdx.x];
    place[w][threadIdx.x] = next;
    next += here;
  }
  __syncthreads();
  Item* sorted = to + slot * lists.pixels;
#pragma unroll
  for (int k = 0; k < kOwn; ++k)
    if (place_of(k) < lists.pixels) sorted[place[warp][own[k].key >> shift & (kDigits - 1)] + rank[k]] = own[k];
}

// Grid (blocks of a list, slots): how many of a block's pixels are of the class.
__global__ void __launch_bounds__(kBlockThreads)
    hits_kernel(const Item* __restrict__ items, Lists lists, unsigned* __restrict__ hits) {
  if (!is_present(lists)) return;
  const Item* list = items + blockIdx.y * lists.pixels;
  unsigned here = 0;
  for (int k = 0; k < turns_of(lists); ++k) {
    const int64_t at = place_of(k);
    if (at < lists.pixels) here += (list[at].pixel & kIsClass) != 0;
  }
  here = block_sum(here);
  if (threadIdx.x == 0) hits[blockIdx.y * lists.blocks + blockIdx.x] = here;
}

// The Jaccard loss of the k worst pixels mispredicted is 1 - (positives - hits) / (positives + misses); a slope is what
// one more adds. Grid as above; hits: of the blocks before. parts[list*blocks + block], slopes in planes per list.
__global__ void __launch_bounds__(kBlockThreads)
    slopes_kernel(const Item* __restrict__ items, Lists lists, const unsigned* __restrict__ hits,
                  float* __restrict__ slopes, double* __restrict__ parts) {
  CONVOY_SHARED(unsigned[kWarps], of_warp);
  if (!is_present(lists)) return;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t slot = blockIdx.y, index = lists.first + slot;
  const Item* list = items + slot * lists.pixels;
  Item own[kOwn];
  unsigned here = 0;
  const int turns = turns_of(lists);
#pragma unroll
  for (int k = 0; k < kOwn; ++k) {
    if (k >= turns) continue;
    const int64_t at = place_of(k);
    own[k] = at < lists.pixels ? list[at] : Item{kNoLabel, 0};
    here += __popc(__ballot_sync(~0u, (own[k].pixel & kIsClass) != 0));
  }
  if (lane == 0) of_warp[warp] = here;
  __syncthreads();
  int64_t before = hits[slot * lists.blocks + blockIdx.x];
  for (int w = 0; w < warp; ++w) before += of_warp[w];
  const auto positives = static_cast<int64_t>(lists.positives[index]);
  double loss = 0;
#pragma unroll
  for (int k = 0; k < kOwn; ++k) {
    if (k >= turns) continue;
    const bool is_class = (own[k].pixel & kIsClass) != 0;
    const unsigned ballot = __ballot_sync(~0u, is_class);
    if (own[k].key < kNoLabel) {
      const int64_t hit = before + __popc(ballot & ((2u << lane) - 1)), missed = place_of(k) + 1 - hit;
      const auto united = static_cast<double>(positives + missed);
      const double slope = is_class ? 1.0 / united : static_cast<double>(positives - hit) / (united * (united - 1.0));
      const float error = own[k].key == kNanKey ? __int_as_float(0x7fc00000) : __uint_as_float(kOne - own[k].key);
      loss += static_cast<double>(error) * slope;
      if (slopes)
        slopes[index * lists.pixels + (own[k].pixel & ~kIsClass)] = static_cast<float>(is_class ? -slope : slope);
    }
    before += __popc(ballot);
  }
  loss = block_sum(loss);
  if (threadIdx.x == 0) parts[index * lists.blocks + blockIdx.x] = loss;
}

// Takes the gradient of the probabilities through the softmax. Grid (blocks of a group's pixels, groups).
template <class T, int kLanes>
__global__ void __launch_bounds__(kBlockThreads)
    gradient_kernel(Operand<const T> logits, Operand<T> d_logits, Rows shape, Lists lists,
                    const int32_t* __restrict__ target, int32_t ignore_index, const float2* __restrict__ softmax,
                    const float* __restrict__ slopes, const double* __restrict__ shares, float scale) {
  const int64_t group = blockIdx.y, pixel = static_cast<int64_t>(blockIdx.x) * kBlockThreads + threadIdx.x;
  if (pixel >= lists.pixels) return;
  const int64_t row = group * lists.pixels + pixel, first = group * lists.classes;
  const int32_t label = class_of(target, row, shape.channels, ignore_index, nullptr);
  const float2 s = label >= 0 ? softmax[row] : float2{0.f, 0.f};
  // Probabilities [c, c + kLanes) and the gradients of them.
  const auto read = [&](int64_t c, float(&p)[kLanes], float(&g)[kLanes]) {
    load_lanes<kLanes>(logits, shape, row, c, p);
#pragma unroll
    for (int j = 0; j < kLanes; ++j) {
      const bool present = c + j < shape.channels && lists.positives[first + c + j] > 0;
      p[j] = expf(p[j] - s.x) * s.y;
      p[j] = p[j] > 1.f ? 1.f : p[j];
      g[j] = present ? slopes[(first + c + j) * lists.pixels + pixel] : 0.f;
    }
  };
  float mean = 0.f;
  for (int64_t c = 0; label >= 0 && c < shape.channels; c += kLanes) {
    float p[kLanes], g[kLanes];
    read(c, p, g);
#pragma unroll
    for (int j = 0; j < kLanes; ++j) mean += c + j < shape.channels ? p[j] * g[j] : 0.f;
  }
  const float factor = scale * static_cast<float>(shares[group]);
  for (int64_t c = 0; c < shape.padded; c += kLanes) {
    float p[kLanes] = {}, g[kLanes] = {};
    if (label >= 0) read(c, p, g);
#pragma unroll
    for (int j = 0; j < kLanes; ++j) g[j] = label >= 0 ? p[j] * (g[j] - mean) * factor : 0.f;
    store_lanes<kLanes>(d_logits, shape, row, c, g);
  }
}

// One block: groups, and their classes, share the loss evenly.
__global__ void __launch_bounds__(kBlockThreads)
    total_kernel(const double* __restrict__ parts, Lists lists, int64_t groups, const double* __restrict__ shares,
                 float scale, float* loss) {
  double sum = 0;
  for (int64_t group = 0; group < groups; ++group) {
    double of_group = 0;
    for (int64_t c = 0; c < lists.classes; ++c) {
      const int64_t index = group * lists.classes + c;
      if (lists.positives[index] == 0) continue;
      for (int64_t b = threadIdx.x; b < lists.blocks; b += kBlockThreads) of_group += parts[index * lists.blocks + b];
    }
    sum += of_group * shares[group];
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) *loss = static_cast<float>(sum * scale);
}

// What lies in the workspace.
struct Space {
  double *parts, *shares;
  Count* positives;
  float2* softmax;
  Item *items, *other;
  float* slopes;
  unsigned *counts, *totals, *hits, *hit_totals;
};

Space cut(void* workspace, const LovaszLists& l) {
  auto* at = static_cast<unsigned char*>(workspace);
  const auto take = [&]<class T>(T*& array, int64_t count) {
    array = reinterpret_cast<T*>(at);
    at += static_cast<size_t>(count) * sizeof(T);
  };
  Space s;  // in order of alignment
  take(s.parts, l.lists * l.blocks);
  take(s.shares, l.groups);
  take(s.positives, l.lists);
  take(s.softmax, l.groups * l.pixels);
  take(s.items, l.slots * l.pixels);
  take(s.other, l.slots * l.pixels);
  take(s.slopes, l.lists * l.pixels);
  take(s.counts, l.slots * kDigits * l.blocks);
  take(s.totals, l.slots * kDigits);
  take(s.hits, l.slots * l.blocks);
  take(s.hit_totals, l.slots);
  return s;
}

dim3 grid_of(int64_t x, int64_t y) {
  return dim3(static_cast<unsigned>(x), static_cast<unsigned>(y));
}

}  // namespace

void lovasz_loss(cudaStream_t stream, const View& logits, const int32_t* target, int32_t ignore_index, bool per_image,
                 float scale, float* loss, const View& d_logits, int64_t* fault, void* workspace) {
  const View* gradient = d_logits.data ? &d_logits : nullptr;
  check_operands("lovasz_loss", {&logits, gradient}, true);
  const LovaszLists l = lovasz_lists(logits, per_image);
  if (logits.c > kMostClasses || l.pixels > INT32_MAX)
    throw std::invalid_argument(CONVOY_DEVICE_NAME "::lovasz_loss: at most 1024 classes and 2^31 - 1 pixels");
  const Space s = cut(workspace, l);
  const Rows shape = pixel_rows(logits);
  const dim3 threads(kBlockThreads);
  Lists lists{0, l.pixels, logits.c, l.blocks, s.positives};
  const auto run = [&](const dim3& grid, auto kernel, const auto&... args) {
    launch({grid, threads, 0, stream}, kernel, args...);
  };

  const int64_t pixel_blocks = ceil_div(l.pixels, kBlockThreads);
  int lanes = 1;  // for the counts of a list's blocks
  while (lanes < 32 && lanes < l.blocks) lanes *= 2;
  run(grid_of(ceil_div(l.lists, kBlockThreads), 1), clear_kernel, s.positives, l.lists);
  dispatch("lovasz_loss", logits.dtype, vectors_fit({&logits, gradient}, 2),
           [&]<class T, int kLanes>(Element<T>, std::integral_constant<int, kLanes>) {
             launch({grid_of(std::min(pixel_blocks, kMostRowBlocks), l.groups), threads,
                     static_cast<size_t>(logits.c) * sizeof(unsigned), stream},
                    softmax_kernel<T, kLanes>, operand<const T>(logits), shape, target, l.pixels, ignore_index,
                    s.softmax, s.positives, fault);
           });
  run(grid_of(l.groups, 1), present_kernel, s.positives, logits.c, s.shares);

  for (; lists.first < l.lists; lists.first += l.slots) {
    const int64_t slots = std::min(l.slots, l.lists - lists.first);
    const dim3 blocks = grid_of(l.blocks, slots);
    dispatch("lovasz_loss", logits.dtype, false,
             [&]<class T, int kLanes>(Element<T>, std::integral_constant<int, kLanes>) {
               run(grid_of(pixel_blocks, 1), keys_kernel<T>, operand<const T>(logits), lists, static_cast<int>(slots),
                   target, ignore_index, s.softmax, s.items);
             });
    for (int pass = 0; pass < kPasses; ++pass) {
      Item *from = pass % 2 ? s.other : s.items, *to = pass % 2 ? s.items : s.other;
      const int shift = pass * kDigitBits;
      run(blocks, digits_kernel, from, lists, shift, s.counts);
      run(grid_of(kDigits * lanes / kBlockThreads, slots), prefix_kernel, s.counts, lists, kDigits, lanes, s.totals);
      run(blocks, scatter_kernel, from, lists, shift, s.counts, s.totals, to);
    }
    run(blocks, hits_kernel, s.items, lists, s.hits);
    run(grid_of(1, slots), prefix_kernel, s.hits, lists, 1, lanes, s.hit_totals);
    run(blocks, slopes_kernel, s.items, lists, s.hits, gradient ? s.slopes : nullptr, s.parts);
  }

  lists.first = 0;
  if (gradient)
    dispatch("lovasz_loss", logits.dtype, vectors_fit({&logits, gradient}, 2),
             [&]<class T, int kLanes>(Element<T>, std::integral_constant<int, kLanes>) {
               run(grid_of(pixel_blocks, l.groups), gradient_kernel<T, kLanes>, operand<const T>(logits),
                   operand<T>(d_logits), shape, lists, target, ignore_index, s.softmax, s.slopes, s.shares, scale);
             });
  run(dim3(1), total_kernel, s.parts, lists, l.groups, s.shares, scale, loss);
}

}  // namespace convoy::CONVOY_DEVICE
