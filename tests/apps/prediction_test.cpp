// Scores of several scales, of mirrored images, of padded ones and of tiles, against the same put together by hand.
#include <cmath>
#include <limits>

#include "apps/tiles.h"
#include "fixture.h"
#include "io/resize.h"

using namespace convoy;
using Catch::Contains;

namespace {

constexpr int64_t kClasses = 3;

/// A network of one convolution, without bias. `kernel` 1 sees only the pixel; 3 its neighbours; `pooled`: the whole
/// image's mean beside the convolution, so that what is predicted depends on where an image is cut. Notes the sizes
/// that it is asked for.
class OneConv : public Network {
 public:
  OneConv(ParamStore& store, int64_t kernel, int64_t multiple = 1, bool pooled = false)
      : conv_(Scope{store, ""} / "conv", 3, kClasses, ConvOptions::square(kernel)),
        multiple_(multiple),
        pooled_(pooled) {
    store.allocate();
    store.initialize(7);
    for (int64_t i = 0; i < store.parameters()[0].shape.count(); ++i) store.value(0)[i] *= 4;
  }
  std::vector<NamedValue> forward(Builder& b, Value image) const override {
    sizes.push_back({image.shape()[2], image.shape()[3]});
    Value y = conv_(b, image);
    if (pooled_) y = add(y, resize_bilinear(scale(global_avg_pool(y), 5), image.shape()[2], image.shape()[3]));
    return {{"out0", y}};
  }
  bool accepts_extent(int64_t extent) const override { return extent > 0 && extent % multiple_ == 0; }

  mutable std::vector<std::pair<int64_t, int64_t>> sizes;

 private:
  Conv2d conv_;
  int64_t multiple_;
  bool pooled_;
};

struct Setup {
  explicit Setup(int64_t kernel, int64_t multiple = 1, bool pooled = false)
      : network(store, kernel, multiple, pooled) {}
  Predictor predictor(const PredictionOptions& options) { return {context, store, network, {}, options}; }
  std::vector<float> scores(const Image& image, const PredictionOptions& options) {
    return predictor(options).scores(image);
  }
  /// Logits of the image as it is.
  std::vector<float> logits(const Image& image) { return scores(image, {.legacy = true}); }

  Context context{{.threads = 1}};
  ParamStore store;
  OneConv network;
};

Image noise(int64_t height, int64_t width, uint32_t seed = 1) {
  Image image{height, width, 3, std::vector<uint8_t>(static_cast<size_t>(height * width * 3))};
  for (uint8_t& value : image.data) value = static_cast<uint8_t>((seed = seed * 1664525 + 1013904223) >> 24);
  return image;
}

Image mirror_image(const Image& image) {
  Image result = image;
  for (int64_t y = 0; y < image.height; ++y)
    for (int64_t x = 0; x < image.width; ++x) std::copy_n(image.pixel(y, image.width - 1 - x), 3, result.pixel(y, x));
  return result;
}

std::vector<float> mirror_scores(const std::vector<float>& scores, int64_t width) {
  std::vector<float> result(scores.size());
  for (size_t i = 0; i < scores.size(); ++i) {
    const size_t w = static_cast<size_t>(width), row = i / w * w;
    result[row + w - 1 - (i - row)] = scores[i];
  }
  return result;
}

/// Planes (H,W) to (OH,OW), in double, written from the definition.
std::vector<float> resized(const std::vector<float>& planes, int64_t h, int64_t w, int64_t oh, int64_t ow, bool align) {
  const auto at = [&](int64_t o, int64_t in, int64_t out) {
    const double position = align ? (out == 1 ? 0.0 : double(o) * double(in - 1) / double(out - 1))
                                  : (double(o) + .5) * double(in) / double(out) - .5;
    return std::clamp(position, 0.0, double(in - 1));
  };
  std::vector<float> result;
  for (size_t plane = 0; plane * size_t(h * w) < planes.size(); ++plane)
    for (int64_t y = 0; y < oh; ++y)
      for (int64_t x = 0; x < ow; ++x) {
        const double v = at(y, h, oh), u = at(x, w, ow);
        double sum = 0;
        for (int64_t j = 0; j < h; ++j)
          for (int64_t i = 0; i < w; ++i)
            sum += std::max(0.0, 1 - std::abs(v - double(j))) * std::max(0.0, 1 - std::abs(u - double(i))) *
                   planes[plane * size_t(h * w) + size_t(j * w + i)];
        result.push_back(float(sum));
      }
  return result;
}

std::vector<float> softmax(std::vector<float> scores) {
  const size_t pixels = scores.size() / kClasses;
  for (size_t p = 0; p < pixels; ++p) {
    double total = 0;
    for (size_t c = 0; c < kClasses; ++c) total += std::exp(double(scores[c * pixels + p]));
    for (size_t c = 0; c < kClasses; ++c)
      scores[c * pixels + p] = float(std::exp(double(scores[c * pixels + p])) / total);
  }
  return scores;
}

double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return std::numeric_limits<double>::infinity();
  double most = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double difference = std::abs(double(a[i]) - double(b[i]));
    most = difference <= most ? most : difference;  // NaN counts
  }
  return most;
}

}  // namespace

