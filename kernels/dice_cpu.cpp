// Dice loss: one pass over the logits for the sums of every image and class, a second for the gradient, each with its
// own softmax.
//   FLOPs  about (exp: 14) + 8 per pixel and class and pass.  Expected bound: arithmetic.
//   Numerics: sums over kBlock pixels in fp32, then in double, merged in the order of chunks, which depend on the shape
//   alone.
#include "kernels/region_losses.h"
#include "kernels/softmax_pixels.h"

namespace convoy::cpu::CONVOY_ISA {
namespace {

constexpr int64_t kMaxClasses = 1024;

/// Calls body(labels, probabilities, at, count) for groups of at most kBlock labelled pixels of [first, last); the
/// probabilities are those of softmax_pixels. Returns the first pixel whose label is no class, or -1.
template <class Body>
int64_t for_labelled(const PixelLogits& x, const int32_t* target, int32_t ignore, int64_t first, int64_t last,
                     const Body& body) {
  float probabilities[kBlock * kMaxClasses];
  int64_t at[kBlock] = {}, bad = -1;
  int count = 0;
  const auto flush = [&] {
    if (count == 0) return;
    for (int i = count; i < kBlock; ++i) at[i] = at[count - 1];
    softmax_pixels(x, at, probabilities);
    body(probabilities, at, count);
    count = 0;
  };
  for (int64_t p = first; p < last; ++p) {
    if (target[p] == ignore) continue;
    if (target[p] < 0 || target[p] >= x.channels) {
      if (bad < 0) bad = p;
      continue;
    }
    at[count++] = p;
    if (count == kBlock) flush();
  }
  flush();
  return bad;
}

}  // namespace

void dice_loss(const View& logits, const int32_t* target, int32_t ignore_index, int64_t classes, float smooth,
               float scale, float* loss, const View& d_logits, int64_t* bad_index, void* workspace) {
  const int64_t pixels = logits.pixels(), chunks = ceil_div(pixels, kRegionChunk);
  const int64_t width = logits.blocks() * kBlock;
  // Per image and chunk: sum p t, sum p^2 and sum t of every class; then the same of every image; then bad pixels.
  auto* const sums = static_cast<double*>(workspace);
  double* const images = sums + logits.n * chunks * 3 * width;
  auto* const bad = reinterpret_cast<int64_t*>(images + logits.n * 3 * width);

  parallel_for(logits.n * chunks, kRegionChunk * width, [&](int64_t task) {
    const int64_t n = task / chunks, first = task % chunks * kRegionChunk;
    const PixelLogits x(logits, n);
    const int32_t* labels = target + n * pixels;
    double* product = sums + task * 3 * width;
    double *square = product + width, *count = square + width;
    for (int64_t c = 0; c < 3 * width; ++c) product[c] = 0;
    bad[task] = for_labelled(x, labels, ignore_index, first, smaller(first + kRegionChunk, pixels),
                             [&](const float* p, const int64_t* at, int group) {
                               for (int64_t c = 0; c < width; c += kBlock) {
                                 Vec s{};
                                 for (int i = 0; i < group; ++i) {
                                   const Vec v = load(p + i * width + c);
                                   s += v * v;
                                 }
                                 for (int l = 0; l < kBlock; ++l) square[c + l] += static_cast<double>(s[l]);
                               }
                               for (int i = 0; i < group; ++i) {
                                 const int32_t t = labels[at[i]];
                                 product[t] += static_cast<double>(p[i * width + t]);
                                 count[t] += 1;
                               }
                             });
    if (bad[task] >= 0) bad[task] += n * pixels;
  });

  // An image's sums become the two factors of its gradient: for every pixel, and for those of the class.
  double total = 0;
  *bad_index = -1;
  for (int64_t n = 0; n < logits.n; ++n) {
    double* image = images + n * 3 * width;
    for (int64_t c = 0; c < 3 * width; ++c) image[c] = 0;
    for (int64_t k = 0; k < chunks; ++k) {
      const double* part = sums + (n * chunks + k) * 3 * width;
      for (int64_t c = 0; c < 3 * width; ++c) image[c] += part[c];
      if (*bad_index < 0) *bad_index = bad[n * chunks + k];
    }
    for (int64_t c = 0; c < width; ++c) {
      const double numerator = 2 * image[c] + static_cast<double>(smooth);
      const double denominator = image[width + c] + image[2 * width + c] + static_cast<double>(smooth);
      const bool counted = c < classes && !(denominator <= 0);  // NaN counts, to be seen
      if (counted) total += 1 - numerator / denominator;
      image[c] = counted ? -2 / denominator * static_cast<double>(scale) : 0;
      image[width + c] = counted ? 2 * numerator / (denominator * denominator) * static_cast<double>(scale) : 0;
    }
  }
  *loss = static_cast<float>(total * static_cast<double>(scale));
  if (d_logits.data == nullptr) return;

  parallel_for(logits.n * chunks, kRegionChunk * width, [&](int64_t task) {
    const int64_t n = task / chunks, first = task % chunks * kRegionChunk, last = smaller(first + kRegionChunk, pixels);
    const PixelLogits x(logits, n);
    const int32_t* labels = target + n * pixels;
    float of_class[kMaxClasses], of_all[kMaxClasses];
    for (int64_t c = 0; c < width; ++c) {
      of_class[c] = static_cast<float>(images[n * 3 * width + c]);
      of_all[c] = static_cast<float>(images[n * 3 * width + width + c]);
    }
    float* gradient = d_logits.f32() + n * d_logits.image_stride();
    for (int64_t b = 0; b < x.blocks; ++b)
      for (int64_t p = first; p < last; ++p) store(gradient + (b * pixels + p) * kBlock, Vec{});
    for_labelled(x, labels, ignore_index, first, last, [&](const float* p, const int64_t* at, int group) {
      for (int i = 0; i < group; ++i) {
        const float* q = p + i * width;
        const int32_t t = labels[at[i]];
        const float of_label = of_class[t];
        Vec mean{};
        for (int64_t c = 0; c < width; c += kBlock) {
          const Vec v = load(q + c);
          mean += v * v * load(of_all + c);
        }
        const float offset = sum(mean) + q[t] * of_label;
        for (int64_t b = 0; b < x.blocks; ++b) {
          const Vec v = load(q + b * kBlock);
          store(gradient + (b * pixels + at[i]) * kBlock, v * (v * load(of_all + b * kBlock) - offset));
        }
        gradient[(t / kBlock * pixels + at[i]) * kBlock + t % kBlock] += q[t] * of_label;
      }
    });
  });
}

}  // namespace convoy::cpu::CONVOY_ISA
