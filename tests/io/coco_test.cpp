#include <catch2/catch.hpp>
#include <thread>

#include "io/coco_annotations.h"
#include "io/coco_mask.h"
#include "io/dataset.h"
#include "tests/io/scenes.h"

using namespace convoy;
using convoy::testing::error_of;
using convoy::testing::TemporaryFolder;
using convoy::testing::write_text;
namespace fs = std::filesystem;

namespace {

/// "#" where the mask is.
std::vector<std::string> picture(const std::vector<PixelRange>& ranges, int64_t height, int64_t width) {
  std::vector<std::string> rows(static_cast<size_t>(height), std::string(static_cast<size_t>(width), '.'));
  for (const PixelRange& range : ranges)
    for (int64_t at = range.first; at < range.last; ++at)
      rows[static_cast<size_t>(at % height)][static_cast<size_t>(at / height)] = '#';
  return rows;
}

/// The reference tools' picture of the polygon below and their packed form of it.
const std::vector<double> kPolygon = {2.3, 1.1, 11.7, 3.4, 9.2, 8.9, 5.5, 4.6, 1.05, 7.75};
const std::vector<std::string> kPicture = {"..............", "..##..........", "..######......", "..##########..",
                                           "..#########...", ".###..#####...", ".##....###....", "........##....",
                                           "..............", ".............."};
const std::string kPacked = "?2440O2N1001O100O00N2Nc0";

constexpr const char* kImages =
    R"("images": [{"id": 30, "file_name": "c.jpg", "height": 60, "width": 80, "license": 1},
                  {"file_name": "a.jpg", "height": 60, "width": 80, "id": 10},
                  {"id": 20, "file_name": "b.jpg", "height": 60, "width": 80}])";

/// Three images of 60 x 80: a.jpg with overlapping instances, b.jpg with too few pixels, c.jpg with run lengths.
std::string annotations_text() {
  return R"({"info": {"images": [1, [2]], "year": 2017},
    "annotations": [
      {"id": 1, "image_id": 10, "category_id": 1, "iscrowd": 0, "bbox": [0, 0, 50, 40],
       "segmentation": [[0, 0, 50, 0, 50, 40, 0, 40]]},
      {"id": 2, "image_id": 10, "category_id": 3, "segmentation": [[40, 30, 60, 30, 60, 50, 40, 50],
                                                                  [70.0, 0, 80, 0, 80, 10, 70, 10]]},
      {"id": 3, "image_id": 10, "category_id": 8, "segmentation": [[0, 0, 80, 0, 80, 60, 0, 60]]},
      {"id": 4, "image_id": 20, "category_id": 5, "segmentation": [[0, 0, 40, 0, 40, 25, 0, 25]]},
      {"id": 5, "image_id": 30, "category_id": 72, "iscrowd": 1,
       "segmentation": {"counts": [60, 1200, 3540], "size": [60, 80]}},
      {"id": 6, "image_id": 30, "category_id": 64, "segmentation": []}
    ],)" +
         std::string(kImages) + R"(, "categories": [{"id": 1, "name": "person"}]})";
}

void write_coco(const TemporaryFolder& folder, const std::string& text) {
  for (const std::string name : {"a", "b", "c"}) {
    fs::create_directories(folder / "train2017");
    write_jpeg(folder / ("train2017/" + name + ".jpg"), {60, 80, 3, std::vector<uint8_t>(60 * 80 * 3, 90), 8});
  }
  write_text(folder / "annotations/instances_train2017.json", text);
}

Config config_of(const TemporaryFolder& folder) {
  Config config;
  config.dataset.name = "coco";
  config.dataset.root = folder.path();
  return config;
}

}  // namespace

