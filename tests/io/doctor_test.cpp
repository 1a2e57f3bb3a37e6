#include "io/doctor.h"

#include <catch2/catch.hpp>
#include <set>

#include "tests/io/scenes.h"

using namespace convoy;
using convoy::testing::TemporaryFolder;
using convoy::testing::write_folder_dataset;

namespace {

std::vector<std::string> messages(const DatasetReport& report, const std::string& kind) {
  std::vector<std::string> found;
  for (const Finding& finding : report.findings) {
    if (finding.kind == kind) found.push_back(finding.message);
  }
  return found;
}

}  // namespace

TEST_CASE("a sound data set gives a histogram and no finding", "[io][doctor]") {
  TemporaryFolder folder;
  const SegmentationDataset dataset = open_folder(write_folder_dataset(folder.path(), 7), "train");
  const DatasetReport all = check_dataset(dataset);
  CHECK(all.findings.empty());
  CHECK(all.headers == 7);
  CHECK(all.decoded == 7);
  int64_t pixels = 0;
  for (int64_t i = 0; i < 7; ++i) pixels += static_cast<int64_t>(dataset.decode(i).labels.data.size());
  CHECK(all.histogram[0] + all.histogram[1] + all.histogram[2] + all.ignored_pixels == pixels);
  for (const int64_t limit : {0, 1, 2, 3, 6, 7, 9})
    CHECK(check_dataset(dataset, {.decoded = limit}).decoded == std::min<int64_t>(limit, 7));
}

TEST_CASE("each fault is found and named", "[io][doctor]") {
  TemporaryFolder folder;
  const DatasetConfig config = write_folder_dataset(folder.path(), 7);
  std::filesystem::remove(folder / "masks/train/000.png");
  testing::write_text(folder / "images/train/001.png", "damaged");
  write_png_gray(folder / "masks/train/002.png", {3, 4, std::vector<int32_t>(12, 0)});
  LabelMap labels = read_label_map(folder / "masks/train/003.png");
  labels.at(5, 6) = 77;
  write_png_gray(folder / "masks/train/003.png", labels);
  write_png(folder / "masks/train/004.png", read_image_rgb(folder / "images/train/004.png"));
  const std::vector<uint8_t> bytes = read_file_bytes(folder / "images/train/005.png");
  testing::write_text(folder / "images/train/005.png", std::string(bytes.begin(), bytes.end() - 60));

  const DatasetReport report = check_dataset(open_folder(config, "train", MissingLabels::keep));
  CHECK(report.headers == 7);
  CHECK(report.decoded == 1);
  REQUIRE(messages(report, "missing").size() == 1);
  CHECK_THAT(messages(report, "missing")[0], Catch::Contains("masks/train/000.png"));
  REQUIRE(messages(report, "corrupt").size() == 2);
  CHECK_THAT(messages(report, "corrupt")[0], Catch::Contains("001.png"));
  CHECK_THAT(messages(report, "corrupt")[1], Catch::Contains("005.png"));
  REQUIRE(messages(report, "size").size() == 1);
  CHECK_THAT(messages(report, "size")[0], Catch::Contains("22 x 32") && Catch::Contains("3 x 4"));
  REQUIRE(messages(report, "label").size() == 2);
  CHECK_THAT(messages(report, "label")[0],
             Catch::Contains("003.png") && Catch::Contains("77") && Catch::Contains("x 6, y 5"));
  CHECK_THAT(messages(report, "label")[1], Catch::Contains("004.png") && Catch::Contains("colour mask"));
}

TEST_CASE("classes that never occur and leaks are noted", "[io][doctor]") {
  TemporaryFolder folder;
  DatasetConfig config = write_folder_dataset(folder.path(), 4);
  config.num_classes = 5;
  const SegmentationDataset train = open_folder(config, "train");
  const std::vector<std::string> absent = messages(check_dataset(train), "class");
  REQUIRE(absent.size() == 1);
  CHECK_THAT(absent[0], Catch::Contains("2 of 5 classes do not occur in 4 decoded samples: ") && Catch::Contains(", "));
  for (const std::string kind : {"images", "masks"}) {
    std::filesystem::create_directories(folder / (kind + "/val"));
    std::filesystem::copy_file(folder / (kind + "/train/002.png"), folder / (kind + "/val/other.png"));
  }
  const std::vector<Finding> leaks = check_leak(train, open_folder(config, "val"));
  REQUIRE(leaks.size() == 1);
  CHECK_THAT(leaks[0].message, Catch::Contains("val/other.png") && Catch::Contains("train/002.png"));
}