TEST_CASE("scales and mirroring equal a composition by hand") {
  Setup setup(3, 4);
  const Image image = noise(10, 14);
  std::vector<float> expected(kClasses * 10 * 14);
  // 14 * 0.5 = 7, 10 * 7 / 14 = 5; 14 * 1.7 = 23.8 -> 24, 10 * 24 / 14 = 17.14 -> 17
  for (const auto& [height, width] : {std::pair<int64_t, int64_t>{5, 7}, {10, 14}, {17, 24}}) {
    const Image part = resize_bilinear(image, height, width);
    for (const bool flip : {false, true}) {
      std::vector<float> logits = setup.logits(flip ? mirror_image(part) : part);
      if (flip) logits = mirror_scores(logits, width);
      const auto scores = softmax(resized(logits, height, width, 10, 14, false));
      for (size_t i = 0; i < expected.size(); ++i) expected[i] += scores[i] / 6;
    }
  }
  const PredictionOptions options{.scales = {0.5, 1, 1.7}, .flip = true};
  const auto scores = setup.scores(image, options);
  CHECK(largest_difference(scores, expected) < 1e-5);
  CHECK(largest_difference(scores, setup.scores(image, {.scales = {0.5, 1, 1.7}})) > 0.01);
  CHECK(largest_difference(scores, setup.scores(image, {.scales = {0.5, 1}, .flip = true})) > 0.01);

  const LabelMap labels = setup.predictor(options).predict(image);
  for (size_t p = 0; p < labels.data.size(); ++p)
    for (size_t c = 0; c < kClasses; ++c)
      CHECK(scores[c * labels.data.size() + p] <= scores[size_t(labels.data[p]) * labels.data.size() + p]);
}

TEST_CASE("the legacy rules add up logits and resize with aligned corners") {
  Setup setup(3, 4);
  const Image image = noise(10, 14);
  const int64_t height = 15, width = 21;
  std::vector<float> pixels(3 * 10 * 14);
  normalize_image(image, {}, pixels.data());
  const auto large = resized(pixels, 10, 14, height, width, true);
  // The network by hand: padding of zeros, three by three.
  const float* weights = setup.store.value(0);
  std::vector<float> logits;
  for (int64_t k = 0; k < kClasses; ++k)
    for (int64_t y = 0; y < height; ++y)
      for (int64_t x = 0; x < width; ++x) {
        double sum = 0;
        for (int64_t c = 0; c < 3; ++c)
          for (int64_t j = -1; j <= 1; ++j)
            for (int64_t i = -1; i <= 1; ++i)
              if (y + j >= 0 && y + j < height && x + i >= 0 && x + i < width)
                sum += double(weights[((k * 3 + c) * 3 + j + 1) * 3 + i + 1]) *
                       double(large[size_t((c * height + y + j) * width + x + i)]);
        logits.push_back(float(sum));
      }
  auto expected = resized(logits, height, width, 10, 14, true);
  const auto plain = setup.logits(image);
  for (size_t i = 0; i < expected.size(); ++i) expected[i] += plain[i];
  CHECK(largest_difference(setup.scores(image, {.scales = {1, 1.5}, .legacy = true}), expected) < 1e-4);
}

TEST_CASE("the legacy rules find the image again in a mirrored input that is padded on the left") {
  Setup setup(3, 8);  // padding of zeros changes nothing for this network, but looking in the wrong place would
  const Image image = noise(10, 14);
  auto expected = mirror_scores(setup.logits(mirror_image(image)), 14);
  const auto plain = setup.logits(image);
  for (size_t i = 0; i < expected.size(); ++i) expected[i] += plain[i];
  const auto scores = setup.scores(image, {.flip = true, .crop_size = SizeHW{16, 40}, .legacy = true});
  CHECK(largest_difference(scores, expected) < 1e-5);
}

