// Operators of layers on images against the reference's figures: transposed and one-dimensional convolution, norms,
// activations, softmax, resizing, sampling, rearrangements.
#include <catch2/catch.hpp>

#include "layers/linear_maps.h"
#include "layers/norms.h"
#include "tests/golden_compare.h"

namespace convoy::test {

namespace {

Value third(const Values& v) {
  return v.size() > 2 ? v[2] : Value{};
}

double factor_of(const nlohmann::json& attrs, size_t axis) {
  const nlohmann::json& f = attrs.at("scale_factor");
  return f.is_array() ? f[axis].get<double>() : f.get<double>();
}

}  // namespace

TEST_CASE("transposed convolutions have the reference's values", "[device]") {
  const auto cases = golden::op_cases_of("conv_transpose2d");
  CHECK(cases.size() == 4);
  for (const golden::OpCase& g : cases) {
    const ConvTranspose2dOptions o{.geometry = {.stride_h = at(g.attrs, "stride", 0),
                                                .stride_w = at(g.attrs, "stride", 1),
                                                .pad_h = at(g.attrs, "padding", 0),
                                                .pad_w = at(g.attrs, "padding", 1),
                                                .groups = g.attrs.at("groups")},
                                   .output_pad_h = at(g.attrs, "output_padding", 0),
                                   .output_pad_w = at(g.attrs, "output_padding", 1)};
    compare(g, [o](Graph&, const Values& v) { return Values{conv_transpose2d(v[0], v[1], third(v), o)}; });
  }
}

TEST_CASE("one-dimensional convolution and linear have the reference's values", "[device]") {
  for (const golden::OpCase& g : golden::op_cases_of("conv1d"))
    compare(g, [](Graph&, const Values& v) { return Values{conv1d(v[0], v[1], third(v))}; });
  for (const golden::OpCase& g : golden::op_cases_of("linear"))
    compare(g, [](Graph&, const Values& v) { return Values{linear(v[0], v[1], third(v))}; });
}

TEST_CASE("norms of single images have the reference's values", "[device]") {
  for (const golden::OpCase& g : golden::op_cases_of("group_norm"))
    compare(g, [groups = g.attrs.at("groups").get<int64_t>(), eps = g.attrs.at("eps").get<double>()](
                   Graph&, const Values& v) { return Values{group_norm(v[0], v[1], v[2], groups, eps)}; });
  for (const golden::OpCase& g : golden::op_cases_of("l2norm"))
    compare(g, [eps = g.attrs.at("eps").get<double>()](Graph&, const Values& v) {
      return Values{l2_norm(v[0], v[1], eps)};
    });
}

TEST_CASE("activations beyond ReLU have the reference's values", "[device]") {
  CHECK(golden::op_cases_of("prelu").size() == 2);
  for (const golden::OpCase& g : golden::op_cases_of("prelu"))
    compare(g, [](Graph&, const Values& v) { return Values{prelu(v[0], v[1])}; });
  for (const golden::OpCase& g : golden::op_cases_of("hardswish")) compare(g, one(hardswish));
  for (const golden::OpCase& g : golden::op_cases_of("leaky_relu"))
    compare(g, one([slope = g.attrs.at("slope").get<double>()](Value x) { return leaky_relu(x, slope); }));
}

TEST_CASE("softmax has the reference's values", "[device]") {
  CHECK(golden::op_cases_of("softmax").size() == 2);
  for (const golden::OpCase& g : golden::op_cases_of("softmax"))
    compare(g, one([dim = g.attrs.at("dim").get<int>()](Value x) { return softmax(x, dim); }));
  for (const golden::OpCase& g : golden::op_cases_of("log_softmax"))
    compare(g, one([dim = g.attrs.at("dim").get<int>()](Value x) { return log_softmax(x, dim); }));
}

TEST_CASE("resizing has the reference's values", "[device]") {
  const auto cases = golden::op_cases_of("interpolate");
  CHECK(cases.size() == 24);
  for (const golden::OpCase& g : cases) {
    const bool nearest = g.attrs.at("mode") == "nearest";
    const bool corners = !g.attrs.at("align_corners").is_null() && g.attrs.at("align_corners").get<bool>();
    if (g.attrs.at("scale_factor").is_null()) {
      const int64_t h = at(g.attrs, "size", 0), w = at(g.attrs, "size", 1);
      compare(g, one([=](Value x) { return nearest ? resize_nearest(x, h, w) : resize_bilinear(x, h, w, corners); }));
    } else {
      const double h = factor_of(g.attrs, 0), w = factor_of(g.attrs, 1);
      compare(
          g, one([=](Value x) { return nearest ? resize_nearest_by(x, h, w) : resize_bilinear_by(x, h, w, corners); }));
    }
  }
}

TEST_CASE("resized labels have the reference's values", "[device]") {
  for (const golden::OpCase& g : golden::op_cases_of("label_resize")) {
    INFO(g.id);
    compared_cases().insert(g.id);
    const std::vector<int32_t> labels(g.input("t").values.begin(), g.input("t").values.end());
    Context context{on_test_device()};
    ParamStore store;
    Graph graph(context, store);
    const Value t = graph.constant(Tensor::of(Shape(g.input("t").shape), labels));
    CHECK(evaluate(label_resize(t, at(g.attrs, "size", 0), at(g.attrs, "size", 1))).to_floats() ==
          g.output("y").values);
  }
}

TEST_CASE("sampling at places has the reference's values", "[device]") {
  CHECK(golden::op_cases_of("grid_sample").size() == 4);
  for (const golden::OpCase& g : golden::op_cases_of("grid_sample"))
    compare(g, [corners = g.attrs.at("align_corners").get<bool>(), nearest = g.attrs.at("mode") == "nearest"](
                   Graph&, const Values& v) { return Values{grid_sample(v[0], v[1], corners, nearest)}; });
}

TEST_CASE("rearrangements have the reference's values", "[device]") {
  for (const golden::OpCase& g : golden::op_cases_of("pixel_shuffle"))
    compare(g, one([f = g.attrs.at("factor").get<int64_t>()](Value x) { return pixel_shuffle(x, f); }));
  for (const golden::OpCase& g : golden::op_cases_of("channel_shuffle"))
    compare(g, one([groups = g.attrs.at("groups").get<int64_t>()](Value x) { return channel_shuffle(x, groups); }));
  for (const golden::OpCase& g : golden::op_cases_of("dupsampling"))
    compare(g, [f = g.attrs.at("scale").get<int64_t>()](Graph&, const Values& v) {
      return Values{dupsampling(v[0], v[1], f)};
    });
}

TEST_CASE("layers on images have PyTorch's parameters and train them", "[device]") {
  Context context{on_test_device()};
  ParamStore store;
  const Scope root{.store = store, .path = ""};
  const ConvTranspose2d deconv(root / "deconv", 16, 20, 2, {.geometry = {.stride_h = 2, .stride_w = 2, .groups = 2}});
  const GroupNorm group_norm(root / "gn", 20);
  const PRelu prelu(root / "prelu", 20);
  const L2Norm l2_norm(root / "l2", 20);
  const DupSampling dup(root / "dup", 20, 3, 2);
  const Conv1d conv1d(root / "conv1d", 3, 6, 3, {.pad = 1}, false);
  const BatchNorm1d bn1d(root / "bn1d", 6);
  const Linear linear(root / "linear", 6, 4);
  store.allocate();
  store.initialize(1);
  store.require_gradients();

  const auto parameter = [&](const std::string& name) -> const Parameter& {
    return store.parameters().at(static_cast<size_t>(store.find_parameter(name)));
  };
  CHECK(parameter("deconv.weight").shape == Shape{16, 10, 2, 2});
  CHECK(parameter("deconv.weight").initializer.kind == Initializer::Kind::kUniform);
  CHECK(parameter("deconv.weight").initializer.a == Approx(1 / std::sqrt(40.0)));
  CHECK(parameter("deconv.bias").initializer.a == Approx(1 / std::sqrt(40.0)));
  CHECK(parameter("gn.weight").initializer.a == 1);
  CHECK(parameter("prelu.weight").initializer.a == 0.25);
  CHECK(parameter("l2.weight").initializer.a == 20);
  CHECK(parameter("dup.weight").shape == Shape{12, 20, 1, 1});
  CHECK(parameter("conv1d.weight").shape == Shape{6, 3, 3});
  CHECK(parameter("conv1d.weight").initializer.a == Approx(1.0 / 3));
  CHECK(parameter("linear.weight").shape == Shape{4, 6});
  CHECK(parameter("linear.bias").initializer.a == Approx(1 / std::sqrt(6.0)));

  Graph graph(context, store);
  Builder b{.graph = graph, .mode = Mode::kTrain};
  const OpInput image = sym("image", {2, 16, 3, 4});
  Value x = deconv(b, graph.constant(Tensor::of(image.shape, image.values)));
  CHECK(x.shape() == Shape{2, 20, 6, 8});
  x = dup(b, l2_norm(b, group_norm(b, prelu(b, x))));
  CHECK(x.shape() == Shape{2, 3, 12, 16});
  x = bn1d(b, conv1d(b, reshape(x, {2, 3, 192})));
  CHECK(x.shape() == Shape{2, 6, 192});
  x = linear(b, global_avg_pool(hardswish(as_image(x))));
  CHECK(x.shape() == Shape{2, 4, 1, 1});
  CHECK(linear(b, flatten(x = concat({x, slice_channels(x, 0, 2)}))).shape() == Shape{2, 4});
  const OpInput weight = sym("loss", x.shape());
  graph.differentiate(dot(x, graph.constant(Tensor::of(weight.shape, weight.values))));
  Session(graph, graph.gradient_effects()).run({});
  for (size_t i = 0; i < store.parameters().size(); ++i) {
    const Parameter& p = store.parameters()[i];
    INFO(p.name);
    CHECK(p.has_gradient);
    double size = 0;
    for (int64_t k = 0; k < p.shape.count(); ++k)
      size += std::abs(static_cast<double>(store.gradient(static_cast<int64_t>(i))[k]));
    CHECK(std::isfinite(size));
    CHECK(size > 0);
  }
}

TEST_CASE("operators on images refuse operands that do not fit", "[device]") {
  Context context{on_test_device()};
  ParamStore store;
  Graph graph(context, store);
  const auto value = [&](const Shape& shape) { return graph.constant(Tensor::zeros(DType::kF32, shape)); };
  const Value x = value({2, 6, 4, 5});
  CHECK_THROWS_AS(reshape(x, {2, 6, 4}), Error);
  CHECK_THROWS_AS(flatten(value({})), Error);
  CHECK_THROWS_AS(as_image(value({3})), Error);
  CHECK_THROWS_AS(conv_transpose2d(x, value({5, 3, 2, 2}), {}), Error);
  CHECK_THROWS_AS(conv_transpose2d(x, value({6, 3, 2, 2}), value({4})), Error);
  CHECK_THROWS_AS(conv_transpose2d(x, value({6, 3, 2, 2}), {}, {.output_pad_h = 1}), Error);
  CHECK_THROWS_AS(conv_transpose2d(x, value({6, 3, 2, 2}), {}, {.geometry = {.pad_h = 9}}), Error);
  CHECK_THROWS_AS(conv1d(x, value({6, 3, 2}), {}), Error);
  CHECK_THROWS_AS(linear(value({2, 6}), value({3, 5}), {}), Error);
  CHECK_THROWS_AS(group_norm(x, value({6}), value({6}), 4), Error);
  CHECK_THROWS_AS(group_norm(x, value({6}), value({5}), 3), Error);
  CHECK_THROWS_AS(l2_norm(x, value({5})), Error);
  CHECK_THROWS_AS(prelu(x, value({2})), Error);
  CHECK_THROWS_AS(softmax(x, 2), Error);
  CHECK_THROWS_AS(softmax(x, 4), Error);
  CHECK_THROWS_AS(resize_bilinear_by(x, 0.1, 1, false), Error);
  CHECK_THROWS_AS(resize_nearest_by(x, -1, 1), Error);
  CHECK_THROWS_AS(max_unpool2d(x, x, 8, 10), Error);
  CHECK_THROWS_AS(grid_sample(x, value({1, 4, 5, 2}), true), Error);
  CHECK_THROWS_AS(grid_sample(x, value({2, 4, 5, 3}), true), Error);
  CHECK_THROWS_AS(label_resize(x, 2, 2), Error);
  CHECK_THROWS_AS(pixel_shuffle(x, 2), Error);
  CHECK_THROWS_AS(channel_shuffle(x, 4), Error);
  const Value far = graph.constant(Tensor::of({1, 1, 1, 1}, std::vector<int32_t>{12}));
  CHECK_THROWS_AS(evaluate(max_unpool2d(value({1, 1, 1, 1}), far, 3, 4)), Error);
}

}  // namespace convoy::test
