#include "io/image.h"

#include <catch2/catch.hpp>
#include <filesystem>

#include "engine/error.h"
#include "engine/rng.h"
#include "tests/io/support.h"

using namespace convoy;
using convoy::testing::error_of;
using convoy::testing::TemporaryFolder;

namespace {

Image noise_image(int64_t height, int64_t width, int64_t channels) {
  Image image{height, width, channels, {}, 8};
  RandomStream random(1, "image", 0);
  for (int64_t i = 0; i < height * width * channels; ++i)
    image.data.push_back(static_cast<uint8_t>(random.next_word()));
  return image;
}

LabelMap ramp_labels(int64_t height, int64_t width, int32_t modulus) {
  LabelMap labels{height, width, {}};
  for (int64_t i = 0; i < height * width; ++i) labels.data.push_back(static_cast<int32_t>(i * 37 % modulus));
  return labels;
}

}  // namespace

TEST_CASE("PNG images and labels survive a round trip", "[io][image]") {
  TemporaryFolder folder;
  const Image rgb = noise_image(13, 17, 3);
  write_png(folder / "rgb.png", rgb);
  CHECK(read_image_rgb(folder / "rgb.png").data == rgb.data);

  const Image gray = noise_image(5, 9, 1);
  write_png(folder / "gray.png", gray);
  const Image repeated = read_image_rgb(folder / "gray.png");
  CHECK(repeated.channels == 3);
  CHECK(repeated.pixel(4, 8)[0] == gray.pixel(4, 8)[0]);
  CHECK(repeated.pixel(4, 8)[2] == gray.pixel(4, 8)[0]);

  for (const int depth : {8, 16}) {
    const LabelMap labels = ramp_labels(11, 7, depth == 8 ? 256 : 60000);
    write_png_gray(folder / "labels.png", labels, depth);
    CHECK(read_label_map(folder / "labels.png").data == labels.data);
    CHECK(read_image_header(folder / "labels.png").bit_depth == depth);
  }

  const std::vector<Color> palette = {{0, 0, 0}, {128, 64, 128}, {250, 170, 30}};
  const LabelMap labels = ramp_labels(6, 6, 3);
  write_png_palette(folder / "palette.png", labels, palette);
  CHECK(read_label_map(folder / "palette.png").data == labels.data);
  const Image colors = read_image_rgb(folder / "palette.png");
  for (int64_t x = 0; x < 6; ++x) {
    const Color expected = palette[static_cast<size_t>(labels.at(2, x))];
    CHECK(Color{colors.pixel(2, x)[0], colors.pixel(2, x)[1], colors.pixel(2, x)[2]} == expected);
  }
}

TEST_CASE("the format is found by content, not by name", "[io][image]") {
  TemporaryFolder folder;
  Image flat{16, 24, 3, std::vector<uint8_t>(16 * 24 * 3, 90), 8};
  write_jpeg(folder / "picture.png", flat);
  const Image decoded = read_image_rgb(folder / "picture.png");
  CHECK(decoded.height == 16);
  CHECK(decoded.width == 24);
  CHECK(std::abs(decoded.pixel(8, 8)[1] - 90) <= 2);
  CHECK(read_image_header(folder / "picture.png").format == ImageFormat::jpeg);
  CHECK_THAT(error_of([&] { read_label_map(folder / "picture.png"); }),
             Catch::Contains("picture.png") && Catch::Contains("index PNG"));
}

TEST_CASE("a colour mask is refused as label", "[io][image]") {
  TemporaryFolder folder;
  write_png(folder / "mask.png", noise_image(4, 4, 3));
  CHECK_THAT(error_of([&] { read_label_map(folder / "mask.png"); }),
             Catch::Contains("mask.png") && Catch::Contains("colour mask; needs an index PNG"));
}

TEST_CASE("a label that does not fit is refused with its pixel", "[io][image]") {
  TemporaryFolder folder;
  LabelMap labels = ramp_labels(4, 5, 3);
  labels.at(2, 3) = -1;
  CHECK_THAT(error_of([&] { write_png_gray(folder / "labels.png", labels); }),
             Catch::Contains("-1") && Catch::Contains("(3, 2)"));
  CHECK_FALSE(std::filesystem::exists(folder / "labels.png"));
}

TEST_CASE("damaged files are errors that name the file", "[io][image]") {
  TemporaryFolder folder;
  write_png(folder / "whole.png", noise_image(32, 32, 3));
  write_jpeg(folder / "whole.jpg", noise_image(32, 32, 3));
  for (const std::string name : {"whole.png", "whole.jpg"}) {
    const std::vector<uint8_t> bytes = read_file_bytes(folder / name);
    for (size_t length = 0; length < bytes.size(); length += 1 + bytes.size() / 97) {
      const std::string message = error_of([&] { decode_image_rgb(std::span(bytes).first(length), "cut-" + name); });
      INFO("length " << length << " of " << bytes.size());
      CHECK_THAT(message, Catch::Contains("cut-" + name));
    }
  }
  CHECK_THAT(error_of([&] { read_image_rgb(folder / "absent.png"); }), Catch::Contains("absent.png"));
  CHECK_THAT(error_of([&] { read_image_rgb(folder.path()); }), Catch::Contains("not a regular file"));
  testing::write_text(folder / "text.png", "hello");
  CHECK_THAT(error_of([&] { read_image_rgb(folder / "text.png"); }), Catch::Contains("neither a PNG nor a JPEG"));
  testing::write_text(folder / "empty.jpg", "");
  CHECK_THAT(error_of([&] { read_image_rgb(folder / "empty.jpg"); }), Catch::Contains("empty"));
}

TEST_CASE("absurd dimensions are refused before memory is asked for", "[io][image]") {
  TemporaryFolder folder;
  write_jpeg(folder / "small.jpg", noise_image(16, 16, 3));
  std::vector<uint8_t> bytes = read_file_bytes(folder / "small.jpg");
  for (size_t i = 0; i + 9 < bytes.size(); ++i) {
    if (bytes[i] == 0xFF && bytes[i + 1] == 0xC0) {
      bytes[i + 5] = bytes[i + 7] = 0xFF;
      bytes[i + 6] = bytes[i + 8] = 0x00;
      break;
    }
  }
  CHECK_THAT(error_of([&] { decode_image_rgb(bytes, "huge.jpg"); }), Catch::Contains("65280 x 65280"));
}

TEST_CASE("random damage never crashes a decoder", "[io][image][fuzz]") {
  TemporaryFolder folder;
  write_png(folder / "a.png", noise_image(24, 24, 3));
  write_jpeg(folder / "b.jpg", noise_image(24, 24, 3));
  write_png_palette(folder / "c.png", ramp_labels(24, 24, 3), std::vector<Color>(3));
  RandomStream random(7, "damage", 0);
  for (const std::string name : {"a.png", "b.jpg", "c.png"}) {
    const std::vector<uint8_t> whole = read_file_bytes(folder / name);
    for (int round = 0; round < 400; ++round) {
      std::vector<uint8_t> bytes = whole;
      for (int k = 0; k < 3; ++k) {
        const auto at = static_cast<size_t>(random.integer(0, static_cast<int64_t>(bytes.size()) - 1));
        bytes[at] = static_cast<uint8_t>(random.next_word());
      }
      for (const bool labels : {false, true}) {
        try {
          if (labels) {
            decode_label_map(bytes, name);
          } else {
            decode_image_rgb(bytes, name);
          }
        } catch (const Error& error) {
          CHECK(std::string(error.what()).find(name) == 0);
        }
      }
    }
  }
}
