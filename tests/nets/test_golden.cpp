// Every network against its reference figures, by the fast kernels and by the plain ones.
#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "apps/verify.h"

namespace convoy {

static std::string golden_path(const std::string& name) {
  return std::string(CONVOY_TEST_DIR) + "/golden/segmentron/" + name;
}

static void check(const std::string& name, const ContextOptions& options) {
  for (const VerifyLine& line : verify(golden_path(name), options).lines) {
    INFO(name << ", " << line.group << ": " << line.summary);
    CHECK(line.passed);
  }
}

TEST_CASE("networks have the reference's numbers") {
  const auto* name =
      GENERATE("cityscapes_fast_scnn.a.json", "cityscapes_bisenet.a.json", "cityscapes_bisenet_aux.a.json",
               "cityscapes_deeplabv3_plus.a.json", "cityscapes_deeplabv3_plus_mobilenet.a.json",
               "cityscapes_deeplabv3_plus_resnet.a.json", "cityscapes_deeplabv3_plus_resnet50.a.json");
  check(name, {});
}

TEST_CASE("networks have the reference's numbers by plain convolutions") {
  const auto* name =
      GENERATE("cityscapes_fast_scnn.a.json", "cityscapes_bisenet_aux.a.json",
               "cityscapes_deeplabv3_plus_mobilenet.a.json", "cityscapes_deeplabv3_plus_resnet50.a.json");
  check(name, {.direct_conv = true});
}

// Through the CUDA kernels; slow, so a test of its own. The other networks: scripts/nightly.
TEST_CASE("networks have the reference's numbers on the emulated device", "[.emulated]") {
  const auto* name = GENERATE("cityscapes_fast_scnn.a.json", "cityscapes_bisenet.a.json",
                              "cityscapes_deeplabv3_plus_mobilenet.a.json");
  check(name, {.device = DeviceKind::kEmulated});
}

// Neither a gradient that is wrong by more than single signs in front of a ReLU, nor many that are wrong by little, may
// pass because other roundings are tried.
TEST_CASE("a wrong gradient is found in spite of other roundings") {
  const auto [share, factor] = GENERATE(std::pair(0.05, 1.002), std::pair(0.01, 1.05));
  std::ifstream in(golden_path("cityscapes_fast_scnn.a.json"));
  nlohmann::json golden = nlohmann::json::parse(in);
  auto& rows = golden.at("frozen").at("grads");
  const auto planted = static_cast<size_t>(std::ceil(share * static_cast<double>(rows.size())));
  for (size_t i = 0; i < planted; ++i) {
    auto& row = rows.at(rows.size() / 2 + i);
    row.at(1) = row.at(1).get<double>() * factor;
    for (auto& sample : row.at(5)) sample = sample.get<double>() * factor;
  }
  const std::string path = (std::filesystem::temp_directory_path() / "convoy_planted_gradient.json").string();
  std::ofstream(path) << golden;
  const VerifyResult result = verify(path, {});
  std::filesystem::remove(path);
  CHECK(result.failed() == 1);
}

}  // namespace convoy
