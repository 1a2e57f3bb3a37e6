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
  const DatasetReport all = check_dataset(dataset, -1);
  CHECK(all.findings.empty());
  CHECK(all.headers == 7);
  CHECK(all.decoded == 7);
  int64_t pixels = 0;
  for (int64_t i = 0; i < 7; ++i) pixels += static_cast<int64_t>(dataset.decode(i).labels.data.size());
  CHECK(all.histogram[0] + all.histogram[1] + all.histogram[2] + all.ignored_pixels == pixels);
  for (const int64_t limit : {0, 1, 2, 3, 6, 7, 9})
    CHECK(check_dataset(dataset, limit).decoded == std::min<int64_t>(limit, 7));
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

  const DatasetReport report = check_dataset(open_folder(config, "train", MissingLabels::keep), -1);
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
  CHECK(messages(check_dataset(train, -1), "class").size() == 2);
  for (const std::string kind : {"images", "masks"}) {
    std::filesystem::create_directories(folder / (kind + "/val"));
    std::filesystem::copy_file(folder / (kind + "/train/002.png"), folder / (kind + "/val/other.png"));
  }
  const std::vector<Finding> leaks = check_leak(train, open_folder(config, "val"));
  REQUIRE(leaks.size() == 1);
  CHECK_THAT(leaks[0].message, Catch::Contains("val/other.png") && Catch::Contains("train/002.png"));
}