TEST_CASE("polygons cover the pixels that the reference tools give them", "[io][coco]") {
  CHECK(picture(polygon_ranges(kPolygon, 10, 14), 10, 14) == kPicture);
  CHECK(picture(polygon_ranges(std::vector<double>{1, 1, 4, 1, 4, 3, 1, 3}, 5, 6), 5, 6) ==
        std::vector<std::string>{"......", ".###..", ".###..", "......", "......"});
  // Corners outside the image, a point, a line.
  CHECK(picture(polygon_ranges(std::vector<double>{-9, -9, 99, -9, 99, 2, -9, 2}, 3, 4), 3, 4) ==
        std::vector<std::string>{"####", "####", "...."});
  CHECK(polygon_ranges(std::vector<double>{2, 2, 2, 2, 2, 2}, 5, 5).empty());
  CHECK(polygon_ranges(std::vector<double>{1, 1, 1, 4, 1, 2}, 5, 5).empty());
}

TEST_CASE("run lengths, plain and packed", "[io][coco]") {
  const std::vector<uint32_t> counts = unpack_run_lengths(kPacked);
  CHECK(picture(run_length_ranges(counts, 10, 14), 10, 14) == kPicture);
  CHECK(picture(run_length_ranges(std::vector<uint32_t>{0, 2, 3, 1}, 2, 3), 2, 3) ==
        std::vector<std::string>{"#..", "#.#"});
  CHECK_THAT(error_of([] { run_length_ranges(std::vector<uint32_t>{1, 2}, 2, 3); }), Catch::Contains("3 of 2 x 3"));
  CHECK_THAT(error_of([] { run_length_ranges(std::vector<uint32_t>{1, 9}, 2, 3); }), Catch::Contains("more than"));
  CHECK_THAT(error_of([] { unpack_run_lengths("?2 4"); }), Catch::Contains("character code 32"));
  CHECK_THAT(error_of([] { unpack_run_lengths("?2P"); }), Catch::Contains("cut off"));
  CHECK_THAT(error_of([] { unpack_run_lengths("ooooooooo0"); }), Catch::Contains("cut off"));
  CHECK_THAT(error_of([] { unpack_run_lengths("O"); }), Catch::Contains("the length -1"));
}

TEST_CASE("COCO's instances become VOC classes", "[io][dataset][layout][coco]") {
  TemporaryFolder folder;
  write_coco(folder, annotations_text());
  const SegmentationDataset train = open_dataset(config_of(folder), "train");
  REQUIRE(train.size() == 2);  // b.jpg has 1000 labelled pixels, one too few
  CHECK(train.sample_name(0) == "train2017/a.jpg");
  CHECK(train.num_classes() == 21);
  CHECK(train.classes().file_values[15] == 1);
  const LabelMap a = train.decode(0).labels;
  CHECK(a.at(0, 0) == 15);
  CHECK(a.at(39, 49) == 15);  // the first of two instances wins
  CHECK(a.at(40, 49) == 7);
  CHECK(a.at(5, 75) == 7);   // its second polygon
  CHECK(a.at(59, 79) == 0);  // trucks are no class of VOC
  CHECK(std::count(a.data.begin(), a.data.end(), 15) == 50 * 40);
  const LabelMap c = train.decode(1).labels;
  CHECK(c.at(0, 0) == 0);
  CHECK(c.at(0, 1) == 20);
  CHECK(std::count(c.data.begin(), c.data.end(), 20) == 1200);
  CHECK(train.label_size(0).width == 80);

  SECTION("the list of ids is kept until the annotations change") {
    const std::string cache = folder / "train2017_ids.txt";
    const std::string text = testing::read_text(cache);
    CHECK_THAT(text, Catch::Contains("labelled pixels: 2\n10\n30\nend\n"));
    std::string other = text;
    other.replace(other.find("2\n10\n30\n"), 8, "1\n30\n");
    write_text(cache, other);  // believed, since the annotations are the same
    CHECK(open_dataset(config_of(folder), "train").size() == 1);
    for (const std::string& damaged :
         {text.substr(0, text.size() - 6), text + "40\n", std::string(), "convoy coco ids 1\n" + text,
          std::string(text).replace(text.find("\n10\n"), 4, "\n11\n")}) {
      write_text(cache, damaged);
      CHECK(open_dataset(config_of(folder), "train").size() == 2);
      CHECK(testing::read_text(cache) == text);
    }
    std::string changed = annotations_text();
    changed.replace(changed.find("40, 25, 0, 25"), 13, "40, 26, 0, 26");
    write_coco(folder, changed);
    CHECK(open_dataset(config_of(folder), "train").size() == 3);
    CHECK(testing::read_text(cache) != text);
  }
  SECTION("several openings at a time") {
    fs::remove(folder / "train2017_ids.txt");
    std::vector<std::thread> threads;
    std::atomic<int64_t> found = 0;
    for (int i = 0; i < 4; ++i) threads.emplace_back([&] { found += open_dataset(config_of(folder), "train").size(); });
    for (std::thread& thread : threads) thread.join();
    CHECK(found == 8);
  }
  SECTION("faults are named") {
    fs::remove(folder / "train2017/c.jpg");
    CHECK_THAT(error_of([&] { open_dataset(config_of(folder), "train"); }), Catch::Contains("c.jpg is missing"));
    write_jpeg(folder / "train2017/a.jpg", {6, 8, 3, std::vector<uint8_t>(144, 90), 8});
    CHECK_THAT(error_of([&] { train.decode(0); }),
               Catch::Contains("a.jpg") && Catch::Contains("6 x 8") && Catch::Contains("60 x 80"));
    CHECK_THAT(error_of([&] { open_dataset(config_of(folder), "val"); }), Catch::Contains("instances_val2017.json"));
    CHECK_THAT(error_of([&] { open_dataset(config_of(folder), "trainval"); }), Catch::Contains("'trainval'"));
  }
}

