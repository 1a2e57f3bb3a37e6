// Every reader on a small made-up tree of its published layout, with faults planted.
#include <catch2/catch.hpp>

#include "io/dataset.h"
#include "tests/io/mat_writer.h"
#include "tests/io/scenes.h"

using namespace convoy;
using convoy::testing::error_of;
using convoy::testing::TemporaryFolder;
using convoy::testing::write_text;
namespace fs = std::filesystem;

namespace {

constexpr int64_t kHeight = 4, kWidth = 6;

void write_image(const std::string& path) {
  fs::create_directories(fs::path(path).parent_path());
  const Image image{kHeight, kWidth, 3, std::vector<uint8_t>(kHeight * kWidth * 3, 90), 8};
  path.ends_with(".png") ? write_png(path, image) : write_jpeg(path, image);
}

/// A label map of `first`, whose last pixel is `last`.
LabelMap labels_of(int32_t first, int32_t last) {
  LabelMap labels{kHeight, kWidth, std::vector<int32_t>(kHeight * kWidth, first)};
  labels.data.back() = last;
  return labels;
}

void write_labels(const std::string& path, int32_t first, int32_t last) {
  fs::create_directories(fs::path(path).parent_path());
  write_png_gray(path, labels_of(first, last));
}

Config config_of(const std::string& name, const std::string& root) {
  Config config;
  config.dataset.name = name;
  config.dataset.root = root;
  return config;
}

/// Class of the first and of the last pixel.
std::pair<int32_t, int32_t> ends(const Sample& sample) {
  return {sample.labels.data.front(), sample.labels.data.back()};
}

using Ends = std::pair<int32_t, int32_t>;

/// Faults that every data set of label PNGs has in common, planted into sample 0, whose label file reads `good`.
void check_label_faults(const Config& config, const std::string& split, int32_t good, int32_t bad) {
  const SegmentationDataset data = open_dataset(config, split);
  const std::string label = data.label_path(0);
  const uint64_t hash = data.content_hash();
  const LabelMap labels = data.read_file_values(0);

  write_png_gray(label, labels_of(good, bad));
  CHECK_THAT(error_of([&] { data.decode(0); }),
             Catch::Contains(label) && Catch::Contains(fmt::format("label value {} at pixel (x 5, y 3)", bad)));
  CHECK(open_dataset(config, split).content_hash() != hash);
  write_png_gray(label, {3, 6, std::vector<int32_t>(18, good)});
  CHECK_THAT(error_of([&] { data.decode(0); }),
             Catch::Contains(label) && Catch::Contains("4 x 6") && Catch::Contains("3 x 6"));
  write_png(label, {kHeight, kWidth, 3, std::vector<uint8_t>(kHeight * kWidth * 3, 90), 8});
  CHECK_THAT(error_of([&] { data.decode(0); }), Catch::Contains(label) && Catch::Contains("colour mask"));
  fs::remove(label);
  CHECK_THAT(error_of([&] { open_dataset(config, split); }), Catch::Contains(label) && Catch::Contains("is missing"));
  CHECK(open_dataset(config, split, MissingLabels::keep).size() == data.size());
  write_png_gray(label, labels);
  CHECK(open_dataset(config, split).content_hash() == hash);
}

/// A palette PNG is read by its indices.
void check_palette_labels(const Config& config, const std::string& split, int32_t value, int32_t expected) {
  const SegmentationDataset data = open_dataset(config, split);
  const LabelMap before = data.read_file_values(0);
  std::vector<Color> palette(256);
  for (size_t i = 0; i < palette.size(); ++i) palette[i] = voc_color(static_cast<int64_t>(i));
  write_png_palette(data.label_path(0), labels_of(value, value), palette);
  CHECK(ends(data.decode(0)) == Ends{expected, expected});
  write_png_gray(data.label_path(0), before);
}

}  // namespace

