// Boxes of a detector against the reference's figures and against plain rules.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "kernels/boxes.h"
#include "tests/golden_ops.h"
#include "tests/kernels/box_cases.h"

namespace convoy::test {
namespace {

using Json = nlohmann::json;

Json golden_file(const std::string& name) {
  std::ifstream file(CONVOY_TEST_DIR "/golden/ssd/" + name);
  REQUIRE(file);
  return Json::parse(file);
}

/// The 8732 anchors of SSD300: per cell a small and a large square, then a wide and a tall box for each ratio.
std::vector<float> ssd300_anchors() {
  constexpr double kSizes[] = {30, 60, 111, 162, 213, 264, 315};
  constexpr int kMaps[] = {38, 19, 10, 5, 3, 1};
  std::vector<float> anchors;
  for (size_t level = 0; level < 6; ++level) {
    const double small = kSizes[level] / 300, large = std::sqrt(kSizes[level] * kSizes[level + 1]) / 300;
    std::vector<std::pair<double, double>> shapes{{small, small}, {large, large}};
    for (const double ratio : {2.0, 3.0}) {
      if (ratio == 3 && (level == 0 || level > 3)) continue;
      shapes.emplace_back(small * std::sqrt(ratio), small / std::sqrt(ratio));
      shapes.emplace_back(small / std::sqrt(ratio), small * std::sqrt(ratio));
    }
    for (int y = 0; y < kMaps[level]; ++y)
      for (int x = 0; x < kMaps[level]; ++x)
        for (const auto& [w, h] : shapes) {
          const double cx = (x + 0.5) / kMaps[level], cy = (y + 0.5) / kMaps[level];
          for (const double corner : {cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2})
            anchors.push_back(static_cast<float>(std::clamp(corner, 0.0, 1.0)));
        }
  }
  return anchors;
}

double area(const std::vector<float>& boxes, size_t i) {
  return static_cast<double>(boxes[4 * i + 2] - boxes[4 * i]) *
         static_cast<double>(boxes[4 * i + 3] - boxes[4 * i + 1]);
}

TEST_CASE("boxes are matched and encoded as the reference does", "[boxes]") {
  const std::vector<float> anchors = ssd300_anchors();
  const auto count = static_cast<int64_t>(anchors.size() / 4);
  REQUIRE(count == 8732);
  const Json golden = golden_file("encode.json");
  for (const Json& set : golden["sets"]) {
    INFO(set["name"].get<std::string>());
    std::vector<float> truths;
    std::vector<int32_t> truth_classes;
    for (const Json& box : set["boxes"])
      for (const Json& corner : box) truths.push_back(corner.get<float>());
    for (const Json& c : set["classes"]) truth_classes.push_back(c.get<int32_t>());
    const MatchSize size{1, count, static_cast<int64_t>(truth_classes.size())};
    const auto truth_count = static_cast<int32_t>(size.truths);
    const Matches got = match_on_cpu(anchors, truths, {truth_count}, size, {BoxMatching::kLegacy, 0.5f});
    const Encoded encoded = encode_on_cpu(anchors, truths, truth_classes, got, size);
    if (size.truths == 0) {
      CHECK(std::all_of(got.begin(), got.end(), [](int32_t m) { return m == -1; }));
      continue;
    }
    const Json& rows = set["pos_rows"];
    if (set["name"] == "tiny_forces_best") {
      // The box lies within several anchors of one size: which of them is best is a matter of rounding.
      const auto best = static_cast<size_t>(std::find(got.begin(), got.end(), 0) - got.begin());
      REQUIRE(best < got.size());
      CHECK(std::count(got.begin(), got.end(), 0) == 1);
      CHECK(area(anchors, best) == Approx(area(anchors, rows[0][0].get<size_t>())).epsilon(1e-6));
      continue;
    }
    size_t row = 0;
    int64_t positives = 0, wrong = 0;
    double worst = 0;
    for (size_t a = 0; a < got.size(); ++a) {
      if (got[a] < 0) continue;
      ++positives;
      while (row < rows.size() && rows[row][0].get<size_t>() < a) ++row, ++wrong;
      if (row == rows.size() || rows[row][0].get<size_t>() != a) continue;  // rows hold a part of the positives
      for (size_t k = 0; k < 4; ++k)
        worst =
            std::max(worst, std::abs(static_cast<double>(encoded.targets[4 * a + k]) - rows[row][k + 1].get<double>()));
      wrong += encoded.classes[a] != rows[row][5].get<int32_t>() + 1;
      ++row;
    }
    CHECK(positives == set["positives"].get<int64_t>());
    CHECK(wrong == 0);
    CHECK(row == rows.size());
    CHECK(worst < 2e-5);
  }
}

/// Probabilities of the reference's predictions.
std::vector<float> golden_scores(int64_t images, int64_t anchors, int64_t classes) {
  const golden::Stream conf("nms.conf"), background("nms.bg");
  std::vector<float> scores(static_cast<size_t>(images * anchors * classes));
  for (int64_t i = 0; i < images * anchors; ++i) {
    std::vector<double> logits;
    double high = -1e9, sum = 0;
    for (int64_t c = 0; c < classes; ++c) {
      auto logit = static_cast<float>((2 * conf[static_cast<uint64_t>(i * classes + c)] - 1) * 6);
      if (c == 0) logit = static_cast<float>(static_cast<double>(logit) + 80 * background[static_cast<uint64_t>(i)]);
      logits.push_back(static_cast<double>(logit));
      high = std::max(high, logits.back());
    }
    for (double& logit : logits) sum += logit = std::exp(logit - high);
    for (int64_t c = 0; c < classes; ++c)
      scores[static_cast<size_t>(i * classes + c)] = static_cast<float>(logits[static_cast<size_t>(c)] / sum);
  }
  return scores;
}

TEST_CASE("detections are those of the reference", "[boxes]") {
  const std::vector<float> anchors = ssd300_anchors();
  const Json golden = golden_file("decode_nms.json");
  const DetectionSize size{2, static_cast<int64_t>(anchors.size() / 4), 21};
  std::vector<float> offsets(static_cast<size_t>(size.images * size.anchors * 4)), boxes(offsets.size());
  const golden::Stream loc("nms.loc");
  for (size_t i = 0; i < offsets.size(); ++i) offsets[i] = static_cast<float>(2 * loc[i] - 1);
  CONVOY_CPU(decode_boxes, offsets.data(), anchors.data(), size.images, size.anchors, {}, true, boxes.data());
  const std::vector<float> scores = golden_scores(size.images, size.anchors, size.classes);
  for (const Json& run : golden["runs"]) {
    if (run["letterbox"].get<bool>()) continue;  // undone on the finished rows
    const NmsRule rule{run["confidence"].get<float>(), run["nms_iou"].get<float>(), 0};
    const Detections got = nms_on_cpu(boxes, scores, size, rule);
    const double height = run["image_shape"][0].get<double>(), width = run["image_shape"][1].get<double>();
    for (size_t n = 0; n < 2; ++n) {
      INFO("confidence " << rule.score_threshold << " image " << n);
      const Json& image = run["images"][n];
      std::vector<std::array<double, 6>> rows;
      for (size_t c = 1; c < 21; ++c) {
        const size_t list = n * 21 + c;
        CHECK(got.counts[list] == image["per_class"][c - 1].get<int32_t>());
        for (size_t k = 0; k < static_cast<size_t>(got.counts[list]); ++k) {
          const size_t anchor = n * 8732 + static_cast<size_t>(got.kept[list * 8732 + k]);
          const float* box = &boxes[4 * anchor];
          rows.push_back({static_cast<double>(box[1]) * height, static_cast<double>(box[0]) * width,
                          static_cast<double>(box[3]) * height, static_cast<double>(box[2]) * width,
                          static_cast<double>(c - 1), static_cast<double>(scores[anchor * 21 + c])});
        }
      }
      REQUIRE(rows.size() == image["detections"].get<size_t>());
      double worst = 0;
      for (const Json& row : image["rows"])
        for (size_t k = 0; k < 6; ++k)
          worst = std::max(worst, std::abs(rows[row[0].get<size_t>()][k] - row[k + 1].get<double>()));
      CHECK(worst < 2e-3);
    }
  }
}

TEST_CASE("every ground truth gets an anchor, the best pair first", "[boxes]") {
  // Two ground truths that overlap the first anchor most; the second anchor overlaps both less than the threshold.
  const std::vector<float> anchors{0, 0, 1, 1, 0, 0, 1, 3, 5, 5, 6, 6};
  const std::vector<float> truths{0, 0, 1, 0.9f, 0, 0, 1, 1};
  const MatchSize size{1, 3, 2};
  CHECK(match_on_cpu(anchors, truths, {2}, size, {BoxMatching::kBipartite, 0.5f}) == Matches{1, 0, -1});
  CHECK(match_on_cpu(anchors, truths, {2}, size, {BoxMatching::kLegacy, 0.5f}) == Matches{1, -1, -1});
  CHECK(match_on_cpu(anchors, truths, {1}, size, {BoxMatching::kBipartite, 0.5f}) == Matches{0, -1, -1});
  CHECK(match_on_cpu(anchors, truths, {0}, size, {}) == Matches{-1, -1, -1});
  // Equal overlaps: the smaller ground truth, then the smaller anchor.
  const std::vector<float> equal{0, 0, 1, 1, 0, 0, 1, 1, 0, 0, 1, 1};
  CHECK(match_on_cpu(equal, {0, 0, 1, 1, 0, 0, 1, 1}, {2}, size, {}) == Matches{0, 1, 0});
}

TEST_CASE("empty boxes and NaN match nothing", "[boxes]") {
  const float nan = std::nanf("");
  const std::vector<float> anchors{0, 0, 1, 1, 0, 0, 0, 1, nan, 0, 1, 1};
  const std::vector<float> truths{0, 0, 1, nan, 0.5f, 0, 0.5f, 1, 1, 1, 0, 0};
  CHECK(match_on_cpu(anchors, truths, {3}, {1, 3, 3}, {}) == Matches{-1, -1, -1});
  CHECK(match_on_cpu(anchors, truths, {3}, {1, 3, 3}, {BoxMatching::kLegacy, 0.5f}) == Matches{-1, -1, -1});
  CHECK(match_on_cpu(anchors, {0, 0, 1, 1}, {1}, {1, 3, 1}, {}) == Matches{0, -1, -1});
}

TEST_CASE("decoding inverts encoding", "[boxes]") {
  const std::vector<float> anchors{0.1f, 0.2f, 0.5f, 0.4f, 0, 0, 1, 1};
  const std::vector<float> truths{0.15f, 0.2f, 0.6f, 0.45f, 0.2f, 0.1f, 0.9f, 0.95f};
  const MatchSize size{1, 2, 2};
  const Encoded encoded = encode_on_cpu(anchors, truths, {3, 7}, {0, 1}, size);
  CHECK(encoded.classes == std::vector<int32_t>{4, 8});
  std::vector<float> boxes(8);
  CONVOY_CPU(decode_boxes, encoded.targets.data(), anchors.data(), 1, 2, {}, false, boxes.data());
  for (size_t i = 0; i < 8; ++i) CHECK(boxes[i] == Approx(truths[i]).margin(1e-6));
}

TEST_CASE("suppression keeps the best, ties by the smaller anchor", "[boxes]") {
  const float nan = std::nanf("");
  const std::vector<float> boxes{0, 0, 1, 1, 0, 0, 1, 1, 2, 2, 3, 3, 0, 0, 1, 0.9f, 4, 4, 4, 5, nan, 0, 1, 1};
  const DetectionSize size{1, 6, 2};
  std::vector<float> scores;
  for (const float s : {0.6f, 0.6f, 0.7f, 0.5f, 0.9f, 0.8f}) scores.insert(scores.end(), {0.99f, s});
  Detections got = nms_on_cpu(boxes, scores, size, {0.4f, 0.45f, 0});
  CHECK(got.counts == std::vector<int32_t>{0, 3});
  CHECK(std::vector<int32_t>(got.kept.begin() + 6, got.kept.end()) == std::vector<int32_t>{4, 2, 0, -1, -1, -1});
  got = nms_on_cpu(boxes, scores, size, {0.4f, 0.45f, 2});
  CHECK(std::vector<int32_t>(got.kept.begin() + 2, got.kept.end()) == std::vector<int32_t>{4, 2});
  got = nms_on_cpu(boxes, scores, size, {0.9f, 0.45f, 2});  // scores have to be higher
  CHECK(got.counts == std::vector<int32_t>{0, 0});
}

}  // namespace
}  // namespace convoy::test
