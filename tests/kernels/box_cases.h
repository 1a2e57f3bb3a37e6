// The CPU kernels of boxes, called on vectors.
#pragma once
#include <array>
#include <vector>

#include "kernels/boxes.h"

namespace convoy::test {

using Matches = std::vector<int32_t>;

inline Matches match_on_cpu(const std::vector<float>& anchors, const std::vector<float>& truths,
                            const std::vector<int32_t>& counts, const MatchSize& size, const MatchRule& rule) {
  Matches matches(static_cast<size_t>(size.images * size.anchors));
  std::vector<double> workspace(match_boxes_workspace_bytes(size) / sizeof(double) + 1);
  CONVOY_CPU(match_boxes, anchors.data(), truths.data(), counts.data(), size, rule, matches.data(), workspace.data());
  return matches;
}

struct Encoded {
  std::vector<float> targets;
  std::vector<int32_t> classes;
};
inline Encoded encode_on_cpu(const std::vector<float>& anchors, const std::vector<float>& truths,
                             const std::vector<int32_t>& truth_classes, const Matches& matches, const MatchSize& size) {
  Encoded e{std::vector<float>(4 * matches.size()), Matches(matches.size())};
  CONVOY_CPU(encode_boxes, anchors.data(), truths.data(), truth_classes.data(), matches.data(), size, {},
             e.targets.data(), e.classes.data());
  return e;
}

struct Detections {
  std::vector<int32_t> kept, counts;
};
inline Detections nms_on_cpu(const std::vector<float>& boxes, const std::vector<float>& scores,
                             const DetectionSize& size, const NmsRule& rule) {
  const auto lists = static_cast<size_t>(size.images * size.classes);
  Detections d{Matches(lists * static_cast<size_t>(nms_capacity(size, rule))), Matches(lists)};
  std::vector<double> workspace(nms_workspace_bytes(size) / sizeof(double) + 1);
  CONVOY_CPU(nms, boxes.data(), scores.data(), size, rule, d.kept.data(), d.counts.data(), workspace.data());
  return d;
}

}  // namespace convoy::test
