#include "io/dataset.h"

#include <catch2/catch.hpp>

#include "tests/io/scenes.h"

using namespace convoy;
using convoy::testing::error_of;
using convoy::testing::TemporaryFolder;
using convoy::testing::write_folder_dataset;

namespace {

void write_cityscapes_pair(const std::string& root, const std::string& split, const std::string& scene, int32_t id,
                           bool with_label = true) {
  const std::string city = scene.substr(0, scene.find('_'));
  for (const std::string kind : {"leftImg8bit", "gtFine"}) {
    std::filesystem::create_directories(root + "/" + kind + "/" + split + "/" + city);
  }
  write_png(root + "/leftImg8bit/" + split + "/" + city + "/" + scene + "_leftImg8bit.png",
            {4, 6, 3, std::vector<uint8_t>(72, 10), 8});
  if (!with_label) return;
  write_png_gray(root + "/gtFine/" + split + "/" + city + "/" + scene + "_gtFine_labelIds.png",
                 {4, 6, std::vector<int32_t>(24, id)});
}

}  // namespace

TEST_CASE("Cityscapes ids become train ids", "[io][dataset]") {
  const std::vector<int32_t>& ids = cityscapes_train_ids();
  REQUIRE(ids.size() == 34);
  CHECK(ids[7] == 0);
  CHECK(ids[8] == 1);
  CHECK(ids[17] == 5);
  CHECK(ids[23] == 10);
  CHECK(ids[26] == 13);
  CHECK(ids[33] == 18);
  for (const size_t ignored : {0, 1, 2, 3, 4, 5, 6, 9, 10, 14, 15, 16, 18, 29, 30}) CHECK(ids[ignored] == kIgnoreLabel);
}

TEST_CASE("Cityscapes is listed in one order on every machine", "[io][dataset]") {
  TemporaryFolder folder;
  write_cityscapes_pair(folder.path(), "train", "zurich_000000_000001", 26);
  write_cityscapes_pair(folder.path(), "train", "aachen_000001_000019", 7);
  write_cityscapes_pair(folder.path(), "val", "munster_000000_000019", 33);
  testing::write_text(folder / "leftImg8bit/train/aachen/._aachen_000001_000019_leftImg8bit.png", "mac");
  const SegmentationDataset train = open_cityscapes(folder.path(), "train");
  REQUIRE(train.size() == 2);
  CHECK(train.sample_name(0) == "leftImg8bit/train/aachen/aachen_000001_000019_leftImg8bit.png");
  CHECK(train.num_classes() == 19);
  CHECK(train.palette().size() == 19);
  CHECK(train.classes().file_values ==
        std::vector<int32_t>{7, 8, 11, 12, 13, 17, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 31, 32, 33});
  CHECK(train.decode(0).labels.at(3, 5) == 0);
  CHECK(train.decode(1).labels.at(0, 0) == 13);
  CHECK(open_cityscapes(folder.path(), "trainval").size() == 3);
  CHECK(train.content_hash() == open_cityscapes(folder.path(), "train").content_hash());
  const uint64_t before = train.content_hash();
  write_cityscapes_pair(folder.path(), "train", "ulm_000000_000001", 26);
  CHECK(open_cityscapes(folder.path(), "train").content_hash() != before);
}

TEST_CASE("a label outside the Cityscapes ids names file, pixel and value", "[io][dataset]") {
  TemporaryFolder folder;
  write_cityscapes_pair(folder.path(), "train", "ulm_000000_000001", 7);
  LabelMap labels{4, 6, std::vector<int32_t>(24, 7)};
  for (const int32_t value : {34, 255}) {
    labels.at(2, 5) = value;
    write_png_gray(folder / "gtFine/train/ulm/ulm_000000_000001_gtFine_labelIds.png", labels);
    CHECK_THAT(error_of([&] { open_cityscapes(folder.path(), "train").decode(0); }),
               Catch::Contains("ulm_000000_000001_gtFine_labelIds.png") && Catch::Contains("x 5, y 2") &&
                   Catch::Contains(std::to_string(value)) && Catch::Contains("-1..33"));
  }
}

TEST_CASE("missing Cityscapes labels and folders are named", "[io][dataset]") {
  TemporaryFolder folder;
  CHECK_THAT(error_of([&] { open_cityscapes(folder.path(), "train"); }), Catch::Contains("leftImg8bit"));
  write_cityscapes_pair(folder.path(), "train", "ulm_000000_000001", 7, false);
  CHECK_THAT(error_of([&] { open_cityscapes(folder.path(), "train"); }),
             Catch::Contains("ulm_000000_000001_leftImg8bit.png") && Catch::Contains("labelIds.png is missing"));
  CHECK(open_cityscapes(folder.path(), "train", MissingLabels::keep).size() == 1);
  CHECK_THAT(error_of([&] { open_cityscapes(folder.path(), "valid"); }), Catch::Contains("'valid'"));
  CHECK_THAT(error_of([&] { open_cityscapes(folder.path(), "val"); }), Catch::Contains("leftImg8bit/val"));
}

