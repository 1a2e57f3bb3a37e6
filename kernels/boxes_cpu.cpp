// Boxes of a detector, an image or a class of an image per task.
//   FLOPs  about 20 per pair of boxes: matching N A G, suppression N C times the kept by the candidates.
//   Expected bound: arithmetic.  Numerics: overlaps in double from sides of 26 bits, offsets in fp32.
#include "kernels/boxes.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/blocked.h"
#include "kernels/box_math.h"

namespace convoy::cpu::CONVOY_ISA {
namespace {

struct Best {
  double overlap;
  int64_t anchor;
};

/// The anchor that overlaps `truth` most among those without a match, or among all where `matches` is null.
Best best_anchor(const float* anchors, int64_t count, const Box& truth, const int32_t* matches) {
  Best best{0, 0};
  for (int64_t a = 0; a < count; ++a) {
    if (matches && matches[a] >= 0) continue;
    const double overlap = box_overlap(box_at(anchors, a), truth);
    if (overlap > best.overlap) best = {overlap, a};
  }
  return best;
}

/// Pairs, best overlap first.
void match_pairs(const float* anchors, int64_t count, const float* truths, int64_t in_use, int32_t* matches,
                 Best* best) {
  for (int64_t round = 0; round < in_use; ++round) {
    int64_t winner = -1;
    for (int64_t g = 0; g < in_use; ++g)
      if (best[g].overlap > 0 && (winner < 0 || best[g].overlap > best[winner].overlap)) winner = g;
    if (winner < 0) return;
    const int64_t anchor = best[winner].anchor;
    matches[anchor] = static_cast<int32_t>(winner);
    best[winner].overlap = 0;
    for (int64_t g = 0; g < in_use; ++g)
      if (best[g].overlap > 0 && best[g].anchor == anchor)
        best[g] = best_anchor(anchors, count, box_at(truths, g), matches);
  }
}

uint32_t bits_of(float score) {
  uint32_t bits;
  std::memcpy(&bits, &score, sizeof bits);
  return bits;
}

/// Greedy suppression among `count` candidates in order; returns how many are kept.
int32_t suppress(const float* boxes, const uint64_t* keys, int64_t count, double threshold, uint8_t* removed,
                 int32_t* kept) {
  for (int64_t i = 0; i < count; ++i) removed[i] = 0;
  int32_t found = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (removed[i]) continue;
    kept[found++] = static_cast<int32_t>(key_anchor(keys[i]));
    const Box box = box_at(boxes, key_anchor(keys[i]));
    for (int64_t j = i + 1; j < count; ++j)
      removed[j] |= !removed[j] && box_overlap(box, box_at(boxes, key_anchor(keys[j]))) > threshold;
  }
  return found;
}

}  // namespace

void match_boxes(const float* anchors, const float* truths, const int32_t* truth_counts, const MatchSize& size,
                 const MatchRule& rule, int32_t* matches, void* workspace) {
  const bool legacy = rule.matching == BoxMatching::kLegacy;
  const auto threshold = static_cast<double>(rule.threshold);
  parallel_for(size.images, 20 * size.anchors * size.truths, [&](int64_t n) {
    const int64_t in_use = truths_in_use(truth_counts[n], size.truths);
    const float* boxes = truths + 4 * n * size.truths;
    int32_t* match = matches + n * size.anchors;
    Best* best = static_cast<Best*>(workspace) + n * size.truths;
    for (int64_t a = 0; a < size.anchors; ++a) match[a] = -1;
    for (int64_t g = 0; g < in_use; ++g) best[g] = best_anchor(anchors, size.anchors, box_at(boxes, g), nullptr);
    if (!legacy) match_pairs(anchors, size.anchors, boxes, in_use, match, best);
    for (int64_t a = 0; a < size.anchors; ++a) {
      if (match[a] >= 0) continue;
      double most = 0;
      for (int64_t g = 0; g < in_use; ++g) {
        const double overlap = box_overlap(box_at(anchors, a), box_at(boxes, g));
        const bool forced = legacy && best[g].overlap <= threshold && best[g].anchor == a;
        if (!(overlap > threshold || forced) || !(overlap > most)) continue;
        most = overlap;
        match[a] = static_cast<int32_t>(g);
      }
    }
  });
}