TEST_CASE("a part of a large set is looked at, spread over it, by several threads alike", "[io][doctor]") {
  TemporaryFolder folder;
  const DatasetConfig config = write_folder_dataset(folder.path(), 9);
  for (const int index : {0, 4, 8}) std::filesystem::remove(folder / fmt::format("masks/train/{:03}.png", index));
  const SegmentationDataset dataset = open_folder(config, "train", MissingLabels::keep);
  std::set<int64_t> seen;
  const DatasetReport part =
      check_dataset(dataset, {.headers = 3, .decoded = 2, .looking_at = [&](int64_t index) { seen.insert(index); }});
  CHECK(part.headers == static_cast<int64_t>(seen.size()));
  CHECK(seen == std::set<int64_t>{0, 3, 4, 6});  // headers of 0, 3, 6; whole 0, 4
  const DatasetReport one = check_dataset(dataset), four = check_dataset(dataset, {.threads = 4});
  REQUIRE(one.findings.size() == 3);
  REQUIRE(four.findings.size() == 3);
  for (size_t i = 0; i < 3; ++i) CHECK(one.findings[i].message == four.findings[i].message);
  CHECK(one.histogram == four.histogram);
  CHECK(one.smallest.height * one.smallest.width == 21 * 30);  // of those whose mask is there
  CHECK(one.largest.height * one.largest.width == 22 * 32);
  const DatasetReport none = check_dataset(dataset, {.seconds = -1});
  CHECK(none.headers == 0);
  CHECK(messages(none, "time").size() == 1);
}

TEST_CASE("palettes that contradict the classes are found", "[io][doctor]") {
  TemporaryFolder folder;
  const DatasetConfig config = write_folder_dataset(folder.path(), 2);
  const LabelMap labels = [&] {
    LabelMap map = read_label_map(folder / "masks/train/000.png");
    for (int32_t& value : map.data) value = value == 9 ? 0 : value;
    return map;
  }();
  const std::string path = folder / "masks/train/000.png";
  const SegmentationDataset dataset = open_folder(config, "train");
  write_png_palette(path, labels, std::vector<Color>{voc_color(0), voc_color(1), voc_color(2)});
  CHECK(read_image_header(path).palette == std::vector<Color>{voc_color(0), voc_color(1), voc_color(2)});
  CHECK(messages(check_dataset(dataset), "palette").empty());
  write_png_palette(path, labels, std::vector<Color>{{9, 9, 9}, {8, 8, 8}, {7, 7, 7}});
  CHECK(messages(check_dataset(dataset), "palette").empty());
  write_png_palette(path, labels, std::vector<Color>{voc_color(2), voc_color(0), voc_color(1)});
  REQUIRE(messages(check_dataset(dataset), "palette").size() == 1);
  CHECK_THAT(messages(check_dataset(dataset), "palette")[0],
             Catch::Contains("000.png: value 0 (class 0) has the colour of class 2 (1 label files)"));
}

TEST_CASE("wrong label values are explained", "[io][doctor]") {
  TemporaryFolder folder;
  DatasetConfig config = write_folder_dataset(folder.path(), 1);
  const LabelMap labels = read_label_map(folder / "masks/train/000.png");
  const auto message = [&](const std::vector<int32_t>& values) {
    LabelMap changed = labels;
    for (size_t i = 0; i < changed.data.size(); ++i) changed.data[i] = values[i % values.size()];
    write_png_gray(folder / "masks/train/000.png", changed);
    const DatasetReport report = check_dataset(open_folder(config, "train"));
    REQUIRE(messages(report, "label").size() == 1);
    return messages(report, "label")[0];
  };
  CHECK_THAT(message({0, 255}), Catch::Contains("values 0, 255: a black and white mask"));
  // VOC's colours 0, 1, 2 have the luma 0, 38, 75.
  CHECK_THAT(message({0, 38, 75}), Catch::Contains("values 0, 38, 75: the brightness of the classes' colours"));
  CHECK_THAT(message({0, 1, 2, 255}), Catch::Contains("DATASET.IGNORE_LABEL 255"));
  CHECK_THAT(message({0, 1, 77}), Catch::EndsWith("the file holds the values 0, 1, 77"));
}

TEST_CASE("a missing image is named, a shared path is a leak", "[io][doctor]") {
  TemporaryFolder folder;
  const SegmentationDataset train = open_folder(write_folder_dataset(folder.path(), 3), "train");
  const std::vector<Finding> leaks = check_leak(train, train);
  REQUIRE(leaks.size() == 3);
  CHECK_THAT(leaks[0].message, Catch::Contains("train/000.png is in the training split, too"));
  CHECK(check_leak(train, train, -1).empty());
  std::filesystem::remove(folder / "images/train/001.png");
  const DatasetReport report = check_dataset(train);
  REQUIRE(messages(report, "missing").size() == 1);
  CHECK_THAT(messages(report, "missing")[0], Catch::Contains("train/001.png: the image is missing"));
}