TEST_CASE("a folder of images and masks is a data set", "[io][dataset]") {
  TemporaryFolder folder;
  DatasetConfig config = write_folder_dataset(folder.path(), 3);
  const SegmentationDataset dataset = open_folder(config, "train");
  REQUIRE(dataset.size() == 3);
  const Sample sample = dataset.decode(1);
  CHECK(sample.labels.at(0, 0) == kIgnoreLabel);
  CHECK(sample.labels.at(0, 1) >= 0);
  CHECK(sample.labels.at(0, 1) <= 2);
  CHECK(dataset.class_names()[2] == "class 2");

  SECTION("SegNet's split and explicit folders") {
    std::filesystem::rename(folder / "images/train", folder / "train");
    std::filesystem::rename(folder / "masks/train", folder / "trainannot");
    CHECK(open_folder(config, "train").size() == 3);
    config.image_dir = "{split}";
    config.mask_dir = "{split}annot";
    CHECK(open_folder(config, "train").size() == 3);
    CHECK_THAT(error_of([&] { open_folder(config, "val"); }), Catch::Contains("/val"));
  }
  SECTION("classes.txt gives names and colours") {
    testing::write_text(folder / "classes.txt", "sky 1 2 3\ntraffic sign\ncar\n");
    const SegmentationDataset named = open_folder(config, "train");
    CHECK(named.class_names() == std::vector<std::string>{"sky", "traffic sign", "car"});
    CHECK(named.palette()[0] == Color{1, 2, 3});
    CHECK(named.palette()[1] == voc_color(1));
    config.num_classes = 4;
    CHECK_THAT(error_of([&] { open_folder(config, "train"); }), Catch::Contains("lists 3 classes"));
  }
  SECTION("a label outside the range") {
    config.ignore_label.reset();
    CHECK_THAT(
        error_of([&] { open_folder(config, "train").decode(0); }),
        Catch::Contains("000.png") && Catch::Contains("label value 9 at pixel (x 0, y 0)") && Catch::Contains("0..2"));
  }
  SECTION("a mask of another size names both files and sizes") {
    write_png_gray(folder / "masks/train/001.png", {7, 9, std::vector<int32_t>(63, 0)});
    CHECK_THAT(error_of([&] { dataset.decode(1); }), Catch::Contains("images/train/001.png") &&
                                                         Catch::Contains("masks/train/001.png") &&
                                                         Catch::Contains("21 x 31") && Catch::Contains("7 x 9"));
  }
  SECTION("a missing mask") {
    std::filesystem::remove(folder / "masks/train/002.png");
    CHECK_THAT(error_of([&] { open_folder(config, "train"); }),
               Catch::Contains("images/train/002.png") && Catch::Contains("masks/train/002.png is missing"));
    CHECK_THAT(error_of([&] { dataset.decode(2); }), Catch::Contains("masks/train/002.png is missing"));
  }
  SECTION("two images for one mask") {
    write_jpeg(folder / "images/train/001.jpg", dataset.decode(1).image);
    CHECK_THAT(error_of([&] { open_folder(config, "train"); }), Catch::Contains("same base name"));
  }
  SECTION("unknown data sets and unset keys") {
    Config whole;
    CHECK_THAT(error_of([&] { open_dataset(whole, "train"); }), Catch::Contains("DATASET.NAME"));
    whole.dataset.name = "citiscape";
    CHECK_THAT(error_of([&] { open_dataset(whole, "train"); }), Catch::Contains("the nearest is 'cityscape'"));
    config.num_classes = 0;
    CHECK_THAT(error_of([&] { open_folder(config, "train"); }), Catch::Contains("DATASET.NUM_CLASSES"));
  }
}

TEST_CASE("CamVid opens and decodes", "[io][dataset][data]") {
  const char* data = std::getenv("CONVOY_DATA");
  if (!data) {
    WARN("skipped: CONVOY_DATA is not set");
    return;
  }
  DatasetConfig config;
  config.root = std::string(data) + "/camvid";
  config.num_classes = 11;
  config.ignore_label = 11;
  CHECK(open_folder(config, "train").size() == 367);
  const SegmentationDataset val = open_folder(config, "val");
  CHECK(val.size() == 101);
  const Sample sample = val.decode(100);
  CHECK(sample.image.width == 480);
  CHECK(sample.labels.height == 360);
}
