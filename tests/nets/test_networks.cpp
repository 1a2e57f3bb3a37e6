// Which sizes the networks take, and what they say about those that they do not.
#include <catch2/catch.hpp>
#include <cmath>

#include "engine/session.h"
#include "nets/network.h"

namespace convoy {

using Catch::Contains;

namespace {

struct Net {
  Context context;
  ParamStore store;
  std::unique_ptr<Network> network;

  explicit Net(const std::string& name) : Net(light_options(name)) {}
  explicit Net(const NetworkOptions& options) {
    network = make_network(options, store);
    store.initialize(5);
  }

  bool builds(int64_t h, int64_t w) {
    Graph graph(context, store);
    Builder b{graph, Mode::kEval};
    try {
      network->forward(b, graph.input("image", DType::kF32, {1, 3, h, w}));
      return true;
    } catch (const Error&) {
      return false;
    }
  }

  /// Runs a prediction; every output is as large as the image and finite.
  void predict(int64_t n, int64_t h, int64_t w) {
    INFO(n << "x3x" << h << "x" << w);
    Graph graph(context, store);
    Builder b{graph, Mode::kEval};
    const auto outputs = network->forward(b, graph.input("image", DType::kF32, {n, 3, h, w}));
    std::vector<Value> targets;
    for (const NamedValue& o : outputs) {
      CHECK(o.value.shape() == Shape{n, 19, h, w});
      targets.push_back(o.value);
    }
    Session session(graph, targets);
    std::vector<float> image(static_cast<size_t>(n * 3 * h * w));
    for (size_t i = 0; i < image.size(); ++i) image[i] = static_cast<float>(i % 13) - 6;
    session.bind("image", image.data());
    session.run({});
    for (size_t i = 0; i < targets.size(); ++i)
      for (const float x : session.fetch(i).to_floats()) REQUIRE(std::isfinite(x));
  }
};

}  // namespace

TEST_CASE("Fast-SCNN builds for just those sizes that it says it accepts") {
  Net net("FastSCNN");
  std::vector<int64_t> accepted;
  for (int64_t extent = 1; extent <= 140; ++extent) {
    INFO("extent " << extent);
    const bool accepts = net.network->accepts_extent(extent);
    CHECK(net.builds(extent, 64) == accepts);
    CHECK(net.builds(64, extent) == accepts);
    if (accepts) accepted.push_back(extent);
  }
  REQUIRE(accepted.size() >= 4);
  CHECK(net.network->accepts_extent(1024));
  CHECK(net.network->accepts_extent(2048));
  CHECK_FALSE(net.network->accepts_extent(0));
  CHECK_FALSE(net.network->accepts_extent(-64));
  net.predict(1, accepted[0], accepted[1]);
  net.predict(2, accepted[2], accepted[0]);
  net.predict(1, accepted.back(), 64);

  CHECK(fitting_extent(*net.network, 64) == 64);
  for (const int64_t extent : {1, 37, 100, 721, 1080}) {
    const int64_t fitting = fitting_extent(*net.network, extent);
    CHECK(fitting >= extent);
    CHECK(fitting < extent + 40);
    CHECK(net.network->accepts_extent(fitting));
  }
}

TEST_CASE("BiSeNet takes every size, odd ones included") {
  Net net("BiSeNet");
  for (int64_t extent = 1; extent <= 70; ++extent) {
    INFO("extent " << extent);
    CHECK(net.network->accepts_extent(extent));
    CHECK(net.builds(extent, 33));
  }
  net.predict(1, 33, 47);
  net.predict(2, 65, 31);
  net.predict(1, 1, 1);
  net.predict(1, 7, 100);
  CHECK_FALSE(net.network->accepts_extent(0));
}

TEST_CASE("DeepLabV3+ takes every size, odd ones included, with each of its parts") {
  Net net("DeepLabV3_Plus");
  for (int64_t extent = 1; extent <= 70; ++extent) {
    INFO("extent " << extent);
    CHECK(net.network->accepts_extent(extent));
    CHECK(net.builds(extent, 33));
  }
  net.predict(1, 33, 47);
  net.predict(1, 1, 1);
  for (const int64_t output_stride : {8, 16, 32})
    for (const bool aspp : {false, true})
      for (const bool decoder : {false, true}) {
        NetworkOptions options = light_options("DeepLabV3_Plus");
        options.output_stride = output_stride;
        options.use_aspp = aspp;
        options.enable_decoder = decoder;
        Net parts(options);
        parts.predict(1, 49, 65);
        CHECK((parts.store.find_parameter("head.aspp.conv.weight") >= 0) == aspp);
        CHECK((parts.store.find_parameter("head.c1_block.conv.weight") >= 0) == decoder);
      }
}

TEST_CASE("DeepLabV3+ says what does not suit it") {
  const auto make = [](NetworkOptions options) {
    ParamStore store;
    options.name = "DeepLabV3_Plus";
    make_network(options, store);
  };
  CHECK_THROWS_WITH(make({}), Contains("MODEL.BACKBONE") && Contains("xception65"));
  CHECK_THROWS_WITH(make({.backbone = "resnet51"}), Contains("'resnet51'") && Contains("'resnet50'"));
  CHECK_THROWS_WITH(make({.backbone = "resnet50", .aux = true}),
                    Contains("728") && Contains("resnet50") && Contains("SOLVER.AUX"));
  CHECK_THROWS_WITH(make({.backbone = "xception65", .backbone_scale = 0.5}), Contains("MODEL.BACKBONE_SCALE is 0.5"));
  CHECK_THROWS_WITH(make({.backbone = "resnet18", .backbone_scale = 0.01}), Contains("no channels"));
  CHECK_THROWS_WITH(make({.backbone = "resnet18", .output_stride = 12}), Contains("not 12"));
  CHECK_NOTHROW(make({.backbone = "xception65", .aux = true}));
}

TEST_CASE("training on one image per channel group is refused where the layer is") {
  Net net("FastSCNN");
  Graph graph(net.context, net.store);
  Builder b{graph, Mode::kTrain};
  CHECK_THROWS_WITH(net.network->forward(b, graph.input("image", DType::kF32, {1, 3, 64, 64})),
                    Contains("global_feature_extractor.ppm.convs.0") && Contains("two values per channel") &&
                        Contains("use a larger batch") && !Contains("or crop"));

  Net deeplab("DeepLabV3_Plus");
  Graph deeplab_graph(deeplab.context, deeplab.store);
  Builder deeplab_builder{deeplab_graph, Mode::kTrain};
  CHECK_THROWS_WITH(
      deeplab.network->forward(deeplab_builder, deeplab_graph.input("image", DType::kF32, {1, 3, 64, 64})),
      Contains("head.aspp.image_pooling.bn") && Contains("two values per channel"));
}

TEST_CASE("a channel count that is no image's is refused by layer") {
  Net net("BiSeNet");
  Graph graph(net.context, net.store);
  Builder b{graph, Mode::kEval};
  CHECK_THROWS_WITH(net.network->forward(b, graph.input("image", DType::kF32, {1, 4, 64, 64})),
                    Contains("conv2d") && Contains("4 channels"));
}

TEST_CASE("networks are found by name, in any case") {
  ParamStore a, b, c;
  CHECK_NOTHROW(make_network({.name = "fastscnn"}, a));
  CHECK_THROWS_WITH(make_network({.name = "FastSCN"}, b), Contains("FastSCNN"));
  CHECK_THROWS_WITH(make_network({.name = "FastSCNN", .classes = 0}, c), Contains("class"));
}

}  // namespace convoy
