// Multibox loss, anchor by anchor.
//   FLOPs  about (exp: 14) + 6 per anchor and class.  Bytes: conf once per kernel. Expected bound: arithmetic.
//   Numerics: an anchor in fp32, sums of anchors in double over parts that depend on the shape alone.
#include "kernels/multibox.h"

#include "kernels/blocked.h"
#include "kernels/vec_math.h"

namespace convoy::cpu::CONVOY_ISA {
namespace {

constexpr float kAbsent = -1e30f;

float highest_lane(Vec v) {
  float high = v[0];
  for (int i = 1; i < kBlock; ++i) high = v[i] > high || v[i] != v[i] ? v[i] : high;
  return high;
}

/// Calls body(first class, exponentials) for blocks of classes, zeros beyond the last; returns their sum.
template <class Body>
float exponentials(const float* logits, int64_t count, const Body& body) {
  Vec high = splat(kAbsent);
  const auto block = [&](int64_t c) {
    const Vec v = load_channels(logits, count, c / kBlock);
    return count - c >= kBlock ? v : channel_mask(count, c / kBlock) ? v : splat(kAbsent);
  };
  for (int64_t c = 0; c < count; c += kBlock) high = max(block(c), high);
  const float top = highest_lane(high);
  Vec total{};
  for (int64_t c = 0; c < count; c += kBlock) {
    const Vec e = exp_nonpositive(block(c) - top);
    total += e;
    body(c, e);
  }
  return sum(total);
}

}  // namespace

void box_hardness(const float* conf, const int32_t* classes, int64_t images, int64_t anchors, int64_t class_count,
                  float ratio, float* hardness, float* counts, int64_t* bad_index) {
  double negatives_wanted = 0, normalizer = 0;
  *bad_index = -1;
  for (int64_t n = 0; n < images; ++n) {
    int64_t positives = 0;
    for (int64_t i = n * anchors; i < (n + 1) * anchors; ++i) {
      const bool is_class = classes[i] >= 0 && classes[i] < class_count;
      if (!is_class && *bad_index < 0) *bad_index = i;
      positives += is_class && classes[i] > 0;
    }
    const double wanted = static_cast<double>(ratio) * static_cast<double>(positives);
    const auto negatives = static_cast<double>(anchors - positives);
    negatives_wanted += wanted < negatives ? wanted : negatives;
    normalizer += static_cast<double>(positives > 0 ? positives : 1);
  }
  counts[0] = static_cast<float>(negatives_wanted);
  counts[1] = static_cast<float>(normalizer);
  parallel_for(images * anchors, class_count * 8, [&](int64_t i) {
    if (classes[i] > 0 && classes[i] < class_count) {
      hardness[i] = -1;
      return;
    }
    // The others are added up on their own: 1 - background would lose what little they have.
    Vec others{};
    const float total = exponentials(conf + i * class_count, class_count, [&](int64_t c, Vec e) {
      if (c == 0) e[0] = 0;
      others += e;
    });
    const float h = sum(others) / total;
    hardness[i] = h > 1 ? 1.0f : h;
  });
}

void multibox_loss(const float* loc, const float* conf, const float* boxes, const int32_t* classes,
                   const float* hardness, int64_t images, int64_t anchors, int64_t class_count, float alpha,
                   const BoxSelection& selection, int64_t first_image, float normalizer, float* loss, float* d_loc,
                   float* d_conf) {
  constexpr float kFloor = 1e-7f;
  const float scale = normalizer != 0 ? 1.0f / normalizer : 0.0f;
  const int64_t count = images * anchors;
  double sums[kBoxParts];
  parallel_for(kBoxParts, ceil_div(count, kBoxParts) * class_count * 8, [&](int64_t part) {
    double part_sum = 0;
    for (int64_t i = part * count / kBoxParts; i < (part + 1) * count / kBoxParts; ++i) {
      const int64_t image = first_image + i / anchors, anchor = i % anchors;
      const int32_t t = classes[i] > 0 && classes[i] < class_count ? classes[i] : 0;
      const bool tie =
          hardness[i] == selection.hardness &&
          (image < selection.last_image || (image == selection.last_image && anchor <= selection.last_anchor));
      const bool is_nan = hardness[i] != hardness[i];  // for the loss to show
      const bool counts = t > 0 || hardness[i] > selection.hardness || tie || is_nan;
      for (int64_t k = 4 * i; k < 4 * i + 4; ++k) {
        const float d = loc[k] - boxes[k], size = d < 0 ? -d : d;
        if (t > 0) part_sum += static_cast<double>(alpha * (size < 1 ? 0.5f * d * d : size - 0.5f));
        if (d_loc) d_loc[k] = t == 0 ? 0.0f : alpha * scale * (size < 1 ? d : d > 0 ? 1.0f : d < 0 ? -1.0f : d);
      }
      float* gradient = d_conf ? d_conf + i * class_count : nullptr;
      if (!counts) {
        for (int64_t c = 0; gradient && c < class_count; ++c) gradient[c] = 0;
        continue;
      }
      float at_class = 0;
      const float total = exponentials(conf + i * class_count, class_count, [&](int64_t c, Vec e) {
        if (t >= c && t < c + kBlock) at_class = e[t - c];
        if (gradient) store_channels(gradient, class_count, c / kBlock, e);
      });
      const float p = at_class / total;
      part_sum -= __builtin_log(static_cast<double>(p < kFloor ? kFloor : p));
      if (!gradient) continue;
      const float factor = p < kFloor ? 0.0f : scale / total;  // below the floor the loss is constant
      for (int64_t c = 0; c < class_count; ++c) gradient[c] *= factor;
      if (p >= kFloor) gradient[t] -= scale;
    }
    sums[part] = part_sum;
  });
  double total = 0;
  for (const double s : sums) total += s;
  *loss = static_cast<float>(total * static_cast<double>(scale));
}

}  // namespace convoy::cpu::CONVOY_ISA
