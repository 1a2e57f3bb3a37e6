// kernels/boxes.cu in the emulator against the CPU twins: matches and detections to the bit.
#include "kernels/boxes.h"
#include "tests/emulator/twins.h"
#include "tests/kernels/box_cases.h"

namespace convoy::test {
namespace {

/// Boxes with corners on a grid, so that overlaps tie; some empty, some with NaN.
std::vector<float> grid_boxes(const std::string& name, int64_t count, bool flawed) {
  const golden::Stream u(name);
  std::vector<float> boxes;
  for (int64_t i = 0; i < count; ++i) {
    const auto draw = [&](uint64_t k) {
      return static_cast<float>(static_cast<int>(8 * u[static_cast<uint64_t>(5 * i) + k]));
    };
    const float x = draw(0), y = draw(1), w = draw(2) / 2 + (flawed ? 0.f : 0.5f), h = draw(3) / 2 + 0.5f;
    boxes.insert(boxes.end(), {x / 12, y / 12, (x + w) / 12, (y + h) / 12});
    if (flawed && draw(4) == 0) boxes.back() = std::numeric_limits<float>::quiet_NaN();
  }
  return boxes;
}

size_t extent(int64_t count) {
  return static_cast<size_t>(count);
}
std::vector<float> as_floats(const std::vector<int32_t>& values) {
  std::vector<float> floats;
  for (const int32_t v : values) floats.push_back(static_cast<float>(v));
  return floats;
}
DeviceBuffer<double> device_space(size_t bytes) {
  return DeviceBuffer<double>(bytes / sizeof(double) + 1);
}

TEST_CASE("boxes are matched and encoded as on the CPU", "[boxes]") {
  const MatchSize sizes[] = {{1, 1, 1}, {2, 37, 5}, {3, 300, 9}, {1, 5, 12}, {2, 40, 0}, {1, 530, 3}};
  for (const MatchSize& size : sizes)
    for (const BoxMatching matching : {BoxMatching::kBipartite, BoxMatching::kLegacy})
      for (const bool flawed : {false, true}) {
        INFO("anchors " << size.anchors << " truths " << size.truths << " legacy " << (matching == BoxMatching::kLegacy)
                        << " flawed " << flawed);
        const auto anchors = grid_boxes("anchors", size.anchors, flawed),
                   truths = grid_boxes("truths", size.images * size.truths, flawed);
        std::vector<int32_t> counts, classes;
        for (int64_t n = 0; n < size.images; ++n) counts.push_back(static_cast<int32_t>(size.truths - n * 3));
        for (int64_t g = 0; g < size.images * size.truths; ++g) classes.push_back(static_cast<int32_t>(g % 7));
        const MatchRule rule{matching, 0.4f};
        const Results got = over_orders([&] {
          const DeviceBuffer<float> da(anchors), dt(truths), targets(extent(4 * size.images * size.anchors));
          const DeviceBuffer<int32_t> dcounts(counts), dclasses(classes), matches(extent(size.images * size.anchors)),
              of_anchors(extent(size.images * size.anchors));
          const auto workspace = device_space(match_boxes_workspace_bytes(size));
          device::match_boxes(nullptr, da.data(), dt.data(), dcounts.data(), size, rule, matches.data(),
                              workspace.data());
          device::encode_boxes(nullptr, da.data(), dt.data(), dclasses.data(), matches.data(), size, {}, targets.data(),
                               of_anchors.data());
          return Results{as_floats(matches.host()), targets.host(), as_floats(of_anchors.host())};
        });
        const Matches matches = match_on_cpu(anchors, truths, counts, size, rule);
        const Encoded encoded = encode_on_cpu(anchors, truths, classes, matches, size);
        CHECK(got[0] == as_floats(matches));
        CHECK(got[2] == as_floats(encoded.classes));
        CHECK(relative_error(got[1], encoded.targets) <= 1e-6);
      }
}

TEST_CASE("boxes are decoded as on the CPU", "[boxes]") {
  for (const int64_t anchor_count : {1, 300})
    for (const bool clip : {false, true}) {
      const int64_t images = 2;
      const auto anchors = grid_boxes("anchors", anchor_count, false);
      const auto offsets = random_values("offsets", 4 * images * anchor_count, 3);
      const Results got = over_orders([&] {
        const DeviceBuffer<float> da(anchors), doffsets(offsets), boxes(offsets.size());
        device::decode_boxes(nullptr, doffsets.data(), da.data(), images, anchor_count, {}, clip, boxes.data());
        return Results{boxes.host()};
      });
      std::vector<float> boxes(offsets.size());
      CONVOY_CPU(decode_boxes, offsets.data(), anchors.data(), images, anchor_count, {}, clip, boxes.data());
      CHECK(relative_error(got[0], boxes) <= 1e-6);
    }
}

TEST_CASE("detections are those of the CPU", "[boxes]") {
  struct Case {
    DetectionSize size;
    NmsRule rule;
    bool flawed;
  };
  const Case cases[] = {{{1, 1, 2}, {0.1f, 0.45f, 0}, false},    {{2, 150, 3}, {0.2f, 0.3f, 0}, true},
                        {{1, 300, 4}, {0.3f, 0.2f, 70}, false},  {{1, 520, 2}, {-1.f, 0.9f, 0}, false},
                        {{2, 33, 5}, {0.99f, 0.45f, 10}, false}, {{1, 64, 2}, {0.f, 0.f, 64}, true}};
  for (const Case& k : cases) {
    const DetectionSize& size = k.size;
    INFO("anchors " << size.anchors << " classes " << size.classes << " top " << k.rule.top_k);
    const auto boxes = grid_boxes("boxes", size.images * size.anchors, k.flawed);
    auto scores = random_values("scores", size.images * size.anchors * size.classes, 0.5, 0.5);
    for (float& s : scores) s = std::floor(s * 40) / 40;  // so that scores tie
    if (k.flawed) scores[1] = std::numeric_limits<float>::quiet_NaN();
    const auto lists = extent(size.images * size.classes);
    const Results got = over_orders([&] {
      const DeviceBuffer<float> dboxes(boxes), dscores(scores);
      const DeviceBuffer<int32_t> kept(lists * extent(nms_capacity(size, k.rule))), counts(lists);
      const auto workspace = device_space(nms_workspace_bytes(size));
      device::nms(nullptr, dboxes.data(), dscores.data(), size, k.rule, kept.data(), counts.data(), workspace.data());
      return Results{as_floats(kept.host()), as_floats(counts.host())};
    });
    const Detections expected = nms_on_cpu(boxes, scores, size, k.rule);
    CHECK(got[0] == as_floats(expected.kept));
    CHECK(got[1] == as_floats(expected.counts));
  }
}

}  // namespace
}  // namespace convoy::test
