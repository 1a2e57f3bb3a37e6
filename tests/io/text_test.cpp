// Text files of data sets in other encodings, and what is no regular file in the place of one.
#include <sys/stat.h>
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "io/color_masks.h"
#include "io/dataset.h"
#include "io/dataset_parts.h"
#include "io/doctor.h"
#include "io/file.h"
#include "io/json_text.h"
#include "io/metrics_file.h"
#include "tests/io/scenes.h"

using namespace convoy;
using convoy::testing::error_of;
using convoy::testing::TemporaryFolder;
using convoy::testing::write_folder_dataset;
using convoy::testing::write_text;

namespace {

void put_pipe(const std::string& path) {
  std::filesystem::remove(path);
  REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
}

}  // namespace

TEST_CASE("UTF-8 is told from what is not", "[io][text]") {
  for (const std::string text : {"", "sky", "h\xC3\xB6he", "\xE2\x82\xAC", "\xF0\x9F\x98\x80", "\xED\x9F\xBF"})
    CHECK(is_utf8(text));
  for (const std::string text : {"h\xF6he", "\xC3", "\xC0\xAF", "\xE0\x80\xAF", "\xED\xA0\x80", "\xF0\x8F\xBF\xBF",
                                 "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\x80", "a\xE2\x82"})
    CHECK_FALSE(is_utf8(text));
}

TEST_CASE("names that are not UTF-8 do not end JSON", "[io][text]") {
  CHECK(json_text(nlohmann::json{{"file", "a\xFF.png"}}) == "{\"file\":\"a\xEF\xBF\xBD.png\"}");
  TemporaryFolder folder;
  MetricsFile(folder / "metrics.jsonl").append({{"step", 1}, {"file", "a\xFF.png"}});
  CHECK(read_metrics(folder / "metrics.jsonl").size() == 1);
}

TEST_CASE("lists and class tables: marks, UTF-16, zeros, Latin-1, colours", "[io][text]") {
  TemporaryFolder folder;
  const std::string file = folder / "classes.txt";
  write_text(file, "\xEF\xBB\xBFsky\r\nroad\r\n");
  CHECK(read_lines(file) == std::vector<std::string>{"sky", "road"});
  CHECK(read_name_list(file)[0].name == "sky");
  CHECK(read_named_colors(file)[0].name == "sky");
  for (const std::string mark : {"\xFF\xFE", "\xFE\xFF"}) {
    write_text(file, mark + "s");
    CHECK_THAT(error_of([&] { read_name_list(file); }), Catch::Contains(file) && Catch::Contains("UTF-16"));
    CHECK_THAT(error_of([&] { read_named_colors(file); }), Catch::Contains(file) && Catch::Contains("UTF-16"));
  }
  write_text(file, std::string("a\nb\0c\n", 6));
  CHECK_THAT(error_of([&] { read_name_list(file); }), Catch::Contains(file + ":2: holds bytes of zero"));
  for (const std::string line : {"h\xF6he", "h\xF6he 1 2 3"}) {
    write_text(file, "sky\n" + line + "\n");
    CHECK_THAT(error_of([&] { read_named_colors(file); }), Catch::Contains(file + ":2: is not UTF-8"));
  }
  for (const std::string color : {"300 0 0", "-1 2 3", "0 0 256", "1 +2 3", "1 2 99999999999999999999"}) {
    write_text(file, "sky 1 2 3\na " + color + "\n");
    CHECK_THAT(error_of([&] { read_named_colors(file); }),
               Catch::Contains(file + ":2:") && Catch::Contains("0 to 255"));
  }
  write_text(file, "lane 2 left\nh\xC3\xB6he 1 2 3\n");
  CHECK(read_named_colors(file)[0].name == "lane 2 left");
  CHECK(read_named_colors(file)[1].color == Color{1, 2, 3});
}

TEST_CASE("pipes in the place of files are named, not waited for", "[io][text]") {
  TemporaryFolder folder;
  DatasetConfig config = write_folder_dataset(folder.path(), 3);
  const std::string pipe = folder / "pipe";
  put_pipe(pipe);
  CHECK_THAT(error_of([&] { read_name_list(pipe); }), Catch::Contains(pipe + ": is not a regular file"));
  CHECK_THAT(error_of([&] { read_named_colors(pipe); }), Catch::Contains(pipe + ": is not a regular file"));
  CHECK_THAT(error_of([&] { read_metrics(pipe); }), Catch::Contains(pipe + ": is not a regular file"));
  CHECK_FALSE(read_file_ends(pipe, 16));
  SECTION("a label file") {
    put_pipe(folder / "masks/train/001.png");
    const SegmentationDataset data = open_folder(config, "train");
    CHECK_THAT(error_of([&] { data.decode(1); }), Catch::Contains("001.png: is not a regular file"));
    CHECK(check_dataset(data).count(Severity::error) == 1);
  }
  SECTION("classes.txt") {
    put_pipe(folder / "classes.txt");
    CHECK_THAT(error_of([&] { open_folder(config, "train"); }), Catch::Contains("classes.txt: is not a regular file"));
  }
  SECTION("DATASET.MASK_COLORS") {
    config.mask_colors = "pipe";
    CHECK_THAT(error_of([&] { open_folder(config, "train"); }), Catch::Contains("pipe: is not a regular file"));
  }
}

TEST_CASE("label files without an image are noted", "[io][text]") {
  TemporaryFolder folder;
  const DatasetConfig config = write_folder_dataset(folder.path(), 5);
  for (const int index : {1, 3}) std::filesystem::remove(folder / fmt::format("images/train/{:03}.png", index));
  const DatasetReport report = check_dataset(open_folder(config, "train"));
  REQUIRE(report.findings.size() == 1);
  CHECK(report.findings[0].severity == Severity::warning);
  CHECK_THAT(report.findings[0].message, Catch::Contains("2 label files have no image") &&
                                             Catch::Contains("masks/train/001.png, ") &&
                                             Catch::EndsWith("masks/train/003.png"));
}

TEST_CASE("class weights that no training can use are refused", "[io][text]") {
  for (const std::string weights : {"[0, 0]", "[1, -1]", "[1, 1.0e+9]", "[.inf, 1]", "[.nan, 1]"})
    CHECK_THAT(error_of([&] {
                 load_config("", {"SOLVER.CLASS_WEIGHTS", weights});
               }),
               Catch::Contains("SOLVER.CLASS_WEIGHTS") && Catch::Contains("0 to 1e6"));
  CHECK(load_config("", {"SOLVER.CLASS_WEIGHTS", "[0, 1]"}).solver.class_weights.values.size() == 2);
}
