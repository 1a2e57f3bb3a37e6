// The loss of a single-shot detector, a thread per anchor.
//   Bytes: conf once per kernel from memory and two or three times from the first-level cache (a block's rows are a few
//   tens of KB), gradients once. For 32 images of 8732 anchors and 21 classes 24 MB read and 24 MB written: 0.02 ms on
//   an H100 (3.35 TB/s). FLOPs about (exp: 14) + 4 per anchor and class and kernel: far from a bound.
//   Numerics: an anchor in fp32, sums of anchors in double in a fixed order, counts in integers.
#include "kernels/multibox.h"

#include "kernels/cuda_common.h"
#include "kernels/cuda_reduce.h"

namespace convoy::CONVOY_DEVICE {
namespace {

constexpr float kAbsent = -1e30f, kFloor = 1e-7f;
static_assert(kAnchorsPerBlock == kBlockThreads);

__device__ float highest(const float* __restrict__ logits, int64_t count) {
  float high = kAbsent;
  for (int64_t c = 0; c < count; ++c) high = fmaxf(high, logits[c]);
  return high;
}

// Grid (blocks of anchors, images). positives: of every block.
__global__ void __launch_bounds__(kBlockThreads)
    hardness_kernel(const float* __restrict__ conf, const int32_t* __restrict__ classes, int64_t anchors,
                    int64_t class_count, float* __restrict__ hardness, int64_t* __restrict__ positives,
                    int64_t* fault) {
  const int64_t n = blockIdx.y, anchor = static_cast<int64_t>(blockIdx.x) * kBlockThreads + threadIdx.x;
  const int64_t i = n * anchors + anchor;
  const bool inside = anchor < anchors;
  const int32_t t = inside ? classes[i] : 0;
  const bool is_class = t >= 0 && t < class_count, is_positive = is_class && t > 0;
  if (!is_class) report_fault(fault, i);
  const int here = __syncthreads_count(is_positive);
  if (threadIdx.x == 0) positives[n * gridDim.x + blockIdx.x] = here;
  if (!inside) return;
  if (is_positive) {
    hardness[i] = -1.f;
    return;
  }
  const float* logits = conf + i * class_count;
  const float high = highest(logits, class_count), background = expf(logits[0] - high);
  // The others are added up on their own: 1 - background would lose what little they have.
  float others = 0.f;
  for (int64_t c = 1; c < class_count; ++c) others += expf(logits[c] - high);
  const float h = __fdividef(others, others + background);
  hardness[i] = h > 1.f ? 1.f : h;
}

// One block.
__global__ void __launch_bounds__(kBlockThreads)
    counts_kernel(const int64_t* __restrict__ positives, int64_t blocks, int64_t images, int64_t anchors, float ratio,
                  float* counts) {
  double wanted = 0, normalizer = 0;
  for (int64_t n = threadIdx.x; n < images; n += kBlockThreads) {
    int64_t of_image = 0;
    for (int64_t b = 0; b < blocks; ++b) of_image += positives[n * blocks + b];
    wanted += min(static_cast<double>(ratio) * static_cast<double>(of_image), static_cast<double>(anchors - of_image));
    normalizer += static_cast<double>(max(of_image, int64_t{1}));
  }
  wanted = block_sum(wanted);
  normalizer = block_sum(normalizer);
  if (threadIdx.x != 0) return;
  counts[0] = static_cast<float>(wanted);
  counts[1] = static_cast<float>(normalizer);
}

struct Problem {
  const float *loc, *conf, *boxes;
  const int32_t* classes;
  const float* hardness;
  int64_t anchors, class_count, first_image;
  float alpha;
  const float *selection, *normalizer;
};

// Grid (blocks of anchors, images).
__global__ void __launch_bounds__(kBlockThreads, 3)
    loss_kernel(Problem p, float* __restrict__ d_loc, float* __restrict__ d_conf, double* __restrict__ parts) {
  const int64_t n = blockIdx.y, anchor = static_cast<int64_t>(blockIdx.x) * kBlockThreads + threadIdx.x;
  const int64_t i = n * p.anchors + anchor;
  const float normalizer = *p.normalizer, scale = normalizer != 0.f ? __fdividef(1.f, normalizer) : 0.f;
  double loss = 0;
  if (anchor < p.anchors) {
    const float hardness = p.hardness[i], last = p.selection[0];
    const auto last_image = static_cast<int64_t>(p.selection[1]), last_anchor = static_cast<int64_t>(p.selection[2]);
    const int64_t image = p.first_image + n;
    int32_t t = p.classes[i];
    if (t < 0 || t >= p.class_count) t = 0;
    const bool tie = hardness == last && (image < last_image || (image == last_image && anchor <= last_anchor));
    const bool counts = t > 0 || hardness > last || tie || isnan(hardness);  // NaN: for the loss to show
    for (int64_t k = 4 * i; k < 4 * i + 4; ++k) {
      const float d = p.loc[k] - p.boxes[k], size = fabsf(d);
      if (t > 0) loss += static_cast<double>(p.alpha * (size < 1.f ? 0.5f * d * d : size - 0.5f));
      if (d_loc) d_loc[k] = t == 0 ? 0.f : p.alpha * scale * (size < 1.f ? d : d > 0.f ? 1.f : d < 0.f ? -1.f : d);
    }
    const float* logits = p.conf + i * p.class_count;
    float* gradient = d_conf ? d_conf + i * p.class_count : nullptr;
    if (counts) {
      const float high = highest(logits, p.class_count);
      float total = 0.f;
      for (int64_t c = 0; c < p.class_count; ++c) total += expf(logits[c] - high);
      const float probability = __fdividef(expf(logits[t] - high), total);
      const bool floored = probability < kFloor;  // there the loss is constant
      loss -= log(static_cast<double>(floored ? kFloor : probability));
      const float factor = floored ? 0.f : __fdividef(scale, total);
      for (int64_t c = 0; gradient && c < p.class_count; ++c)
        gradient[c] = expf(logits[c] - high) * factor - (c == t && !floored ? scale : 0.f);
    } else {
      for (int64_t c = 0; gradient && c < p.class_count; ++c) gradient[c] = 0.f;
    }
  }
  loss = block_sum(loss);
  if (threadIdx.x == 0) parts[n * gridDim.x + blockIdx.x] = loss;
}

__global__ void __launch_bounds__(kBlockThreads)
    total_kernel(const double* __restrict__ parts, int64_t count, const float* normalizer, float* loss) {
  const double total = array_sum(parts, count), by = *normalizer;
  if (threadIdx.x == 0) *loss = by != 0 ? static_cast<float>(total / by) : 0.f;
}

dim3 anchor_blocks(int64_t images, int64_t anchors) {
  return dim3(static_cast<unsigned>(ceil_div(anchors, kAnchorsPerBlock)), static_cast<unsigned>(images));
}

}  // namespace

void box_hardness(cudaStream_t stream, const float* conf, const int32_t* classes, int64_t images, int64_t anchors,
                  int64_t class_count, float ratio, float* hardness, float* counts, int64_t* fault, void* workspace) {
  const dim3 grid = anchor_blocks(images, anchors), threads(kBlockThreads);
  auto* const positives = static_cast<int64_t*>(workspace);
  launch({grid, threads, 0, stream}, hardness_kernel, conf, classes, anchors, class_count, hardness, positives, fault);
  launch({dim3(1), threads, 0, stream}, counts_kernel, positives, grid.x, images, anchors, ratio, counts);
}

void multibox_loss(cudaStream_t stream, const float* loc, const float* conf, const float* boxes, const int32_t* classes,
                   const float* hardness, int64_t images, int64_t anchors, int64_t class_count, float alpha,
                   const float* selection, int64_t first_image, const float* normalizer, float* loss, float* d_loc,
                   float* d_conf, void* workspace) {
  const dim3 grid = anchor_blocks(images, anchors), threads(kBlockThreads);
  const Problem p{loc, conf, boxes, classes, hardness, anchors, class_count, first_image, alpha, selection, normalizer};
  auto* const parts = static_cast<double*>(workspace);
  launch({grid, threads, 0, stream}, loss_kernel, p, d_loc, d_conf, parts);
  launch({dim3(1), threads, 0, stream}, total_kernel, parts, static_cast<int64_t>(grid.x) * grid.y, normalizer, loss);
}

}  // namespace convoy::CONVOY_DEVICE