TEST_CASE("CamVid's folders", "[io][dataset][layout]") {
  TemporaryFolder folder;
  const Config config = config_of("camvid", folder.path());
  for (const std::string split : {"train", "val"}) {
    write_image(folder / (split + "/0001TP.png"));
    write_labels(folder / (split + "annot/0001TP.png"), 3, 11);
    write_image(folder / (split + "/0002TP.jpg"));
    write_labels(folder / (split + "annot/0002TP.png"), 0, 10);
  }
  write_image(folder / "test/0003TP.png");
  const SegmentationDataset train = open_dataset(config, "train");
  REQUIRE(train.size() == 2);
  CHECK(train.num_classes() == 11);
  CHECK(train.class_names()[4] == "pavement");
  CHECK(train.palette()[10] == Color{0, 128, 192});
  CHECK(ends(train.decode(0)) == Ends{3, kIgnoreLabel});
  CHECK(ends(train.decode(1)) == Ends{0, 10});
  CHECK(open_dataset(config, "trainval").size() == 4);
  check_label_faults(config, "train", 3, 12);
  check_palette_labels(config, "train", 9, 9);

  SECTION("a test split without labels opens for prediction only") {
    CHECK_THAT(error_of([&] { open_dataset(config, "test"); }), Catch::Contains("'test' has no labels"));
    const SegmentationDataset test = open_dataset(config, "test", MissingLabels::keep);
    CHECK(test.size() == 1);
    CHECK_FALSE(test.has_labels());
    CHECK_THAT(error_of([&] { test.decode(0); }), Catch::Contains("'test' has no labels"));
    write_labels(folder / "testannot/0003TP.png", 1, 2);
    CHECK(open_dataset(config, "test").has_labels());
  }
  SECTION("other splits and folders are named") {
    CHECK_THAT(error_of([&] { open_dataset(config, "valid"); }), Catch::Contains("'valid'"));
    CHECK_THAT(error_of([&] { open_dataset(config_of("camvid", folder / "none"), "val"); }),
               Catch::Contains("none") && Catch::Contains("DATASET.ROOT"));
    fs::remove_all(folder / "val");
    CHECK_THAT(error_of([&] { open_dataset(config, "val"); }), Catch::Contains("no CamVid split 'val'"));
  }
  SECTION("keys that contradict the data set") {
    Config other = config;
    other.dataset.num_classes = 12;
    CHECK_THAT(error_of([&] { open_dataset(other, "train"); }),
               Catch::Contains("NUM_CLASSES is 12") && Catch::Contains("11 classes"));
    other.dataset.num_classes = 11;
    other.dataset.ignore_label = 255;
    write_labels(folder / "trainannot/0001TP.png", 255, 11);
    CHECK(ends(open_dataset(other, "train").decode(0)) == Ends{kIgnoreLabel, kIgnoreLabel});
  }
}

TEST_CASE("predictions are written in the data set's own values", "[io][dataset][layout]") {
  ClassTable classes{{"a", "b", "c"}, {}, {7, 8, 11}};
  LabelMap labels{1, 4, {2, 0, kIgnoreLabel, 1}};
  classes.to_file_values(labels);
  CHECK(labels.data == std::vector<int32_t>{11, 7, kIgnoreLabel, 8});
  labels.data = {3};
  CHECK_THROWS_AS(classes.to_file_values(labels), Error);
  classes.file_values.clear();
  classes.to_file_values(labels);
  CHECK(labels.data == std::vector<int32_t>{3});
}

