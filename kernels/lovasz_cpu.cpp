// Lovasz-Softmax: per group (image or batch) the logarithms of the sums of exponentials of all labelled pixels, then
// class by class errors, a radix sort of them and the slopes of the Lovasz extension; the gradient of the probabilities
// goes into d_logits and is taken through the softmax in a last pass.
//   FLOPs  about (exp: 14) per pixel and class, twice.  Bytes: three passes of 8-byte keys per class. Expected bound:
//   memory.
//   Numerics: errors in fp32; slopes from counts, in double. Sorting is stable, so results do not depend on threads.
#include <omp.h>

#include "kernels/region_losses.h"
#include "kernels/softmax_pixels.h"

namespace convoy::cpu::CONVOY_ISA {
namespace {

constexpr int64_t kMaxClasses = 1024;
constexpr int kDigitBits = 10;
constexpr int64_t kDigits = int64_t{1} << kDigitBits;

/// Probability of a class; NaN stays NaN.
Vec probability(Vec logit, Vec log_sum) {
  const Vec p = exp_nonpositive(logit - log_sum);
  return p > 1.0f ? splat(1.0f) : p;
}

/// Sorts by the upper 32 bits, which are below 2^30; three stable passes. The result is in `other`.
void sort_keys(uint64_t* keys, uint64_t* other, int64_t count) {
  uint64_t *from = keys, *to = other;
  for (int digit = 0; digit < 3; ++digit) {
    const int shift = 32 + digit * kDigitBits;
    int64_t start[kDigits] = {};
    for (int64_t i = 0; i < count; ++i) ++start[from[i] >> shift & (kDigits - 1)];
    int64_t sum = 0;
    for (int64_t d = 0; d < kDigits; ++d) {
      const int64_t here = start[d];
      start[d] = sum;
      sum += here;
    }
    for (int64_t i = 0; i < count; ++i) to[start[from[i] >> shift & (kDigits - 1)]++] = from[i];
    uint64_t* const swap = from;
    from = to;
    to = swap;
  }
}

/// The labelled pixels of a group, in order.
struct Labelled {
  int64_t count = 0;
  int64_t* pixel;  // n * pixels + p
  float* log_sum;  // of exponentials
  int32_t* label;
};

/// Adds softmax's part to d_logits, which hold the gradient of the probabilities of labelled pixels [first, last).
void through_softmax(const View& logits, const View& d_logits, const Labelled& all, int64_t first, int64_t last) {
  const int64_t pixels = logits.pixels(), width = logits.blocks() * kBlock;
  float p[kBlock * kMaxClasses];
  for (int64_t k = first; k < last; ++k) {
    const int64_t n = all.pixel[k] / pixels, at = all.pixel[k] % pixels;
    const PixelLogits x(logits, n);
    float* gradient = d_logits.f32() + n * d_logits.image_stride();
    Vec mean{};
    for (int64_t b = 0; b < x.blocks; ++b) {
      Vec v = probability(load(x.image + (b * pixels + at) * kBlock), splat(all.log_sum[k]));
      if (b == x.blocks - 1) v = zero_pads(v, x.channels_of_last);
      store(p + b * kBlock, v);
      mean += v * load(gradient + (b * pixels + at) * kBlock);
    }
    const float offset = sum(mean);
    for (int64_t c = 0; c < width; c += kBlock) {
      float* to = gradient + (c / kBlock * pixels + at) * kBlock;
      store(to, load(p + c) * (load(to) - offset));
    }
  }
}

/// Loss of one class; writes the gradient of its probabilities, times scale.
double class_loss(const View& logits, const View& d_logits, const Labelled& all, int32_t c, int64_t positives,
                  float scale, uint64_t* keys, uint64_t* sorted) {
  const int64_t pixels = logits.pixels();
  for (int64_t k0 = 0; k0 < all.count; k0 += kBlock) {
    const int64_t group = smaller(kBlock, all.count - k0);
    Vec x{}, log_sum{};
    for (int64_t i = 0; i < group; ++i) {
      const int64_t at = all.pixel[k0 + i];
      x[i] = PixelLogits(logits, at / pixels).at(c, at % pixels);
      log_sum[i] = all.log_sum[k0 + i];
    }
    const Vec p = probability(x, log_sum);
    for (int64_t i = 0; i < group; ++i) {
      const float error = all.label[k0 + i] == c ? 1.0f - p[i] : p[i];
      uint32_t bits;
      std::memcpy(&bits, &error, sizeof bits);
      constexpr uint32_t kOne = 0x3f800000;
      keys[k0 + i] = static_cast<uint64_t>(kOne - bits) << 32 | static_cast<uint64_t>(k0 + i);
    }
  }
  sort_keys(keys, sorted, all.count);
  // Jaccard loss of the k worst pixels mispredicted: 1 - (positives left) / (positives + negatives so far).
  double loss = 0, before = 0;
  int64_t hit = 0, missed = 0;
  for (int64_t i = 0; i < all.count; ++i) {
    const auto k = static_cast<int64_t>(sorted[i] & 0xffffffff);
    const uint32_t bits = 0x3f800000 - static_cast<uint32_t>(sorted[i] >> 32);
    float error;
    std::memcpy(&error, &bits, sizeof error);
    const bool is_class = all.label[k] == c;
    (is_class ? hit : missed) += 1;
    const double jaccard = 1 - static_cast<double>(positives - hit) / static_cast<double>(positives + missed);
    const double slope = jaccard - before;
    before = jaccard;
    loss += static_cast<double>(error) * slope;
    if (!d_logits.data) continue;
    const int64_t n = all.pixel[k] / pixels, at = all.pixel[k] % pixels;
    float* image = d_logits.f32() + n * d_logits.image_stride();
    image[(c / kBlock * pixels + at) * kBlock + c % kBlock] = static_cast<float>(is_class ? -slope : slope) * scale;
  }
  return loss;
}

/// Labelled pixels of images [first, last), and their number per class. Returns the first whose label is no class.
int64_t collect(const View& logits, const int32_t* target, int32_t ignore, int64_t first, int64_t last, Labelled& all,
                int64_t* positives) {
  const int64_t pixels = logits.pixels();
  int64_t bad = -1;
  all.count = 0;
  for (int64_t c = 0; c < logits.c; ++c) positives[c] = 0;
  for (int64_t i = first * pixels; i < last * pixels; ++i) {
    if (target[i] == ignore) continue;
    if (target[i] < 0 || target[i] >= logits.c) {
      if (bad < 0) bad = i;
      continue;
    }
    ++positives[target[i]];
    all.pixel[all.count] = i;
    all.label[all.count++] = target[i];
  }
  const int64_t groups = ceil_div(all.count, kBlock);
  parallel_for(groups, kBlock * logits.blocks() * kBlock, [&](int64_t group) {
    float p[kBlock * kMaxClasses], log_sums[kBlock];
    const int64_t k0 = group * kBlock, size = smaller(kBlock, all.count - k0);
    // Pixels of a group may lie in two images: those of another one get a softmax of their own.
    for (int64_t done = 0; done < size;) {
      const int64_t n = all.pixel[k0 + done] / pixels;
      int64_t at[kBlock] = {}, here = 0;
      while (done + here < size && all.pixel[k0 + done + here] / pixels == n) {
        at[here] = all.pixel[k0 + done + here] % pixels;
        ++here;
      }
      for (int64_t i = here; i < kBlock; ++i) at[i] = at[0];
      store(log_sums, softmax_pixels(PixelLogits(logits, n), at, p));
      for (int64_t i = 0; i < here; ++i) all.log_sum[k0 + done + i] = log_sums[i];
      done += here;
    }
  });
  return bad;
}

}  // namespace

void lovasz_loss(const View& logits, const int32_t* target, int32_t ignore_index, bool per_image, float scale,
                 float* loss, const View& d_logits, int64_t* bad_index, int64_t slots, void* workspace) {
  const int64_t pixels = logits.pixels(), images = per_image ? 1 : logits.n, most = pixels * images;
  auto* const keys = static_cast<uint64_t*>(workspace);
  Labelled all{0, reinterpret_cast<int64_t*>(keys + slots * 2 * most), nullptr, nullptr};
  all.log_sum = reinterpret_cast<float*>(all.pixel + most);
  all.label = reinterpret_cast<int32_t*>(all.log_sum + most);
  int64_t positives[kMaxClasses];
  double losses[kMaxClasses];

  double total = 0;
  *bad_index = -1;
  if (d_logits.data)
    parallel_for(logits.n * logits.blocks(), pixels * kBlock, [&](int64_t i) {
      float* to = block_at(d_logits, i / logits.blocks(), i % logits.blocks());
      for (int64_t p = 0; p < pixels; ++p) store(to + p * kBlock, Vec{});
    });
  for (int64_t first = 0; first < logits.n; first += images) {
    const int64_t bad = collect(logits, target, ignore_index, first, first + images, all, positives);
    if (*bad_index < 0) *bad_index = bad;
    int64_t present = 0;
    for (int64_t c = 0; c < logits.c; ++c) present += positives[c] > 0;
    if (present == 0) continue;
    const float class_scale = scale / static_cast<float>(present);
#pragma omp parallel for schedule(dynamic) num_threads(static_cast <int>(slots)) if (slots > 1)
    for (int64_t c = 0; c < logits.c; ++c) {
      losses[c] = 0;
      if (positives[c] == 0) continue;
      uint64_t* mine = keys + omp_get_thread_num() * 2 * most;
      losses[c] =
          class_loss(logits, d_logits, all, static_cast<int32_t>(c), positives[c], class_scale, mine, mine + most);
    }
    double sum = 0;
    for (int64_t c = 0; c < logits.c; ++c) sum += losses[c];
    total += sum / static_cast<double>(present);
    if (!d_logits.data) continue;
    constexpr int64_t kChunk = 1024;
    parallel_for(ceil_div(all.count, kChunk), kChunk * logits.blocks() * kBlock, [&](int64_t chunk) {
      through_softmax(logits, d_logits, all, chunk * kChunk, smaller((chunk + 1) * kChunk, all.count));
    });
  }
  *loss = static_cast<float>(total * static_cast<double>(scale));
}

}  // namespace convoy::cpu::CONVOY_ISA
