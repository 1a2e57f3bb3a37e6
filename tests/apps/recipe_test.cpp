// From a recipe to a network.
#include "apps/recipe.h"

#include <catch2/catch.hpp>
#include <filesystem>

#include "engine/param_store.h"

namespace convoy {

using Catch::Contains;

namespace {

const std::filesystem::path kRecipes = std::filesystem::path(CONVOY_TEST_DIR).parent_path() / "configs";

Config deeplab(const std::vector<std::string>& overrides) {
  return load_config((kRecipes / "cityscapes_deeplabv3_plus_mobilenet.yaml").string(), overrides);
}

}  // namespace

TEST_CASE("every shipped recipe is supported and builds its network") {
  for (const auto& entry : std::filesystem::directory_iterator(kRecipes)) {
    INFO(entry.path().filename().string());
    const Config config = load_config(entry.path().string());
    CHECK_NOTHROW(require_supported(config));
    CHECK(config.notes.empty());
    ParamStore store;
    const auto network = make_network(network_options(config, class_count(config)), store);
    CHECK_NOTHROW(require_fitting(*network, config.model.model_name, config.train.crop_size));
  }
}

TEST_CASE("recipes of DeepLabV3+ say what the network is") {
  const Config xception = load_config((kRecipes / "cityscapes_deeplabv3_plus.yaml").string());
  const NetworkOptions full = network_options(xception, 19);
  CHECK(full.backbone == "xception65");
  CHECK(full.bn_eps_encoder == 1e-3);
  CHECK(full.bn_eps_decoder == 1e-5);
  CHECK((full.use_aspp && full.enable_decoder));

  const NetworkOptions light = network_options(deeplab({}), 19);
  CHECK_FALSE((light.use_aspp || light.enable_decoder));
  CHECK(network_options(deeplab({"MODEL.DEEPLABV3_PLUS.USE_ASPP", "True"}), 19).use_aspp);
  CHECK(network_options(deeplab({"MODEL.DEEPLABV3_PLUS.ENABLE_DECODER", "True"}), 19).enable_decoder);
  CHECK(network_options(deeplab({"MODEL.OUTPUT_STRIDE", "8", "MODEL.BACKBONE_SCALE", "0.5"}), 19).output_stride == 8);

  const Config unread = deeplab(
      {"MODEL.DEEPLABV3_PLUS.ASPP_WITH_SEP_CONV", "False", "MODEL.DEEPLABV3_PLUS.DECODER_USE_SEP_CONV", "False"});
  REQUIRE(unread.notes.size() == 2);
  CHECK_THAT(unread.notes[0], Contains("ASPP_WITH_SEP_CONV has no effect"));
}

TEST_CASE("head and auxiliary head of DeepLabV3+ train at the decoder's rate") {
  const Config config = deeplab({"MODEL.BACKBONE", "xception65", "SOLVER.AUX", "True"});
  ParamStore store;
  const auto network = make_network(network_options(config, 19), store);
  const std::vector<OptimizerGroup> groups = parameter_groups(config, *network, store);
  REQUIRE(groups.size() == 2);
  CHECK(groups[1].lr_factor == 10);
  for (const Parameter& p : store.parameters()) CHECK((p.group == 0) == p.name.starts_with("encoder."));
}

TEST_CASE("multi-grid dilations are those of DANet's section") {
  Config config = deeplab({"MODEL.DANET.MULTI_GRID", "True", "MODEL.DANET.MULTI_DILATION", "[4, 8, 16]"});
  CHECK(network_options(config, 19).multi_grid.empty());
  config.model.model_name = "DANet";
  CHECK(network_options(config, 19).multi_grid == std::vector<int64_t>{4, 8, 16});
  config.model.danet.multi_dilation.reset();
  CHECK_THROWS_WITH(network_options(config, 19), Contains("MULTI_DILATION"));
}

TEST_CASE("a size that does not fit is refused with those around it") {
  ParamStore store;
  const auto network = make_network(light_options("FastSCNN"), store);
  CHECK_NOTHROW(require_fitting(*network, "FastSCNN", {352, 480}));
  CHECK_THROWS_WITH(require_fitting(*network, "FastSCNN", {360, 480}),
                    Contains("(379, 480)") && Contains("(354, 480)") && Contains("multiples of 32") &&
                        Contains("(352, 480)") && Contains("eval and predict pad"));
  CHECK_THROWS_WITH(require_fitting(*network, "FastSCNN", {1, 480}), !Contains("smaller"));
  const SizeHW padded = fitting_size(*network, {360, 480});
  CHECK((padded.height == 379 && padded.width == 480));
  CHECK(fitting_extent_below(*network, 1) == 0);
  CHECK(fitting_multiple(*network) == 32);
  ParamStore other;
  CHECK(fitting_multiple(*make_network(light_options("BiSeNet"), other)) == 1);
}

}  // namespace convoy