TEST_CASE("a symmetric image has symmetric scores when it is mirrored, too") {
  Setup setup(3, 8, true);  // 8: what is padded lies on one side only
  Image image = noise(12, 20);
  for (int64_t y = 0; y < 12; ++y)
    for (int64_t x = 0; x < 10; ++x) std::copy_n(image.pixel(y, x), 3, image.pixel(y, 19 - x));
  const auto asymmetry = [&](const PredictionOptions& options) {
    const auto scores = setup.scores(image, options);
    return largest_difference(scores, mirror_scores(scores, 20));
  };
  CHECK(asymmetry({}) > 0.01);
  CHECK(asymmetry({.flip = true}) < 1e-6);
  CHECK(asymmetry({.scales = {0.5, 1, 1.3}, .flip = true, .crop_size = SizeHW{24, 32}}) < 1e-5);
}

TEST_CASE("images are padded to the crop size, each axis on its own") {
  const Image image = noise(10, 20);
  const PredictionOptions padded{.scales = {1, 1.5}, .crop_size = SizeHW{16, 40}};
  using Sizes = std::vector<std::pair<int64_t, int64_t>>;
  SECTION("sizes") {
    Setup setup(1);
    setup.scores(image, padded);
    CHECK(setup.network.sizes == Sizes{{16, 40}, {24, 60}});
    setup.network.sizes.clear();
    PredictionOptions legacy = padded;  // 6 rows are missing, and go to the columns; 20 columns go to the rows
    legacy.legacy = true;
    setup.scores(image, legacy);
    CHECK(setup.network.sizes == Sizes{{30, 26}, {45, 39}});
  }
  SECTION("a network that sees a pixel alone does not notice") {
    Setup setup(1);
    CHECK(largest_difference(setup.scores(image, padded), setup.scores(image, {.scales = {1, 1.5}})) < 1e-6);
  }
  SECTION("one that sees the whole image does") {
    Setup setup(1, 1, true);
    CHECK(largest_difference(setup.scores(image, padded), setup.scores(image, {.scales = {1, 1.5}})) > 0.001);
  }
}

TEST_CASE("tiles cover an axis, overlap as they should, and their weights add up to 1") {
  for (const int64_t extent : {1, 7, 32, 33, 63, 64, 65, 1000})
    for (const int64_t tile : {1, 5, 32, 64})
      for (const double overlap : {0.0, 0.25, 0.5, 0.9}) {
        CAPTURE(extent, tile, overlap);
        const AxisTiles axis = cut_axis(extent, tile, overlap);
        REQUIRE(axis.starts.size() == axis.weights.size());
        CHECK(axis.tile == std::min(extent, tile));
        CHECK(axis.starts.front() == 0);
        CHECK(axis.starts.back() + axis.tile == extent);
        std::vector<double> total(static_cast<size_t>(extent));
        double least = 1;
        for (size_t i = 0; i < axis.starts.size(); ++i) {
          if (i > 0) CHECK(axis.starts[i] <= axis.starts[i - 1] + axis.tile - int64_t(double(axis.tile) * overlap));
          if (i > 0) CHECK(axis.starts[i] > axis.starts[i - 1]);
          for (int64_t p = 0; p < axis.tile; ++p) {
            total[size_t(axis.starts[i] + p)] += axis.weights[i][size_t(p)];
            least = std::min(least, double(axis.weights[i][size_t(p)]));
          }
        }
        CHECK(least > 0);
        for (const double sum : total) CHECK(std::abs(sum - 1) < 1e-5);
      }
}

TEST_CASE("an image larger than the crop is predicted in tiles without seams") {
  const Image image = noise(50, 90);
  SECTION("a network that sees a pixel alone does not notice") {
    Setup setup(1);
    const PredictionOptions tiled{.crop_size = SizeHW{16, 24}};
    CHECK(largest_difference(setup.scores(image, tiled), setup.scores(image, {})) < 1e-6);
    CHECK(setup.predictor(tiled).predict(image).data == setup.predictor({}).predict(image).data);
    setup.network.sizes.clear();
    setup.scores(image, tiled);
    CHECK(setup.network.sizes == std::vector<std::pair<int64_t, int64_t>>{{16, 24}});
  }
  SECTION("only the axis that is too long is cut") {
    Setup setup(1);
    setup.scores(image, {.scales = {2}, .crop_size = SizeHW{60, 40}});
    CHECK(setup.network.sizes == std::vector<std::pair<int64_t, int64_t>>{{120, 80}});
  }
  SECTION("where tiles disagree the scores go over from one to the other") {
    Setup setup(1, 1, true);
    Image ramp{30, 90, 3, std::vector<uint8_t>(30 * 90 * 3)};
    for (int64_t y = 0; y < 30; ++y)
      for (int64_t x = 0; x < 90; ++x) std::fill_n(ramp.pixel(y, x), 3, static_cast<uint8_t>(x * 2));
    const auto steepest = [&](double overlap) {
      const auto scores = setup.scores(ramp, {.crop_size = SizeHW{30, 30}, .tile_overlap = overlap});
      double most = 0;
      for (size_t i = 1; i < scores.size(); ++i)
        if (i % 90) most = std::max(most, double(std::abs(scores[i] - scores[i - 1])));
      return most;
    };
    const double seam = steepest(0);
    CHECK(seam > 0.05);
    CHECK(steepest(0.5) < seam / 4);
  }
}

