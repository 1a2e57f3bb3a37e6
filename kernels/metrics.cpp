// Bytes: logits once, labels once; prediction and target once. Integer counts: exact for any number of threads.
#include "kernels/metrics.h"

#include <limits>
#include <vector>

namespace convoy {

void argmax_channels(const View& logits, int32_t* labels) {
  const bool nhwc = logits.layout == Layout::kNhwc;
  const int64_t pixels = logits.pixels();
  const int64_t run = nhwc ? logits.c : logits.block;  // channels that lie side by side
  const int64_t pixel_step = nhwc ? logits.pitch : logits.block, run_step = pixels * logits.block;
#pragma omp parallel for collapse(2) schedule(static)
  for (int64_t n = 0; n < logits.n; ++n)
    for (int64_t h = 0; h < logits.h; ++h) {
      const float* image = logits.f32() + n * logits.image_stride();
      for (int64_t p = h * logits.w; p < (h + 1) * logits.w; ++p) {
        const float* at = image + p * pixel_step;
        float best = -std::numeric_limits<float>::infinity();
        int32_t label = 0;
        for (int64_t c0 = 0; c0 < logits.c; c0 += run, at += run_step) {
          const int64_t lanes = logits.c - c0 < run ? logits.c - c0 : run;
          for (int64_t i = 0; i < lanes; ++i) {
            const bool better = at[i] > best;
            best = better ? at[i] : best;
            label = better ? static_cast<int32_t>(c0 + i) : label;
          }
        }
        labels[n * pixels + p] = label;
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
