// Fresh networks against one fresh draw of the reference: names, shapes and distribution of every parameter.
#include <catch2/catch.hpp>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "nets/network.h"

namespace convoy {

namespace {

struct Moments {
  double mean = 0, std = 0, max = 0;
};

Moments moments_of(const float* x, int64_t count) {
  Moments m;
  for (int64_t i = 0; i < count; ++i) {
    m.mean += static_cast<double>(x[i]);
    m.max = std::max(m.max, std::abs(static_cast<double>(x[i])));
  }
  m.mean /= static_cast<double>(count);
  for (int64_t i = 0; i < count; ++i) m.std += std::pow(static_cast<double>(x[i]) - m.mean, 2);
  m.std = count > 1 ? std::sqrt(m.std / static_cast<double>(count - 1)) : 0;
  return m;
}

constexpr double kSigmas = 5;
constexpr double kRounding = 1e-3;  // the figures have four digits

/// Whether `seen` can be one draw of `count` values by this rule.
void check_draw(const Initializer& rule, const Moments& seen, int64_t count) {
  const auto n = static_cast<double>(count);
  switch (rule.kind) {
    case Initializer::Kind::kConstant:
      CHECK(seen.mean == Approx(rule.a));
      CHECK(seen.std == 0);
      return;
    case Initializer::Kind::kUniform: {
      const double std = rule.a / std::sqrt(3.0);
      CHECK(std::abs(seen.mean) < kSigmas * std / std::sqrt(n) + kRounding * std);
      // The variance of a uniform value's square is 4/5 of its mean squared.
      CHECK(std::abs(seen.std - std) < std * (kSigmas * std::sqrt(0.2 / n) + 1 / n + kRounding));
      CHECK(seen.max <= rule.a * (1 + kRounding));
      CHECK(seen.max >= rule.a * (std::pow(1e-6, 1 / n) - kRounding));
      return;
    }
    case Initializer::Kind::kNormal:
      CHECK(std::abs(seen.mean - rule.mean) < kSigmas * rule.a / std::sqrt(n) + kRounding * rule.a);
      CHECK(std::abs(seen.std - rule.a) < rule.a * (kSigmas * std::sqrt(0.5 / n) + 1 / n + kRounding));
      CHECK(seen.max < 7 * rule.a);
      if (count > 1000) CHECK(seen.max > 2.5 * rule.a);
  }
}

/// Compares the parameters whose names begin with `prefix`.
void compare(const std::string& file, const NetworkOptions& options, const std::string& prefix = "") {
  INFO(file);
  std::ifstream stream(std::string(CONVOY_TEST_DIR) + "/golden/init/" + file + ".json");
  REQUIRE(stream);
  const nlohmann::json file_contents = nlohmann::json::parse(stream);
  nlohmann::json rows = nlohmann::json::array();
  for (const auto& row : file_contents.at("parameters"))
    if (row[0].get<std::string>().starts_with(prefix)) rows.push_back(row);
  ParamStore store;
  make_network(options, store);
  store.initialize(11);
  size_t first = 0, count_ours = 0;
  for (size_t p = 0; p < store.parameters().size(); ++p)
    if (store.parameters()[p].name.starts_with(prefix) && count_ours++ == 0) first = p;
  REQUIRE(count_ours == rows.size());
  for (size_t row = 0; row < rows.size(); ++row) {
    const size_t p = first + row;
    const Parameter& parameter = store.parameters()[p];
    INFO(parameter.name);
    REQUIRE(parameter.name == rows[row][0].get<std::string>());
    REQUIRE(parameter.shape.to_vector() == rows[row][1].get<std::vector<int64_t>>());
    const int64_t count = parameter.shape.count();
    check_draw(parameter.initializer, {.mean = rows[row][2], .std = rows[row][3], .max = rows[row][4]}, count);
    check_draw(parameter.initializer, moments_of(store.value(static_cast<int64_t>(p)), count), count);
  }
}

}  // namespace

TEST_CASE("fresh networks are drawn as the reference draws them") {
  compare("cityscapes_fast_scnn", {.name = "FastSCNN", .aux = true});
  compare("cityscapes_bisenet", {.name = "BiSeNet", .backbone = "resnet18"});
  compare("cityscapes_bisenet_aux", {.name = "BiSeNet", .backbone = "resnet18", .aux = true});
  compare("cityscapes_deeplabv3_plus", {.name = "DeepLabV3_Plus", .backbone = "xception65"});
  compare("cityscapes_deeplabv3_plus_resnet", {.name = "DeepLabV3_Plus", .backbone = "resnet101"});
  compare("cityscapes_deeplabv3_plus_resnet50", {.name = "DeepLabV3_Plus", .backbone = "resnet50"});
  compare("cityscapes_deeplabv3_plus_mobilenet",
          {.name = "DeepLabV3_Plus", .backbone = "mobilenet_v2", .use_aspp = false, .enable_decoder = false});
}

TEST_CASE("a deep stem is drawn as the reference draws it") {
  compare("cityscapes_fcn_resnet50c_aux", {.name = "DeepLabV3_Plus", .backbone = "resnet50c"}, "encoder.");
}

TEST_CASE("a draw is a function of the seed and the parameter's name") {
  const auto draw = [](uint64_t seed, bool aux) {
    ParamStore store;
    make_network({.name = "BiSeNet", .backbone = "resnet18", .aux = aux}, store);
    store.initialize(seed);
    const int64_t p = store.find_parameter("encoder.layer2.0.conv1.weight");
    REQUIRE(p >= 0);
    return std::vector<float>(store.value(p), store.value(p) + 1000);
  };
  CHECK(draw(1, true) == draw(1, false));
  CHECK(draw(1, true) != draw(2, true));
}

}  // namespace convoy
