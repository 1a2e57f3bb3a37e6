#include "io/augment.h"

#include <catch2/catch.hpp>
#include <cmath>

#include "io/resize.h"

using namespace convoy;

namespace {

/// Pixel and label both encode the position, so that a test sees where each came from.
Sample gradient_sample(int64_t height, int64_t width) {
  Sample sample{{height, width, 3, {}, 8}, {height, width, {}}, "gradient"};
  for (int64_t y = 0; y < height; ++y) {
    for (int64_t x = 0; x < width; ++x) {
      sample.image.data.insert(sample.image.data.end(),
                               {static_cast<uint8_t>(1 + 2 * x), static_cast<uint8_t>(1 + 2 * y), 200});
      sample.labels.data.push_back(static_cast<int32_t>(y * width + x));
    }
  }
  return sample;
}

}  // namespace

TEST_CASE("resizing keeps constants, identity and windows", "[io][augment]") {
  const Sample sample = gradient_sample(30, 40);
  CHECK(resize_bilinear(sample.image, 30, 40).data == sample.image.data);
  CHECK(resize_nearest(sample.labels, 30, 40).data == sample.labels.data);
  for (const auto& [height, width] : std::vector<std::pair<int64_t, int64_t>>{{13, 9}, {61, 97}, {30, 17}, {1, 1}}) {
    const Image whole = resize_bilinear(sample.image, height, width);
    for (int64_t i = 0; i < height * width; ++i) CHECK(whole.data[static_cast<size_t>(3 * i + 2)] == 200);
    const Window window{height / 3, width / 4, (height + 1) / 2, (width + 1) / 2};
    const Image part = resize_bilinear(sample.image, height, width, window);
    const LabelMap labels = resize_nearest(sample.labels, height, width);
    const LabelMap label_part = resize_nearest(sample.labels, height, width, window);
    for (int64_t y = 0; y < window.height; ++y) {
      for (int64_t x = 0; x < window.width; ++x) {
        REQUIRE(part.pixel(y, x)[0] == whole.pixel(window.y + y, window.x + x)[0]);
        REQUIRE(label_part.at(y, x) == labels.at(window.y + y, window.x + x));
      }
    }
  }
}

TEST_CASE("bilinear resizing has the triangle filter's values", "[io][augment]") {
  const Image row{1, 4, 1, {0, 100, 200, 40}, 8};
  // Up by two: centres at -0.25, 0.25, 0.75, ... with weights 3/4 and 1/4, the edges repeated.
  CHECK(resize_bilinear(row, 1, 8).data == std::vector<uint8_t>{0, 25, 75, 125, 175, 160, 80, 40});
  // Down by two: weights 1/8, 3/8, 3/8, 1/8, renormalised at the edges to 3/7, 3/7, 1/7.
  CHECK(resize_bilinear(row, 1, 2).data == std::vector<uint8_t>{71, 117});
}

TEST_CASE("train augmentation has the crop's size for every shape", "[io][augment]") {
  AugmentOptions options;
  options.base_size = 40;
  for (const auto& [height, width] : std::vector<std::pair<int64_t, int64_t>>{{30, 40}, {80, 20}, {7, 90}, {1, 1}}) {
    const Sample sample = gradient_sample(height, width);
    for (const SizeHW crop : {SizeHW{32, 64}, SizeHW{64, 16}, SizeHW{100, 100}}) {
      options.crop = crop;
      for (uint64_t index = 0; index < 40; ++index) {
        RandomStream random(3, "augment", index);
        const Sample out = augment_train(sample, options, random);
        REQUIRE(out.image.height == crop.height);
        REQUIRE(out.image.width == crop.width);
        REQUIRE(out.labels.data.size() == static_cast<size_t>(crop.height * crop.width));
        // Padding is ignore and black, and only right of or below the image.
        REQUIRE(out.labels.at(0, 0) != kIgnoreLabel);
        for (int64_t i = 0; i < crop.height * crop.width; ++i) {
          const bool padded = out.labels.data[static_cast<size_t>(i)] == kIgnoreLabel;
          REQUIRE(padded == (out.image.data[static_cast<size_t>(3 * i + 2)] == 0));
        }
      }
    }
  }
}

