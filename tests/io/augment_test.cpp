#include "io/augment.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <set>
#include <string>

#include "io/resize.h"
#include "kernels/augment.h"
#include "kernels/augment_axis.h"

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

TEST_CASE("blur has the numbers of the reference's", "[io][augment]") {
  // Pillow's GaussianBlur(1) of this row, and of the same as a column.
  const std::vector<uint8_t> values = {0, 0, 0, 0, 200, 0, 0, 0, 40, 255};
  const std::vector<uint8_t> expected = {0, 1, 11, 47, 81, 47, 15, 26, 91, 176};
  Image row{1, 10, 1, values, 8}, column{10, 1, 1, values, 8};
  gaussian_blur(row, 1.0);
  gaussian_blur(column, 1.0);
  CHECK(row.data == expected);
  CHECK(column.data == expected);
  Image still{1, 10, 1, values, 8};
  gaussian_blur(still, 0.0);
  CHECK(still.data == values);
}

TEST_CASE("blur is a Gaussian of the given width", "[io][augment]") {
  for (const double sigma : {0.4, 0.8, 1.0, 2.5, 6.0}) {
    // An edge becomes the normal distribution's integral; the boxes differ from it by a few levels.
    constexpr int64_t kWidth = 101;
    Image image{3, kWidth, 3, std::vector<uint8_t>(3 * kWidth * 3, 0), 8};
    for (int64_t y = 0; y < 3; ++y)
      for (int64_t x = 51; x < kWidth; ++x) std::fill_n(image.pixel(y, x), 3, uint8_t{240});
    gaussian_blur(image, sigma);
    double sum = 0;
    for (int64_t x = 0; x < kWidth; ++x) {
      const double wanted = 120 * (1 + std::erf((static_cast<double>(x) - 50.5) / (sigma * std::sqrt(2.0))));
      CHECK(std::abs(image.pixel(1, x)[2] - wanted) < (sigma < 0.5 ? 18 : 10));
      CHECK(image.pixel(0, x)[0] == image.pixel(2, x)[1]);
      sum += image.pixel(1, x)[0];
    }
    CHECK(std::abs(sum - 240 * 50) < 100);
  }
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

TEST_CASE("colour jitter follows its formulas", "[io][augment]") {
  // One property at a time: the factor is bounded by what became of one value, then every other value has to fit.
  const Image original{2, 3, 3, {240, 10, 60, 90, 200, 30, 17, 17, 17, 255, 255, 255, 0, 0, 0, 120, 130, 140}, 8};
  const auto luma = [](const uint8_t* p) { return (19595 * p[0] + 38470 * p[1] + 7471 * p[2] + 0x8000) >> 16; };
  double mean = 0;
  for (int64_t i = 0; i < 6; ++i) mean += luma(original.data.data() + 3 * i) / 6.0;
  for (uint64_t index = 0; index < 50; ++index) {
    for (const int property : {0, 1, 2}) {
      ColorJitter jitter;
      (property == 0 ? jitter.brightness : property == 1 ? jitter.contrast : jitter.saturation) = .4;
      RandomStream random(1, "jitter", index);
      Image image = original;
      jitter_colors(image, jitter, random);
      double low = .6, high = 1.4;
      for (size_t i = 0; i < image.data.size(); ++i) {
        const double base = property == 0   ? 0
                            : property == 1 ? std::floor(mean + .5)
                                            : luma(original.data.data() + i / 3 * 3);
        const double span = original.data[i] - base;
        if (span == 0) {
          REQUIRE(image.data[i] == original.data[i]);
          continue;
        }
        double from = (image.data[i] - base) / span, to = (image.data[i] + 1 - base) / span;
        if (span < 0) std::swap(from, to);
        if (image.data[i] == 255) (span > 0 ? to : from) = span > 0 ? 9 : -9;  // clipped
        if (image.data[i] == 0) (span > 0 ? from : to) = span > 0 ? -9 : 9;
        low = std::max(low, from - 1e-4);
        high = std::min(high, to + 1e-4);
      }
      REQUIRE(low <= high);
    }
  }
}

TEST_CASE("the properties of colour jitter come in random order", "[io][augment]") {
  // Brightness then contrast differs from contrast then brightness: a mean of 0 or not.
  std::set<std::string> found;
  for (uint64_t index = 0; index < 40; ++index) {
    RandomStream random(1, "order", index);
    Image image{1, 2, 3, {200, 100, 50, 20, 40, 60}, 8};
    jitter_colors(image, {.5, .5, .5, .2}, random);
    found.emplace(image.data.begin(), image.data.end());
  }
  CHECK(found.size() == 40);
}

TEST_CASE("the augmentation kernel makes the pipeline's bytes", "[io][augment]") {
  RandomStream noise(3, "augmentation kernel", 0);
  Sample sample{{37, 53, 3, {}, 8}, {37, 53, {}}, "noise"};
  std::vector<uint8_t> labels;
  for (int64_t i = 0; i < 37 * 53; ++i) {
    for (int c = 0; c < 3; ++c) sample.image.data.push_back(static_cast<uint8_t>(noise.integer(0, 255)));
    labels.push_back(static_cast<uint8_t>(noise.integer(0, 255)));
    sample.labels.data.push_back(labels.back());
  }
  std::vector<int32_t> label_table(256);
  for (size_t v = 0; v < 256; ++v) label_table[v] = static_cast<int32_t>(v);
  const Normalization scaling{{.485, .456, .406}, {.229, .224, .225}};
  std::vector<float> normalized;
  for (size_t c = 0; c < 3; ++c)
    for (int v = 0; v < 256; ++v)
      normalized.push_back(static_cast<float>((v / 255.0 - scaling.mean[c]) / scaling.std_dev[c]));
  const ColorJitter jitter{.5, .5, .5, .4};
  for (uint64_t run = 0; run < 12; ++run) {
    INFO("run " << run);
    RandomStream random(7, "augmentation kernel", run), same = random;
    const bool mirrored = run % 2 == 1;
    const int64_t height = noise.integer(8, 90), width = noise.integer(8, 120);
    const Window window{noise.integer(0, height / 2), noise.integer(0, width / 2), height / 2, width / 2};

    Sample expected = sample;
    if (mirrored) mirror(expected);
    Image image = resize_bilinear(expected.image, height, width, window);
    const LabelMap nearest = resize_nearest(expected.labels, height, width, window);
    jitter_colors(image, jitter, random);
    std::vector<float> planes(image.data.size());
    normalize_image(image, scaling, planes.data());

    const AugmentTables rows = augment_tables(37, height, window.y, window.height),
                        columns = augment_tables(53, width, window.x, window.width);
    Augmentation a;
    a.rows = {37, 0, window.height, rows.taps, rows.first.data(), rows.weights.data(), rows.nearest.data()};
    a.columns = {
        53, 0, window.width, columns.taps, columns.first.data(), columns.weights.data(), columns.nearest.data()};
    a.mirrored = mirrored;
    a.normalized = normalized.data();
    a.label_table = label_table.data();
    // The draws of jitter_colors.
    std::array<int, 4> order = {0, 1, 2, 3};
    for (int64_t i = 3; i > 0; --i)
      std::swap(order[static_cast<size_t>(i)], order[static_cast<size_t>(same.integer(0, i))]);
    for (const int step : order) {
      const double amount = step == 3 ? 6 * same.uniform(-jitter.hue, jitter.hue) : same.uniform(.5, 1.5);
      a.step[static_cast<size_t>(a.steps++)] = {static_cast<ColorStep::Kind>(step), amount};
    }
    const int64_t pixels = window.height * window.width, block = cpu::channel_block();
    std::vector<float> blocked(static_cast<size_t>(pixels * block));
    std::vector<int32_t> out_labels(static_cast<size_t>(pixels));
    int64_t luma = 0;
    const View out{.data = blocked.data(),
                   .layout = Layout::kBlocked,
                   .n = 1,
                   .c = 3,
                   .h = window.height,
                   .w = window.width,
                   .pitch = block,
                   .block = block};
    CONVOY_CPU(augment, sample.image.data.data(), labels.data(), a, out, out_labels.data(), &luma);
    int64_t different = 0;
    for (int64_t p = 0; p < pixels; ++p)
      for (int64_t c = 0; c < 3; ++c)
        different += blocked[static_cast<size_t>(p * block + c)] != planes[static_cast<size_t>(c * pixels + p)];
    CHECK(different == 0);
    CHECK(out_labels == nearest.data);
  }
}