TEST_CASE("PASCAL VOC's folders and lists", "[io][dataset][layout]") {
  TemporaryFolder folder;
  const Config config = config_of("pascal_voc", folder.path());
  const std::string lists = folder / "ImageSets/Segmentation/";
  for (const std::string name : {"2007_000032", "2007_000039", "2008_000001"}) {
    write_image(folder / ("JPEGImages/" + name + ".jpg"));
    write_labels(folder / ("SegmentationClass/" + name + ".png"), 15, 255);
  }
  write_image(folder / "JPEGImages/2009_000001.jpg");  // in no list but test's
  write_text(lists + "train.txt", "2007_000039\r\n\r\n  2007_000032 \r\n\n");
  write_text(lists + "val.txt", "2008_000001");
  write_text(lists + "trainval.txt", "2007_000032\n2007_000039\n2008_000001\n");
  write_text(lists + "test.txt", "2009_000001\n");
  const SegmentationDataset train = open_dataset(config, "train");
  REQUIRE(train.size() == 2);
  CHECK(train.sample_name(0) == "JPEGImages/2007_000032.jpg");
  CHECK(ends(train.decode(1)) == Ends{15, kIgnoreLabel});
  CHECK(train.num_classes() == 21);
  CHECK(train.class_names()[15] == "person");
  CHECK(train.palette()[15] == Color{192, 128, 128});
  CHECK(open_dataset(config, "val").size() == 1);
  CHECK(open_dataset(config, "trainval").size() == 3);
  check_label_faults(config, "train", 15, 21);
  check_palette_labels(config, "train", 20, 20);
  CHECK_FALSE(open_dataset(config, "test", MissingLabels::keep).has_labels());
  CHECK_THAT(error_of([&] { open_dataset(config, "test"); }), Catch::Contains("no labels"));

  SECTION("a name without image, one that is there twice, an empty list, none") {
    write_text(lists + "train.txt", "2007_000032\n\n2007_999999\n");
    CHECK_THAT(error_of([&] { open_dataset(config, "train"); }),
               Catch::Contains("train.txt:3: the image") && Catch::Contains("2007_999999.jpg is missing"));
    CHECK(open_dataset(config, "train", MissingLabels::keep).size() == 2);
    write_text(lists + "train.txt", "2007_000032\n2007_000039\n2007_000032\r\n");
    CHECK_THAT(error_of([&] { open_dataset(config, "train"); }),
               Catch::Contains("train.txt:3: 2007_000032 is listed twice, the first time in line 1"));
    write_text(lists + "train.txt", "\r\n\n  \n");
    CHECK_THAT(error_of([&] { open_dataset(config, "train"); }), Catch::Contains("lists no names"));
    fs::remove(lists + "train.txt");
    CHECK_THAT(error_of([&] { open_dataset(config, "train"); }), Catch::Contains("train.txt: cannot be opened"));
  }
}

TEST_CASE("VOC's augmented folders, MATLAB files and PNGs", "[io][dataset][layout]") {
  TemporaryFolder folder;
  const Config config = config_of("pascal_aug", folder.path());
  for (const std::string name : {"2008_000002", "2008_000003", "2008_000007"}) {
    write_image(folder / ("img/" + name + ".jpg"));
    write_text(folder / ("cls/" + name + ".mat"), testing::mat_file(labels_of(0, 20)));
  }
  fs::remove(folder / "cls/2008_000003.mat");
  write_labels(folder / "cls/2008_000003.png", 7, 255);
  write_text(folder / "train.txt", "2008_000002\n");
  write_text(folder / "val.txt", "2008_000007\n");
  CHECK(open_dataset(config, "train").size() == 1);
  write_text(folder / "trainval.txt", "2008_000002\n2008_000003\n");
  const SegmentationDataset train = open_dataset(config, "train");
  REQUIRE(train.size() == 2);
  CHECK(ends(train.decode(0)) == Ends{0, 20});
  CHECK(ends(train.decode(1)) == Ends{7, kIgnoreLabel});
  CHECK(train.label_size(0).height == kHeight);
  CHECK(train.label_size(0).width == kWidth);
  CHECK(open_dataset(config, "val").size() == 1);

  write_text(folder / "cls/2008_000002.mat", testing::mat_file(labels_of(0, 21)));
  CHECK_THAT(error_of([&] { train.decode(0); }),
             Catch::Contains("2008_000002.mat: label value 21 at pixel (x 5, y 3); allowed are 0..20 and 255"));
  write_text(folder / "cls/2008_000002.mat", testing::mat_file({1, 2, {0, 0}}));
  CHECK_THAT(error_of([&] { train.decode(0); }), Catch::Contains("4 x 6") && Catch::Contains("1 x 2"));
  write_text(folder / "cls/2008_000002.mat", "no matrix");
  CHECK_THAT(error_of([&] { train.decode(0); }), Catch::Contains("2008_000002.mat: no MATLAB 5 file"));
  fs::remove(folder / "cls/2008_000002.mat");
  CHECK_THAT(error_of([&] { open_dataset(config, "train"); }), Catch::Contains("cls/2008_000002.mat is missing"));
}

