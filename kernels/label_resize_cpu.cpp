// Labels resized as numbers. The scale is rounded to float, the position is not, as PyTorch 1.13 has it: with 30/7 the
// last output pixel of 31 -> 8 lies just before the last source pixel, and a label of 16 becomes 15.
#include "kernels/label_resize.h"

#include "kernels/blocked.h"

namespace convoy::cpu::CONVOY_ISA {

namespace {

struct Mix {
  int64_t index, next;
  float weight;  // of the next pixel
};

Mix mix_at(int64_t o, int64_t in, int64_t out) {
  const float scale = out > 1 ? static_cast<float>(in - 1) / static_cast<float>(out - 1) : 0.0f;
  const double at = static_cast<double>(scale) * static_cast<double>(o);
  const int64_t index = smaller(static_cast<int64_t>(at), in - 1);
  return {index, smaller(index + 1, in - 1), static_cast<float>(at - static_cast<double>(index))};
}

}  // namespace

void label_resize(const View& labels, const View& y) {
  // A plain (N,H,W) array is a view with n, c, h as its extents.
  const int64_t in_h = labels.c, in_w = labels.h, out_h = y.c, out_w = y.h;
  parallel_for(y.n * out_h, out_w * 8, [&](int64_t task) {
    const int64_t n = task / out_h;
    const Mix row = mix_at(task % out_h, in_h, out_h);
    const int32_t* upper = labels.i32() + (n * in_h + row.index) * in_w;
    const int32_t* lower = labels.i32() + (n * in_h + row.next) * in_w;
    for (int64_t o = 0; o < out_w; ++o) {
      const Mix column = mix_at(o, in_w, out_w);
      const auto mixed = [&](const int32_t* from) {
        return (1 - column.weight) * static_cast<float>(from[column.index]) +
               column.weight * static_cast<float>(from[column.next]);
      };
      y.i32()[task * out_w + o] = static_cast<int32_t>((1 - row.weight) * mixed(upper) + row.weight * mixed(lower));
    }
  });
}

}  // namespace convoy::cpu::CONVOY_ISA