TEST_CASE("damaged COCO annotations are named", "[io][coco]") {
  TemporaryFolder folder;
  const std::string path = folder / "instances.json";
  const auto message = [&](const std::string& text) {
    write_text(path, text);
    return error_of([&] {
      const CocoAnnotations annotations(path, {1, 72});
      for (size_t i = 0; i < annotations.images().size(); ++i) annotations.rasterize(i);
    });
  };
  const auto with = [](const std::string& annotation) {
    return "{" + std::string(kImages) + ", \"annotations\": [{\"id\": 7, " + annotation + "}]}";
  };
  CHECK(message(annotations_text()) == "(no error)");
  CHECK_THAT(message(""), Catch::Contains("instances.json: damaged JSON"));
  CHECK_THAT(message("[]"), Catch::Contains("holds no images"));
  CHECK_THAT(message(annotations_text().substr(0, 300)), Catch::Contains("damaged JSON at byte"));
  CHECK_THAT(message(with(R"("image_id": 11, "category_id": 1, "segmentation": [])")),
             Catch::Contains("annotation 7: there is no image 11"));
  CHECK_THAT(message(with(R"("category_id": 1, "segmentation": [])")), Catch::Contains("annotation 7: image_id"));
  CHECK_THAT(message(with(R"("image_id": 10, "category_id": 1, "segmentation": [[1, 2, 3, 4]])")),
             Catch::Contains("annotation 7: a polygon has 4 coordinates"));
  CHECK_THAT(message(with(R"("image_id": 10, "category_id": 1, "segmentation": [[1, 2, 3, 4, 1e30, 6]])")),
             Catch::Contains("coordinate is 1e+30"));
  CHECK_THAT(message(with(R"("image_id": 10, "category_id": 1, "segmentation": {"counts": [5], "size": [60, 80]})")),
             Catch::Contains("annotation 7: its run lengths sum up to 5 of 60 x 80"));
  CHECK_THAT(message(with(R"("image_id": 10, "category_id": 1, "segmentation": {"counts": "?2P", "size": [60, 80]})")),
             Catch::Contains("annotation 7: its packed run lengths are cut off"));
  CHECK_THAT(message(with(R"("image_id": 10, "category_id": 1, "segmentation": {"counts": [4800], "size": [80, 60]})")),
             Catch::Contains("80 x 60"));
  CHECK_THAT(message(R"({"images": [{"id": 1, "file_name": "x", "height": 0, "width": 5}]})"),
             Catch::Contains("image 1 has the size 0 x 5"));
  CHECK_THAT(message(R"({"images": [{"id": 1.5, "file_name": "x", "height": 1, "width": 5}]})"),
             Catch::Contains("id is 1.5"));
}
