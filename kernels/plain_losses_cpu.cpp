// Losses over a few thousand values, and counts of labels.
//   Numerics: doubles, summed in the order of the values.
#include "kernels/plain_losses.h"

#include "kernels/blocked.h"

namespace convoy::cpu::CONVOY_ISA {

void bce_with_logits(const float* x, const float* t, int64_t count, double scale, float* loss, float* d_x) {
  double total = 0;
  for (int64_t i = 0; i < count; ++i) {
    const auto v = static_cast<double>(x[i]), target = static_cast<double>(t[i]);
    const double e = __builtin_exp(-__builtin_fabs(v)), sigmoid = (v >= 0 ? 1 : e) / (1 + e);
    total += (v > 0 ? v : 0) - v * target + __builtin_log1p(e);
    if (d_x) d_x[i] = static_cast<float>((sigmoid - target) * scale);
  }
  *loss = static_cast<float>(total * scale);
}

void smooth_l1(const float* x, const float* t, int64_t count, double beta, double scale, float* loss, float* d_x) {
  double total = 0;
  for (int64_t i = 0; i < count; ++i) {
    const double d = static_cast<double>(x[i]) - static_cast<double>(t[i]), size = __builtin_fabs(d);
    total += size < beta ? d * d / (2 * beta) : size - beta / 2;
    if (d_x) d_x[i] = static_cast<float>((size < beta ? d / beta : d > 0 ? 1.0 : d < 0 ? -1.0 : d) * scale);
  }
  *loss = static_cast<float>(total * scale);
}

void label_counts(const int32_t* target, int64_t rows, int64_t count, int64_t classes, float* counts) {
  parallel_for(rows, count, [&](int64_t row) {
    float* of_row = counts + row * classes;
    for (int64_t c = 0; c < classes; ++c) of_row[c] = 0;
    for (int64_t i = 0; i < count; ++i) {
      const int32_t t = target[row * count + i];
      if (t >= 0 && t < classes) of_row[t] += 1;
    }
  });
}

}  // namespace convoy::cpu::CONVOY_ISA