TEST_CASE("ADE20K's folders: values from 1, 0 is ignored", "[io][dataset][layout]") {
  TemporaryFolder folder;
  const Config config = config_of("ade20k", folder.path());
  for (const std::string part : {"training", "validation"}) {
    const std::string name = "/ADE_" + part.substr(0, 3) + "_00000001";
    write_image(folder / ("images/" + part + name + ".jpg"));
    write_labels(folder / ("annotations/" + part + name + ".png"), 0, 150);
  }
  write_image(folder / "images/testing/ADE_test_00000001.jpg");
  const SegmentationDataset train = open_dataset(config, "train");
  REQUIRE(train.size() == 1);
  CHECK(train.num_classes() == 150);
  CHECK(ends(train.decode(0)) == Ends{kIgnoreLabel, 149});
  CHECK(train.classes().file_values[0] == 1);
  CHECK(train.classes().file_values[149] == 150);
  CHECK(train.class_names()[149] == "flag");
  CHECK(train.palette()[2] == Color{6, 230, 230});
  CHECK(open_dataset(config, "val").size() == 1);
  CHECK(open_dataset(config, "trainval").size() == 2);
  CHECK(open_dataset(config, "test", MissingLabels::keep).size() == 1);
  check_label_faults(config, "train", 0, 151);
  check_palette_labels(config, "val", 12, 11);
}

TEST_CASE("SBU's folders: every value above 0 is shadow", "[io][dataset][layout]") {
  TemporaryFolder folder;
  const Config config = config_of("sbu", folder.path());
  for (const std::string part : {"SBUTrain4KRecoveredSmall", "SBU-Test"}) {
    write_image(folder / (part + "/ShadowImages/lssd1.jpg"));
    write_labels(folder / (part + "/ShadowMasks/lssd1.png"), 0, 255);
  }
  const SegmentationDataset train = open_dataset(config, "train");
  CHECK(train.num_classes() == 2);
  CHECK(ends(train.decode(0)) == Ends{0, 1});
  CHECK(train.classes().file_values == std::vector<int32_t>{0, 255});
  CHECK(open_dataset(config, "test").sample_name(0) == "SBU-Test/ShadowImages/lssd1.jpg");
  write_labels(folder / "SBU-Test/ShadowMasks/lssd1.png", 1, 254);
  CHECK(ends(open_dataset(config, "val").decode(0)) == Ends{1, 1});
  fs::remove(folder / "SBU-Test/ShadowMasks/lssd1.png");
  CHECK_THAT(error_of([&] { open_dataset(config, "val"); }), Catch::Contains("ShadowMasks/lssd1.png is missing"));
}

TEST_CASE("LIP's folders and lists", "[io][dataset][layout]") {
  TemporaryFolder folder;
  const Config config = config_of("lip", folder.path());
  for (const std::string part : {"train", "val"}) {
    write_image(folder / ("TrainVal_images/" + part + "_images/10_77.jpg"));
    write_labels(folder / ("TrainVal_parsing_annotations/" + part + "_segmentations/10_77.png"), 14, 19);
    write_text(folder / ("TrainVal_images/" + part + "_id.txt"), "10_77\r\n");
  }
  write_image(folder / "Testing_images/testing_images/20_1.jpg");
  write_text(folder / "Testing_images/test_id.txt", "20_1\n");
  const SegmentationDataset train = open_dataset(config, "train");
  CHECK(train.num_classes() == 20);
  CHECK(train.class_names()[14] == "left arm");
  CHECK(ends(train.decode(0)) == Ends{14, 19});
  CHECK(open_dataset(config, "trainval").size() == 2);
  CHECK(open_dataset(config, "test", MissingLabels::keep).size() == 1);
  check_label_faults(config, "train", 14, 20);
  check_palette_labels(config, "val", 5, 5);
}