void encode_boxes(const float* anchors, const float* truths, const int32_t* truth_classes, const int32_t* matches,
                  const MatchSize& size, const BoxVariances& variances, float* targets, int32_t* classes) {
  parallel_for(size.images, 40 * size.anchors, [&](int64_t n) {
    for (int64_t a = 0; a < size.anchors; ++a) {
      const int64_t i = n * size.anchors + a;
      float* target = targets + 4 * i;
      if (matches[i] < 0) {
        for (int k = 0; k < 4; ++k) target[k] = 0;
        classes[i] = 0;
        continue;
      }
      const int64_t g = n * size.truths + matches[i];
      const Box anchor = box_at(anchors, a), truth = box_at(truths, g);
      const float w = anchor.x2 - anchor.x1, h = anchor.y2 - anchor.y1;
      target[0] = 0.5f * ((truth.x1 - anchor.x1) + (truth.x2 - anchor.x2)) / w / variances.center;
      target[1] = 0.5f * ((truth.y1 - anchor.y1) + (truth.y2 - anchor.y2)) / h / variances.center;
      target[2] = std::log((truth.x2 - truth.x1) / w) / variances.size;
      target[3] = std::log((truth.y2 - truth.y1) / h) / variances.size;
      classes[i] = truth_classes[g] + 1;
    }
  });
}

void decode_boxes(const float* offsets, const float* anchors, int64_t images, int64_t anchor_count,
                  const BoxVariances& variances, bool clip, float* boxes) {
  parallel_for(images, 40 * anchor_count, [&](int64_t n) {
    for (int64_t a = 0; a < anchor_count; ++a) {
      const float* offset = offsets + 4 * (n * anchor_count + a);
      const Box anchor = box_at(anchors, a);
      const float w = anchor.x2 - anchor.x1, h = anchor.y2 - anchor.y1;
      const float cx = 0.5f * (anchor.x1 + anchor.x2) + offset[0] * variances.center * w;
      const float cy = 0.5f * (anchor.y1 + anchor.y2) + offset[1] * variances.center * h;
      const float half_w = 0.5f * w * std::exp(offset[2] * variances.size);
      const float half_h = 0.5f * h * std::exp(offset[3] * variances.size);
      const float corners[4] = {cx - half_w, cy - half_h, cx + half_w, cy + half_h};
      float* box = boxes + 4 * (n * anchor_count + a);
      for (int k = 0; k < 4; ++k) box[k] = !clip ? corners[k] : corners[k] < 0 ? 0 : corners[k] > 1 ? 1 : corners[k];
    }
  });
}

void nms(const float* boxes, const float* scores, const DetectionSize& size, const NmsRule& rule, int32_t* kept,
         int32_t* counts, void* workspace) {
  const int64_t lists = size.images * size.classes, capacity = nms_capacity(size, rule);
  auto* all_keys = static_cast<uint64_t*>(workspace);
  auto* all_removed = reinterpret_cast<uint8_t*>(all_keys + lists * size.anchors);
  parallel_for(lists, 100 * size.anchors, [&](int64_t list) {
    const int64_t n = list / size.classes, c = list % size.classes;
    const float* image_boxes = boxes + 4 * n * size.anchors;
    uint64_t* keys = all_keys + list * size.anchors;
    int32_t* detections = kept + list * capacity;
    int64_t count = 0;
    for (int64_t a = 0; c > 0 && a < size.anchors; ++a) {
      const float score = scores[(n * size.anchors + a) * size.classes + c];
      if (score > rule.score_threshold && box_is_number(box_at(image_boxes, a)))
        keys[count++] = score_key(bits_of(score), a);
    }
    std::sort(keys, keys + count, [](uint64_t a, uint64_t b) { return a > b; });
    counts[list] = suppress(image_boxes, keys, smaller(count, capacity), static_cast<double>(rule.overlap_threshold),
                            all_removed + list * size.anchors, detections);
    for (int64_t i = counts[list]; i < capacity; ++i) detections[i] = -1;
  });
}

}  // namespace convoy::cpu::CONVOY_ISA
