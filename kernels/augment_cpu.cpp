// Augmentation, a row of the crop per task.
//   Bytes: the source once per tap of a column, the crop once.  Numerics: kernels/augment_math.h, integers but for the
//   blends and the hue.
#include "kernels/augment.h"

#include "kernels/augment_math.h"
#include "kernels/blocked.h"

namespace convoy::cpu::CONVOY_ISA {
namespace {

/// The pixel of the crop before the colour steps; black where it is padding.
Rgb source_pixel(const uint8_t* image, const Augmentation& a, int64_t y, int64_t x) {
  y -= a.rows.place;
  x -= a.columns.place;
  if (y < 0 || y >= a.rows.length || x < 0 || x >= a.columns.length) return {};
  return resampled(image, a.rows, a.columns, a.mirrored, y, x);
}

}  // namespace

void augment(const uint8_t* image, const uint8_t* labels, const Augmentation& a, const View& out, int32_t* out_labels,
             int64_t* luma_sum) {
  const ColorChain chain = color_chain(a);
  const int before = steps_before_contrast(chain);
  int mean = 0;
  if (before >= 0) {
    *luma_sum = 0;
    for (int64_t y = 0; y < out.h; ++y)
      for (int64_t x = 0; x < out.w; ++x) *luma_sum += luma_of(colored(source_pixel(image, a, y, x), chain, before, 0));
    mean = mean_luma(*luma_sum, out.pixels());
  }
  parallel_for(out.h, 100 * out.w, [&](int64_t y) {
    float* to = out.f32() + y * out.w * out.block;
    for (int64_t x = 0; x < out.w; ++x) {
      const Rgb p = colored(source_pixel(image, a, y, x), chain, chain.steps, mean);
      for (int c = 0; c < 3; ++c) to[x * out.block + c] = a.normalized[256 * c + p.channel[c]];
      for (int64_t c = 3; c < out.block; ++c) to[x * out.block + c] = 0;
    }
    if (!out_labels) return;
    const int64_t row = y - a.rows.place;
    for (int64_t x = 0; x < out.w; ++x) {
      const int64_t column = x - a.columns.place;
      int32_t label = a.ignore;
      if (row >= 0 && row < a.rows.length && column >= 0 && column < a.columns.length) {
        const int64_t nearest = a.columns.nearest[column];
        label = a.label_table[labels[a.rows.nearest[row] * a.columns.source +
                                     (a.mirrored ? a.columns.source - 1 - nearest : nearest)]];
      }
      out_labels[y * out.w + x] = label;
    }
  });
}

}  // namespace convoy::cpu::CONVOY_ISA