TEST_CASE("very long images are predicted, whole and in tiles") {
  Context context({.threads = 1});
  ParamStore store;
  const auto network = make_network({.name = "FastSCNN", .classes = 4}, store);
  store.initialize(1);
  for (const auto& [height, width] : {std::pair<int64_t, int64_t>{20000, 10}, {10, 20000}})
    for (const auto& crop : {std::optional<SizeHW>(), std::optional<SizeHW>({512, 512})}) {
      Predictor predictor(context, store, *network, {}, {.crop_size = crop});
      const LabelMap labels = predictor.predict(noise(height, width));
      CHECK((labels.height == height && labels.width == width));
      CHECK(std::all_of(labels.data.begin(), labels.data.end(), [](int32_t l) { return l >= 0 && l < 4; }));
    }
}

TEST_CASE("scores of augmented predictions do not depend on ranks and batches") {
  const TinyRun tiny;
  const Config config = tiny.config({"TEST.SCALES", "[0.5, 1.25]", "TEST.FLIP", "True", "TEST.CROP_SIZE", "(64, 96)"});
  const auto evaluate_on = [&](int ranks, int64_t batch) {
    std::vector<SegmentationScores> scores(static_cast<size_t>(ranks));
    const auto errors = on_ranks(ranks, [&](const std::shared_ptr<Communicator>& communicator) {
      Context context({.threads = 1}, communicator);
      ParamStore store;
      const auto network = make_network({.name = "FastSCNN", .classes = 19}, store);
      store.initialize(2);
      Predictor predictor(context, store, *network, normalization(config), prediction_options(config));
      CHECK(predictor.options().passes() == 4);
      scores[static_cast<size_t>(communicator->rank())] = *evaluate_dataset(
          predictor, open_dataset(config, "train"), {.batch_size = batch, .communicator = communicator.get()});
    });
    for (const std::string& error : errors) CHECK(error == "");
    for (const auto& other : scores) CHECK(other.confusion == scores[0].confusion);
    return scores[0];
  };
  const SegmentationScores one = evaluate_on(1, 1);
  CHECK(one.images == 8);
  CHECK(one.confusion == evaluate_on(2, 1).confusion);
  CHECK(one.confusion == evaluate_on(3, 2).confusion);
}

TEST_CASE("predictions that cannot be made are refused by the key at fault") {
  Setup setup(3, 32);
  const Image image = noise(100, 80);
  const auto error = [&](const PredictionOptions& options) {
    return error_of([&] { setup.predictor(options).predict(image); });
  };
  CHECK_THAT(error({.scales = {}}), Contains("TEST.SCALES"));
  for (const double scale : {0.0, -1.0, std::nan(""), std::numeric_limits<double>::infinity()})
    CHECK_THAT(error({.scales = {1, scale}}), Contains("TEST.SCALES"));
  CHECK_THAT(error({.scales = {1e300}}), Contains("TEST.SCALES") && Contains("100x80"));
  CHECK_THAT(error({.scales = {1000}}), Contains("TEST.SCALES") && Contains("100000x80000"));
  CHECK_THAT(error({.crop_size = SizeHW{64, 31}}), Contains("TEST.CROP_SIZE") && Contains("(32, 32)"));
  CHECK_THAT(error({.tile_overlap = 1}), Contains("TEST.TILE_OVERLAP"));
  CHECK(error({.scales = {0.001}}) == "");  // of one pixel

  Setup wide(1);  // terabytes
  const std::vector<Image> batch(60, Image{1, 1, 3, {1, 2, 3}});
  const std::string message = error_of([&] {
    wide.predictor({.crop_size = SizeHW{131072, 131072}}).predict(std::span<const Image>(batch));
  });
  CHECK_THAT(message, Contains("GiB") && Contains("TEST.CROP_SIZE"));
}
