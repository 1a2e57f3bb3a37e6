#include "io/synth.h"

#include <array>
#include <catch2/catch.hpp>
#include <cmath>
#include <map>

#include "engine/rng.h"
#include "io/dataset.h"
#include "io/synth_scene.h"
#include "tests/io/support.h"

using namespace convoy;
using convoy::testing::error_of;
using convoy::testing::TemporaryFolder;

TEST_CASE("a seed gives the same bytes, another seed others", "[io][synth]") {
  TemporaryFolder folder;
  SynthOptions options;
  options.images = 6;
  options.height = 48;
  options.width = 96;
  options.threads = 1;
  const SynthSummary summary = synthesize(folder / "a", options);
  options.threads = 3;
  synthesize(folder / "b", options);
  options.seed = 2;
  synthesize(folder / "c", options);
  CHECK(summary.train == 5);
  CHECK(summary.val == 1);
  CHECK(summary.void_share < .1);
  CHECK(summary.boxes > 0);
  int compared = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder / "a")) {
    if (!entry.is_regular_file()) continue;
    const std::string name = std::filesystem::relative(entry.path(), folder / "a").string();
    CHECK(testing::read_text(folder / ("a/" + name)) == testing::read_text(folder / ("b/" + name)));
    if (name.ends_with("_leftImg8bit.png")) {
      CHECK(testing::read_text(folder / ("a/" + name)) != testing::read_text(folder / ("c/" + name)));
    }
    ++compared;
  }
  CHECK(compared == 6 * 3 + 2);

  const SegmentationDataset train = open_cityscapes(folder / "a", "train");
  CHECK(train.size() == 5);
  CHECK(open_cityscapes(folder / "a", "val").size() == 1);
  for (int64_t i = 0; i < train.size(); ++i) CHECK(train.decode(i).labels.width == 96);
}

TEST_CASE("a picture does not change with the build", "[io][synth]") {
  const Scene scene = render_scene(64, 128, 1, 0);
  uint64_t labels = 0;
  for (const int32_t id : scene.labels.data) labels = mix(labels, static_cast<uint64_t>(id));
  uint64_t pixels = 0;
  for (const uint8_t value : scene.image.data) pixels = mix(pixels, value);
  CHECK(labels == 0x3d88320ba68382e1);
  CHECK(pixels == 0xc7a2edaec9a3a6f0);
}

TEST_CASE("scenes have the promised classes, sizes and little void", "[io][synth]") {
  std::map<int32_t, int64_t> pixels;
  int64_t smallest = 1000, largest = 0;
  for (uint64_t index = 0; index < 60; ++index) {
    const Scene scene = render_scene(128, 256, 4, index);
    int64_t ignored = 0;
    for (const int32_t id : scene.labels.data) {
      const int32_t train_id = cityscapes_train_ids()[static_cast<size_t>(id)];
      ++pixels[train_id];
      ignored += train_id == kIgnoreLabel;
    }
    CHECK(ignored <= 128 * 256 / 10);
    for (const SceneBox& box : scene.boxes) {
      CHECK(0 <= box.xmin);
      CHECK(box.xmin <= box.xmax);
      CHECK(box.xmax < 256);
      CHECK(box.ymin <= box.ymax);
      CHECK(box.ymax < 128);
      if (box.name != "person" || box.truncated || box.difficult) continue;
      smallest = std::min(smallest, box.ymax - box.ymin + 1);
      largest = std::max(largest, box.ymax - box.ymin + 1);
    }
  }
  pixels.erase(kIgnoreLabel);
  CHECK(pixels.size() == 10);
  for (const auto& [id, count] : pixels) {
    INFO("class " << id << " has " << count << " pixels");
    CHECK(count > 60 * 128 * 256 / 1000);
  }
  CHECK(largest >= 6 * smallest);
}

// The best that any function of one pixel's colour can do is bounded by what a colour histogram of the scenes knows:
// for each of 16x16x16 colours the class that is most frequent in it, counted on the very scenes that are judged.
TEST_CASE("colour alone does not solve the scenes", "[io][synth]") {
  constexpr int kColors = 16 * 16 * 16;
  std::vector<std::array<int64_t, 19>> histogram(kColors);
  for (uint64_t index = 0; index < 200; ++index) {
    const Scene scene = render_scene(64, 128, 9, index);
    for (size_t i = 0; i < scene.labels.data.size(); ++i) {
      const int32_t label = cityscapes_train_ids()[static_cast<size_t>(scene.labels.data[i])];
      if (label < 0) continue;
      const uint8_t* rgb = scene.image.data.data() + 3 * i;
      ++histogram[static_cast<size_t>((rgb[0] / 16 * 16 + rgb[1] / 16) * 16 + rgb[2] / 16)][static_cast<size_t>(label)];
    }
  }
  std::array<int64_t, 19> right{}, labelled{}, predicted{};
  for (const auto& counts : histogram) {
    const size_t best = static_cast<size_t>(std::max_element(counts.begin(), counts.end()) - counts.begin());
    right[best] += counts[best];
    for (size_t c = 0; c < 19; ++c) {
      labelled[c] += counts[c];
      predicted[best] += counts[c];
    }
  }
  double sum = 0;
  int present = 0;
  for (size_t c = 0; c < 19; ++c) {
    if (labelled[c] == 0) continue;
    ++present;
    sum += static_cast<double>(right[c]) / static_cast<double>(labelled[c] + predicted[c] - right[c]);
  }
  INFO("mIoU " << sum / present);
  CHECK(sum / present < .3);
}

TEST_CASE("impossible requests are refused", "[io][synth]") {
  TemporaryFolder folder;
  SynthOptions options;
  options.height = 8;
  CHECK_THAT(error_of([&] { synthesize(folder / "x", options); }), Catch::Contains("8 x 256"));
  options.images = 0;
  CHECK_THAT(error_of([&] { synthesize(folder / "x", options); }), Catch::Contains("found 0"));
  testing::write_text(folder / "file", "x");
  options = {};
  CHECK_THAT(error_of([&] { synthesize(folder / "file/sub", options); }), Catch::Contains("cannot be created"));
}