TEST_CASE("colour masks are read by DATASET.MASK_COLORS", "[io][dataset][layout]") {
  TemporaryFolder folder;
  Config config = config_of("camvid", folder.path());
  write_image(folder / "train/a.png");
  const std::string mask = folder / "trainannot/a.png";
  fs::create_directories(folder / "trainannot");
  Image colors{kHeight, kWidth, 3, {}, 8};
  for (int64_t i = 0; i < kHeight * kWidth; ++i) colors.data.insert(colors.data.end(), {64, 0, 128});
  std::fill_n(colors.pixel(3, 5), 3, uint8_t{0});
  write_png(mask, colors);
  CHECK_THAT(error_of([&] { open_dataset(config, "train").decode(0); }),
             Catch::Contains(mask) && Catch::Contains("DATASET.MASK_COLORS"));

  SECTION("the classes' own colours") {
    config.dataset.mask_colors = "classes";
    const SegmentationDataset data = open_dataset(config, "train");
    CHECK(ends(data.decode(0)) == Ends{8, kIgnoreLabel});
    CHECK(data.label_size(0).height == kHeight);
    // A palette is read by its colours, too; gray files by their values.
    write_png_palette(mask, labels_of(0, 1), std::vector<Color>{{128, 0, 0}, {64, 64, 0}});
    CHECK(ends(data.decode(0)) == Ends{1, 9});
    write_png_gray(mask, labels_of(4, 11));
    CHECK(ends(data.decode(0)) == Ends{4, kIgnoreLabel});
    colors.pixel(2, 1)[0] = 65;
    write_png(mask, colors);
    CHECK_THAT(error_of([&] { data.decode(0); }), Catch::Contains(mask) &&
                                                      Catch::Contains("(65, 0, 128) at pixel (x 1, y 2)") &&
                                                      Catch::Contains("(64, 0, 128), car"));
  }
  SECTION("a file of colours") {
    config.dataset.mask_colors = "colors.txt";
    write_text(folder / "colors.txt", "car 64 0 128\r\n\nignore 0 0 0\ncar 1 2 3\n");
    CHECK(ends(open_dataset(config, "train").decode(0)) == Ends{8, kIgnoreLabel});
    write_text(folder / "colors.txt", "car 64 0 128\ncare 0 0 0\n");
    CHECK_THAT(error_of([&] { open_dataset(config, "train"); }),
               Catch::Contains("colors.txt:2: 'care' is no class; the nearest is 'car'"));
    write_text(folder / "colors.txt", "car 64 0 256\n");
    CHECK_THAT(error_of([&] { open_dataset(config, "train"); }),
               Catch::Contains("colors.txt:1: the colour (64, 0, 256)"));
    write_text(folder / "colors.txt", "car 64 0 128\nignore 64 0 128\n");
    CHECK_THAT(error_of([&] { open_dataset(config, "train"); }),
               Catch::Contains("(64, 0, 128) stands for car and for ignore"));
    fs::remove(folder / "colors.txt");
    CHECK_THAT(error_of([&] { open_dataset(config, "train"); }), Catch::Contains("colors.txt: cannot be opened"));
  }
  SECTION("a data set whose file values are not its classes") {
    Config ade = config_of("ade20k", folder.path());
    ade.dataset.mask_colors = "colors.txt";
    write_text(folder / "colors.txt", "traffic light 64 0 128\nignore 0 0 0\n");
    write_image(folder / "images/training/a.jpg");
    fs::create_directories(folder / "annotations/training");
    write_png(folder / "annotations/training/a.png", colors);
    CHECK(ends(open_dataset(ade, "train").decode(0)) == Ends{136, kIgnoreLabel});
  }
}
