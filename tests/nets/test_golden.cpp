// Every network against its reference figures, by the fast kernels and by the plain ones.
#include <catch2/catch.hpp>
#include <filesystem>

#include "apps/verify.h"

namespace convoy {

static void check(const std::string& name, const ContextOptions& options) {
  const std::string path = std::string(CONVOY_TEST_DIR) + "/golden/segmentron/" + name;
  for (const VerifyLine& line : verify(path, options).lines) {
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

}  // namespace convoy