TEST_CASE("the same stream gives the same augmentation, another one another", "[io][augment]") {
  const Sample sample = gradient_sample(60, 90);
  AugmentOptions options{{32, 32}, 50, true, 0.5, 0, {.4, .4, .4, .1}};
  const auto run = [&](uint64_t seed, uint64_t index) {
    RandomStream random(seed, "augment", index);
    return augment_train(sample, options, random).image.data;
  };
  CHECK(run(1, 2) == run(1, 2));
  CHECK(run(1, 2) != run(1, 3));
  CHECK(run(1, 2) != run(2, 2));
}

TEST_CASE("scale and mirror are drawn from their full ranges", "[io][augment]") {
  const Sample sample = gradient_sample(50, 50);
  AugmentOptions options{{200, 200}, 50, true, 0, 0, {}};
  int64_t smallest = 1000, largest = 0, mirrored = 0;
  for (uint64_t index = 0; index < 1000; ++index) {
    RandomStream random(1, "augment", index);
    const Sample out = augment_train(sample, options, random);
    int64_t side = 0;
    while (side < 200 && out.labels.at(0, side) != kIgnoreLabel) ++side;
    smallest = std::min(smallest, side);
    largest = std::max(largest, side);
    mirrored += out.labels.at(0, 0) > out.labels.at(0, side - 1);
  }
  CHECK(smallest == 25);
  CHECK(largest == 100);
  CHECK(mirrored > 430);
  CHECK(mirrored < 570);
}

TEST_CASE("val fills outside the image with ignore", "[io][augment]") {
  const Sample wide = augment_val(gradient_sample(20, 30), {20, 50});
  CHECK(wide.labels.at(0, 9) == kIgnoreLabel);
  CHECK(wide.labels.at(0, 10) == 0);
  CHECK(wide.labels.at(19, 39) == 20 * 30 - 1);
  CHECK(wide.labels.at(19, 40) == kIgnoreLabel);
  CHECK(wide.image.pixel(0, 0)[2] == 0);
  const Sample centre = augment_val(gradient_sample(20, 30), {20, 20});
  CHECK(centre.labels.at(0, 0) == 5);
}

TEST_CASE("normalised planes are (x/255 - mean)/std", "[io][augment]") {
  const Image image{1, 2, 3, {0, 128, 255, 51, 102, 204}, 8};
  std::vector<float> out(6);
  normalize_image(image, {{.5, .25, .1}, {.5, .25, .2}}, out.data());
  CHECK(out[0] == Approx(-1));
  CHECK(out[1] == Approx((.2 - .5) / .5));
  CHECK(out[3] == Approx((.4 - .25) / .25));
  CHECK(out[4] == Approx((1.0 - .1) / .2));
}

TEST_CASE("blur keeps the mean and spreads an edge", "[io][augment]") {
  Image image{1, 21, 3, std::vector<uint8_t>(63, 0), 8};
  for (size_t i = 33; i < 63; ++i) image.data[i] = 240;
  gaussian_blur(image, 1.0);
  CHECK(image.pixel(0, 0)[0] == 0);
  CHECK(image.pixel(0, 20)[0] == 240);
  // The Gaussian's integral half a pixel from the edge, sampled at the pixel centres: (1 - g0) / 2 with g0 = 0.3991.
  CHECK(std::abs(image.pixel(0, 10)[0] - 72) <= 1);
  CHECK(image.pixel(0, 10)[0] + image.pixel(0, 11)[0] == 240);
}

TEST_CASE("colour jitter stays inside its bounds", "[io][augment]") {
  const Image original{1, 2, 3, {100, 100, 100, 200, 50, 25}, 8};
  for (uint64_t index = 0; index < 200; ++index) {
    RandomStream random(1, "jitter", index);
    Image image = original;
    jitter_colors(image, {.2, 0, 0, 0}, random);
    REQUIRE(image.data[0] >= 80);
    REQUIRE(image.data[0] <= 120);
    Image hue = original;
    jitter_colors(hue, {0, 0, 0, .5}, random);
    REQUIRE(hue.data[0] == 100);  // gray has no hue
    REQUIRE(std::max({hue.data[3], hue.data[4], hue.data[5]}) == 200);
    REQUIRE(std::min({hue.data[3], hue.data[4], hue.data[5]}) == 25);
  }
}
