// Backbones: their numbers, sizes and dilations at every output stride.
#include <catch2/catch.hpp>
#include <cmath>
#include <map>

#include "apps/golden_file.h"
#include "engine/op.h"
#include "engine/session.h"
#include "nets/backbones/backbone.h"

namespace convoy {

using Catch::Contains;

namespace {

struct Built {
  Context context;
  ParamStore store;
  std::unique_ptr<Backbone> backbone;
  std::unique_ptr<Graph> graph;
  Features features;

  Built(const std::string& name, const BackboneOptions& options) {
    backbone = make_backbone(name, options, Scope{.store = store, .path = "encoder"});
    store.allocate();
    graph = std::make_unique<Graph>(context, store);
    Builder b{*graph, Mode::kEval};
    features = (*backbone)(b, graph->input("image", DType::kF32, {1, 3, 65, 97}));
  }

  /// Dilation of a convolution that was built under this path.
  int64_t dilation(const std::string& path) const {
    for (NodeId id = 0; id < static_cast<NodeId>(graph->size()); ++id)
      if (const Node& node = graph->node(id); node.name == path && node.op->name == "conv2d")
        return node.attrs.integer("dilation_h");
    return -1;
  }
};

}  // namespace

// Whole networks are compared in test_golden.cpp; these are backbones of other networks, in eval mode.
TEST_CASE("backbones have the reference's numbers, convolution by convolution") {
  // A deep stem; output stride 8; output stride 8 with multi-grid.
  const std::string name = GENERATE("cityscapes_fcn_resnet50c_aux", "cityscapes_dunet", "cityscapes_danet_resnet");
  INFO(name);
  const GoldenFile golden(std::string(CONVOY_TEST_DIR) + "/golden/segmentron/" + name + ".a.json");
  const NetworkOptions options = golden.network_options();
  Context context;
  ParamStore store;
  const auto backbone =
      make_backbone(options.backbone, {.output_stride = options.output_stride, .multi_grid = options.multi_grid},
                    Scope{.store = store, .path = "encoder"});
  store.allocate();
  golden.fill(store, "encoder.");
  Graph graph(context, store);
  Builder b{graph, Mode::kEval};
  (*backbone)(b, graph.input("image", DType::kF32, golden.input_shape()));
  std::map<std::string, Value> convolutions;
  for (NodeId id = 0; id < static_cast<NodeId>(graph.size()); ++id)
    if (graph.node(id).op->name == "conv2d") convolutions[graph.node(id).name] = Value{&graph, id, 0};
  std::vector<Value> targets;
  std::vector<nlohmann::json> rows;
  for (const nlohmann::json& row : golden.json().at("eval").at("trace"))
    if (row.at(1) == "Conv2d" && row.at(0).get<std::string>().starts_with("encoder.")) {
      REQUIRE(convolutions.count(row.at(0)) == 1);
      targets.push_back(convolutions[row.at(0)]);
      rows.push_back(row);
    }
  REQUIRE(targets.size() == convolutions.size());
  Session session(graph, targets);
  const std::vector<float> image = golden.input();
  session.bind("image", image.data());
  session.run({});
  for (size_t i = 0; i < rows.size(); ++i) {
    INFO(rows[i].at(0));
    const Tensor value = session.fetch(i);
    CHECK(value.shape().to_vector() == rows[i].at(2).get<std::vector<int64_t>>());
    double sum = 0, squares = 0;
    for (const float x : value.to_floats()) {
      sum += static_cast<double>(x);
      squares += static_cast<double>(x) * static_cast<double>(x);
    }
    const double l2 = rows[i].at(3), count = static_cast<double>(value.shape().count());
    CHECK(std::sqrt(squares) == Approx(l2).epsilon(1e-5));
    CHECK(sum / count == Approx(rows[i].at(4).get<double>()).margin(1e-5 * l2 / std::sqrt(count)));
  }
}

TEST_CASE("backbones give maps of the promised sizes") {
  const std::string name = GENERATE(from_range(backbone_names()));
  for (const int64_t output_stride : {8, 16, 32}) {
    INFO(name << ", output stride " << output_stride);
    const Built b(name, {.output_stride = output_stride});
    const auto channels = b.backbone->channels();
    const Value maps[] = {b.features.c1, b.features.c2, b.features.c3, b.features.c4};
    for (size_t i = 0; i < 4; ++i) {
      const int64_t stride = std::min(output_stride, int64_t{4} << i);
      INFO("c" << i + 1);
      CHECK(maps[i].shape() == Shape{1, channels[i], 64 / stride + 1, 96 / stride + 1});
    }
  }
}

TEST_CASE("widths of a backbone scale, rounded down") {
  CHECK(Built("resnet50", {.width = 0.5}).backbone->channels() == std::array<int64_t, 4>{128, 256, 512, 1024});
  CHECK(Built("resnet18", {.width = 0.3}).backbone->channels() == std::array<int64_t, 4>{19, 38, 76, 153});
  const Built narrow("mobilenet_v2", {.width = 0.5}), wide("mobilenet_v2", {.width = 1.4});
  CHECK(narrow.backbone->channels() == std::array<int64_t, 4>{12, 16, 48, 160});
  const auto stem = [](const Built& b) {
    return b.store.parameters()[static_cast<size_t>(b.store.find_parameter("encoder.conv1.conv.weight"))].shape[0];
  };
  CHECK(stem(narrow) == 32);  // the stem is never narrowed
  CHECK(stem(wide) == 44);
}

TEST_CASE("dilations replace strides as the reference has it") {
  const Built r8("resnet50", {.output_stride = 8}), r16("resnet50", {});
  CHECK(r8.dilation("encoder.layer3.0.conv2") == 1);
  CHECK(r8.dilation("encoder.layer3.1.conv2") == 2);
  CHECK(r8.dilation("encoder.layer4.0.conv2") == 2);
  CHECK(r8.dilation("encoder.layer4.1.conv2") == 4);
  CHECK(r16.dilation("encoder.layer3.5.conv2") == 1);
  CHECK(r16.dilation("encoder.layer4.0.conv2") == 1);
  CHECK(r16.dilation("encoder.layer4.2.conv2") == 2);

  const Built basic("resnet34", {.output_stride = 8});
  CHECK(basic.dilation("encoder.layer4.0.conv1") == 2);
  CHECK(basic.dilation("encoder.layer4.0.conv2") == 4);

  const Built grid("resnet101", {.output_stride = 8, .multi_grid = {4, 8, 16}});
  CHECK(grid.dilation("encoder.layer3.5.conv2") == 2);
  CHECK(grid.dilation("encoder.layer4.0.conv2") == 4);
  CHECK(grid.dilation("encoder.layer4.1.conv2") == 8);
  CHECK(grid.dilation("encoder.layer4.2.conv2") == 16);
  CHECK(Built("resnet18", {.multi_grid = {4, 8}}).dilation("encoder.layer4.1.conv1") == 8);

  const Built x8("xception65", {.output_stride = 8}), x16("xception65", {}), x32("xception65", {.output_stride = 32});
  CHECK(x8.dilation("encoder.block3.sep_conv3.block.depthwise") == 1);
  CHECK(x8.dilation("encoder.block4.sep_conv1.block.depthwise") == 2);
  CHECK(x8.dilation("encoder.block20.sep_conv3.block.depthwise") == 2);
  CHECK(x8.dilation("encoder.block21.sep_conv1.block.depthwise") == 4);
  CHECK(x16.dilation("encoder.block19.sep_conv1.block.depthwise") == 1);
  CHECK(x16.dilation("encoder.block20.sep_conv1.block.depthwise") == 1);
  CHECK(x16.dilation("encoder.block21.sep_conv3.block.depthwise") == 2);
  CHECK(x32.dilation("encoder.block21.sep_conv3.block.depthwise") == 1);

  // Only the first block of a group of MobileNetV2 is dilated.
  const Built m8("mobilenet_v2", {.output_stride = 8}), m16("mobilenet_v2", {});
  CHECK(m8.dilation("encoder.block4.0.conv.1.conv") == 2);
  CHECK(m8.dilation("encoder.block4.1.conv.1.conv") == 1);
  CHECK(m8.dilation("encoder.block4.4.conv.1.conv") == 2);
  CHECK(m8.dilation("encoder.block5.0.conv.1.conv") == 4);
  CHECK(m8.dilation("encoder.block5.3.conv.1.conv") == 4);
  CHECK(m16.dilation("encoder.block4.0.conv.1.conv") == 1);
  CHECK(m16.dilation("encoder.block5.0.conv.1.conv") == 2);
  CHECK(m16.dilation("encoder.block5.2.conv.1.conv") == 1);
}

TEST_CASE("backbones refuse what they cannot do") {
  CHECK_THROWS_WITH(Built("xception_65", {}), Contains("'xception65'"));
  CHECK_THROWS_WITH(Built("mobilenet_v2", {.multi_grid = {4}}), Contains("multi-grid") && Contains("mobilenet_v2"));
  CHECK_THROWS_WITH(Built("resnet18", {.multi_grid = {4, 0}}), Contains("positive"));
}

}  // namespace convoy
