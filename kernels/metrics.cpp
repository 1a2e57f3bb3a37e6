// Bytes: logits once, labels once; prediction and target once. Integer counts: exact for any number of threads.
#include "kernels/metrics.h"

#include <limits>
#include <vector>

namespace convoy {

void argmax_channels(const View& logits, int32_t* labels) {
  const int64_t pixels = logits.pixels(), block = logits.block;
  const bool nhwc = logits.layout == Layout::kNhwc;
  const int64_t pixel_step = nhwc ? logits.pitch : block;
#pragma omp parallel for collapse(2) schedule(static)
  for (int64_t n = 0; n < logits.n; ++n)
    for (int64_t h = 0; h < logits.h; ++h) {
      const float* image = logits.f32() + n * logits.image_stride();
      for (int64_t p = h * logits.w; p < (h + 1) * logits.w; ++p) {
        const float* at = image + p * pixel_step;
        float best = -std::numeric_limits<float>::infinity();
        int64_t label = 0;
        for (int64_t c = 0; c < logits.c; ++c) {
          const float v = at[nhwc ? c : c / block * pixels * block + c % block];
          if (v > best) {
            best = v;
            label = c;
          }
        }
        labels[n * pixels + p] = static_cast<int32_t>(label);
      }
    }
}

int64_t confusion_matrix(const int32_t* prediction, const int32_t* target, int64_t count, int64_t classes,
                         int32_t ignore_index, int64_t* matrix) {
  int64_t first_bad = count;
#pragma omp parallel reduction(min : first_bad)
  {
    std::vector<int64_t> mine(static_cast<size_t>(classes * classes));
#pragma omp for schedule(static)
    for (int64_t i = 0; i < count; ++i) {
      const int64_t t = target[i], p = prediction[i];
      if (t == ignore_index) continue;
      if (t < 0 || t >= classes || p < 0 || p >= classes) {
        if (i < first_bad) first_bad = i;
        continue;
      }
      ++mine[static_cast<size_t>(t * classes + p)];
    }
#pragma omp critical
    for (int64_t i = 0; i < classes * classes; ++i) matrix[i] += mine[static_cast<size_t>(i)];
  }
  return first_bad < count ? first_bad : -1;
}

}  // namespace convoy
