#include "apps/pictures.h"

#include "fixture.h"

using namespace convoy;
using Catch::Contains;

TEST_CASE("names of outputs never meet") {
  using Names = std::vector<std::string>;
  CHECK(output_names({"a/x.png", "b/x.png", "y.jpg"}) == Names{"a/x", "b/x", "y"});
  CHECK(output_names({"x.jpg", "x.png", "z.png"}) == Names{"x.jpg", "x.png", "z"});
  CHECK(output_names({"x.jpg", "x.jpg.png", "x.png"}) == Names{"x.jpg-2", "x.jpg", "x.png"});
  CHECK(output_names({"../../x.png", "/x.png", "a/../x.png"}) == Names{"x.png", "x.png-2", "x.png-3"});
}

TEST_CASE("predictions are written as index, palette and overlay") {
  const TinyRun tiny;
  const ClassTable classes{.names = {"road", "sky"}, .colors = {{{255, 0, 10}}, {{0, 200, 0}}}};
  const Image image{1, 3, 3, {100, 100, 100, 0, 0, 0, 200, 201, 202}};
  const LabelMap labels{1, 3, {0, 1, 1}};
  const PictureWriter writer(tiny / "out", classes, {.alpha = 0.25});
  const auto files = writer.write("below/one", image, labels);
  CHECK(files.at("index") == (tiny / "out/below/one_index.png").string());
  CHECK(read_label_map(files.at("index")).data == labels.data);
  CHECK(read_image_header(files.at("palette")).color == ColorKind::palette);
  CHECK(read_label_map(files.at("palette")).data == labels.data);
  CHECK(read_image_rgb(files.at("palette")).data == std::vector<uint8_t>{255, 0, 10, 0, 200, 0, 0, 200, 0});
  CHECK(read_image_rgb(files.at("overlay")).data == std::vector<uint8_t>{139, 75, 78, 0, 50, 0, 150, 201, 152});
  CHECK(PictureWriter(tiny / "few", classes, {.kinds = {"index"}}).write("one", image, labels).size() == 1);
  CHECK_FALSE(std::filesystem::exists(tiny / "few/one_overlay.png"));
  CHECK_THAT(error_of([&] { PictureWriter(tiny / "few", classes, {.kinds = {"heatmap"}}); }),
             Contains("heatmap") && Contains("overlay"));
}

TEST_CASE("outputs that are inputs, and names that are too long, are refused") {
  namespace fs = std::filesystem;
  const TinyRun tiny;
  const fs::path real = tiny / "pictures";
  fs::create_directories(real);
  fs::create_directory_symlink(real, tiny / "link");
  const PictureWriter writer(tiny / "link", {.names = {"a"}, .colors = {{1, 2, 3}}}, {.kinds = {"index"}});
  writer.require_apart({"a"}, {real / "a.png", real / "a_overlay.png"});
  for (const fs::path& input : {real / "a_index.png", tiny / "link/../pictures/a_index.png", real / "a_index.png.tmp"})
    CHECK_THAT(error_of([&] {
                 writer.require_apart({"b", "a"}, {real / "a.png", input});
               }),
               Contains("link/a_index.png") && Contains(input.string()));
  const std::string longest(255 - std::string("_index.png.tmp").size(), 'n');
  writer.prepare(longest);
  CHECK_THAT(error_of([&] { writer.prepare(longest + "n"); }), Contains("too long a name"));
}

TEST_CASE("classes beyond 256 are written with 16 bits") {
  const TinyRun tiny;
  const ClassTable classes{.names = std::vector<std::string>(300, "class"), .colors = std::vector<Color>(300)};
  const auto files = PictureWriter(tiny / "out", classes, {}).write("one", {1, 1, 3, {1, 2, 3}}, {1, 1, {299}});
  CHECK(read_image_header(files.at("index")).bit_depth == 16);
  CHECK(read_label_map(files.at("index")).data == std::vector<int32_t>{299});
  CHECK(read_image_header(files.at("palette")).color == ColorKind::rgb);
}
