// The builder: errors, lazy values, effects, gradients of shared parameters.
#include <catch2/catch.hpp>

#include "engine/op.h"
#include "engine/ops.h"
#include "engine/optimizer.h"
#include "engine/param_store.h"
#include "engine/plan_cache.h"
#include "engine/session.h"
#include "layers/module.h"
#include "tests/op_runner.h"

namespace convoy {

using Catch::Contains;

namespace {

Tensor drawn(const std::string& name, const Shape& shape) {
  return Tensor::of(shape, test::sym(name, shape).values);
}

/// A graph with a few parameters and buffers of its own.
struct Bench {
  Context context;
  ParamStore store;
  std::unique_ptr<Graph> graph;

  explicit Bench(const ContextOptions& options = {}) : context(options) {}
  Graph& begin() {
    graph = std::make_unique<Graph>(context, store);
    return *graph;
  }
};

std::vector<float> gradient(const ParamStore& store, const std::string& name) {
  const int64_t p = store.find_parameter(name);
  const float* g = store.gradient(p);
  return {g, g + store.parameters()[static_cast<size_t>(p)].shape.count()};
}

}  // namespace

TEST_CASE("shape errors name the module path, the operator and the shapes") {
  Bench bench;
  Graph& g = bench.begin();
  const Value x = g.input("x", DType::kF32, {2, 3, 4, 5}), w = g.input("w", DType::kF32, {8, 4, 3, 3});
  const Value labels = g.input("t", DType::kI32, {2, 4, 6}), matrix = g.input("m", DType::kF32, {2, 3});
  const Graph::Scope scope(g, "encoder.conv1");
  const auto complaint = [](const std::string& op, const std::string& detail = "") {
    return Catch::Matches("(.|\\n)*encoder\\.conv1(.|\\n)*'" + op + "'(.|\\n)*" + detail + "(.|\\n)*");
  };
  CHECK_THROWS_WITH(conv2d(x, w, {}), complaint("conv2d", "\\(8,4,3,3\\).*3 channels"));
  CHECK_THROWS_WITH(conv2d(matrix, w, {}), complaint("conv2d", "\\(2,3\\)"));
  CHECK_THROWS_WITH(add(x, w), complaint("add", "\\(2,3,4,5\\)"));
  CHECK_THROWS_WITH(add(labels, labels), complaint("add", "i32"));
  CHECK_THROWS_WITH(dot(labels, labels), complaint("dot", "i32"));
  CHECK_THROWS_WITH(relu(labels), complaint("activation", "i32"));
  CHECK_THROWS_WITH(mul_channel(x, w), complaint("mul_channel"));
  CHECK_THROWS_WITH(concat({x, w}), complaint("concat"));
  CHECK_THROWS_WITH(slice_channels(x, 1, 3), complaint("slice_channels"));
  CHECK_THROWS_WITH(softmax_cross_entropy(x, labels, g.constant(1.0f), -1), complaint("softmax_ce"));
  CHECK_THROWS_WITH(resize_bilinear(x, 0, 4), complaint("resize_bilinear"));
  CHECK_THROWS_WITH(adaptive_avg_pool2d(x, 0, 1), complaint("adaptive_avg_pool2d"));
  CHECK_THROWS_WITH(max_pool2d(x, {.kernel_h = 9, .kernel_w = 9}), complaint("max_pool2d"));
  CHECK_THROWS_WITH(max_pool2d(x, {.stride_h = 0}), complaint("max_pool2d", "stride"));
  CHECK_THROWS_WITH(avg_pool2d(x, {.pad_h = -1}), complaint("avg_pool2d"));
  CHECK_THROWS_WITH(bn_stats(g.input("one", DType::kF32, {1, 8, 1, 1})), complaint("bn_stats", "larger"));
  const Value fits = g.input("w3", DType::kF32, {8, 3, 3, 3});
  CHECK_THROWS_WITH(conv2d(x, fits, {}, {.stride_h = 0}), complaint("conv2d", "strides"));
  CHECK_THROWS_WITH(conv2d(x, fits, {}, {.dilation_w = 0}), complaint("conv2d"));
  CHECK_THROWS_WITH(conv2d(x, fits, {}, {.groups = 0}), complaint("conv2d"));
  CHECK_THROWS_WITH(conv2d(x, fits, {}, {.dilation_h = 3}), complaint("conv2d", "too small"));
  CHECK_THROWS_WITH(dropout(x, 1.5), Contains("encoder.conv1") && Contains("1.5"));
  CHECK_THROWS_WITH(g.append("no such operator", {x}), Contains("no such operator"));
}

TEST_CASE("names that do not exist, exist twice or belong elsewhere are refused") {
  Bench bench;
  bench.store.add_parameter("w", {3});
  CHECK_THROWS_WITH(bench.store.add_parameter("w", {3}), Contains("'w'"));
  CHECK_THROWS_WITH(bench.store.add_alias("v", "u"), Contains("'u'"));
  bench.store.allocate();
  CHECK_THROWS_WITH(bench.store.add_parameter("late", {3}), Contains("'late'"));
  Graph& g = bench.begin();
  g.input("x", DType::kF32, {1});
  CHECK_THROWS_WITH(g.input("x", DType::kF32, {1}), Contains("'x'"));
  CHECK_THROWS_WITH(g.parameter("u"), Contains("'u'"));
  CHECK_THROWS_WITH(g.buffer("u"), Contains("'u'"));
  CHECK(g.parameter("w") == g.parameter("w"));
  Graph other(bench.context, bench.store);
  CHECK_THROWS_WITH(add(g.parameter("w"), other.parameter("w")), Contains("another graph"));
  CHECK_THROWS_WITH(g.differentiate(g.parameter("w")), Contains("scalar") && Contains("(3)"));
}

TEST_CASE("values are computed when asked for, once, and then are constants") {
  Bench bench;
  Graph& g = bench.begin();
  const Value x = g.constant(Tensor::of({2}, std::vector<float>{1, 2}));
  const Value y = scale(x, 3), z = scale(y, 2);
  CHECK_FALSE(g.node(y.node).computed[0].defined());
  CHECK(evaluate(y).to_floats() == std::vector<float>{3, 6});
  CHECK_FALSE(g.node(z.node).computed[0].defined());
  const int64_t plans = bench.context.plans().misses();
  CHECK(evaluate(y).to_floats() == std::vector<float>{3, 6});
  CHECK(bench.context.plans().misses() == plans);
  CHECK(evaluate(z).to_floats() == std::vector<float>{6, 12});
  CHECK(make_schedule(g, {z}, true).nodes.size() == 1);
  CHECK(evaluate({x, y, z})[2].to_floats() == std::vector<float>{6, 12});
  CHECK_THROWS_WITH(evaluate(std::vector<Value>{}), Contains("nothing"));
}

TEST_CASE("running statistics move once however often values are asked for") {
  Bench bench;
  const BatchNorm2d bn({.store = bench.store, .path = "bn"}, 3);
  bench.store.allocate();
  bench.store.initialize(1);
  const auto count = [&] { return *bench.store.buffers()[2].value.i64(); };
  const auto mean = [&] { return bench.store.buffers()[0].value.to_floats(); };

  Graph& g = bench.begin();
  Builder b{g, Mode::kTrain};
  const Value x = g.constant(drawn("x", {2, 3, 4, 5}));
  const Value y = bn(b, x), z = relu(y);
  evaluate(x);
  CHECK(count() == 0);
  evaluate(z);
  CHECK(count() == 1);
  const auto once = mean();
  CHECK(once != std::vector<float>(3, 0.0f));
  evaluate(y);
  evaluate({y, z});
  evaluate(scale(y, 2));
  CHECK(count() == 1);
  CHECK(mean() == once);

  SECTION("twice where the module is called twice") {
    Graph& twice = bench.begin();
    Builder c{twice, Mode::kTrain};
    const Value v = twice.constant(drawn("x", {2, 3, 4, 5}));
    const Value sum = add(bn(c, v), bn(c, scale(v, 2)));
    evaluate(sum);
    evaluate(sum);
    CHECK(count() == 3);
  }
  SECTION("never where statistics are frozen") {
    Graph& frozen = bench.begin();
    Builder c{frozen, Mode::kFrozen};
    evaluate(bn(c, frozen.constant(drawn("x", {2, 3, 4, 5}))));
    CHECK(count() == 1);
    CHECK(mean() == once);
  }
  SECTION("every step of a session, not when it is made") {
    Graph& stepped = bench.begin();
    Builder c{stepped, Mode::kTrain};
    Session session(stepped, {bn(c, stepped.constant(drawn("x", {2, 3, 4, 5})))});
    CHECK(count() == 1);
    session.run({});
    session.run({});
    CHECK(count() == 3);
  }
}

TEST_CASE("a module that is called twice has the sum of both gradients") {
  Bench bench;
  const Conv2d conv({.store = bench.store, .path = "conv"}, 3, 19, ConvOptions::square(3).with_bias());
  bench.store.allocate();
  bench.store.initialize(4);
  const auto gradients = [&](bool first, bool second) {
    Graph& g = bench.begin();
    Builder b{g, Mode::kTrain};
    const Value r = g.constant(drawn("upstream", {2, 19, 5, 6}));
    const auto part = [&](const char* name, double factor) {
      return scale(dot(conv(b, g.constant(drawn(name, {2, 3, 5, 6}))), r), factor);
    };
    Value loss;
    if (first) loss = part("a", 1);
    if (second) loss = loss ? add(loss, part("b", 3)) : part("b", 3);
    g.differentiate(loss);
    CHECK(g.gradient_effects().size() == 2);
    evaluate(g.gradient_effects());
    return std::pair(gradient(bench.store, "conv.weight"), gradient(bench.store, "conv.bias"));
  };
  const auto a = gradients(true, false), b = gradients(false, true), both = gradients(true, true);
  auto sum = a;
  for (size_t i = 0; i < sum.first.size(); ++i) sum.first[i] += b.first[i];
  for (size_t i = 0; i < sum.second.size(); ++i) sum.second[i] += b.second[i];
  CHECK(test::relative_l2(both.first, sum.first) < 1e-6);
  CHECK(test::relative_l2(both.second, sum.second) < 1e-6);
  CHECK(test::relative_l2(both.first, a.first) > 0.1);
}

TEST_CASE("looking at values on the way does not change gradients") {
  Bench bench;
  bench.store.add_parameter("w", {4, 3, 1, 1}, {.kind = Initializer::Kind::kNormal, .a = 1});
  const BatchNorm2d bn({.store = bench.store, .path = "bn"}, 4);
  bench.store.allocate();
  bench.store.initialize(2);
  const auto gradients = [&](bool look) {
    Graph& g = bench.begin();
    Builder b{g, Mode::kTrain};
    const Value x = g.constant(drawn("x", {2, 3, 4, 5}));
    const Value y = conv2d(x, g.parameter("w"), {});
    if (look) evaluate(y);
    const Value z = relu(bn(b, y));
    if (look) evaluate(z);
    const Value loss = dot(z, g.constant(drawn("r", {2, 4, 4, 5})));
    if (look) evaluate(loss);
    const std::vector<Value> also{y};
    const Value dy = g.differentiate(loss, also)[0];
    REQUIRE(dy);
    std::vector<float> d = evaluate(dy).to_floats();
    evaluate(g.gradient_effects());
    for (const char* name : {"w", "bn.weight", "bn.bias"})
      for (const float v : gradient(bench.store, name)) d.push_back(v);
    return d;
  };
  const auto plain = gradients(false), looked = gradients(true);
  CHECK(test::relative_l2(looked, plain) < 1e-6);
  CHECK(*bench.store.buffers()[2].value.i64() == 2);
}

TEST_CASE("only what leads to the loss has a gradient, and SGD leaves the rest alone") {
  Bench bench;
  for (const char* name : {"used", "unused", "behind"}) bench.store.add_parameter(name, {4});
  bench.store.allocate();
  for (int64_t p = 0; p < 3; ++p) std::fill_n(bench.store.value(p), 4, 2.0f);
  Graph& g = bench.begin();
  const Value a = mul(g.parameter("used"), g.parameter("used"));
  const Value outside = mul(g.parameter("behind"), a);
  const Value unrelated = g.constant(1.0f);
  const std::vector<Value> also{a, outside, unrelated};
  const auto d = g.differentiate(dot(a, g.constant(Tensor::of({4}, std::vector<float>(4, 1)))), also);
  CHECK(d[0]);
  CHECK_FALSE(d[1]);
  CHECK_FALSE(d[2]);
  CHECK(g.gradient_effects().size() == 1);
  evaluate(g.gradient_effects());
  CHECK(gradient(bench.store, "used") == std::vector<float>(4, 4.0f));
  Optimizer optimizer(bench.store, {{.name = "all", .weight_decay = 0.1}}, {});
  optimizer.step(0.5);
  CHECK(bench.store.value(0)[0] == Approx(2 - 0.5 * (4 + 0.1 * 2)));
  for (int i = 0; i < 4; ++i) {
    CHECK(bench.store.value(1)[i] == 2);
    CHECK(bench.store.value(2)[i] == 2);
  }
  CHECK_THROWS_WITH(g.differentiate(dot(a, a)), Contains("'used'") && Contains("once"));
}

TEST_CASE("a loss that is asked for alone keeps the gradient that others count on") {
  Bench bench;
  Graph& g = bench.begin();
  const Value x = g.constant(drawn("x", {1, 19, 3, 4}));
  const Value full = resize_bilinear(x, 9, 12);
  const test::OpInput labels = test::labels({1, 9, 12}, 19, -1);
  const std::vector<int32_t> classes(labels.values.begin(), labels.values.end());
  const Value target = g.constant(Tensor::of({1, 9, 12}, classes));
  const Value ce = softmax_cross_entropy(full, target, label_weight_sum(target, 19, -1), -1);
  const Value loss = add(ce, dot(full, g.constant(drawn("r", {1, 19, 9, 12}))));
  const std::vector<Value> also{x};
  const Value dx = g.differentiate(loss, also)[0];
  evaluate(ce);
  const auto after = evaluate(dx).to_floats();
  Graph& fresh = bench.begin();
  const Value x2 = fresh.constant(drawn("x", {1, 19, 3, 4}));
  const Value full2 = resize_bilinear(x2, 9, 12), target2 = fresh.constant(Tensor::of({1, 9, 12}, classes));
  const Value loss2 = add(softmax_cross_entropy(full2, target2, label_weight_sum(target2, 19, -1), -1),
                          dot(full2, fresh.constant(drawn("r", {1, 19, 9, 12}))));
  const std::vector<Value> also2{x2};
  CHECK(after == evaluate(fresh.differentiate(loss2, also2)[0]).to_floats());
}

TEST_CASE("an operator of a user's own") {
  OpDef twice{.name = "test.twice",
              .infer =
                  [](const Node& n) {
                    return std::vector<TensorInfo>{{n.inputs[0].dtype(), n.inputs[0].shape()}};
                  },
              .layout = layout_plain,
              .prepare_cpu =
                  [](const PrepareArgs& args) {
                    const int64_t count = args.in[0].count();
                    return Kernel{.run = [count](const KernelArgs& a) {
                      for (int64_t i = 0; i < count; ++i) a.out[0].f32()[i] = 2 * a.in[0].f32()[i];
                    }};
                  }};
  register_op(twice);
  CHECK_THROWS_WITH(register_op(twice), Contains("'test.twice'"));
  register_op({.name = "test.nowhere", .infer = twice.infer});
  Bench bench;
  bench.store.add_parameter("w", {2});
  bench.store.allocate();
  Graph& g = bench.begin();
  const Value x = g.constant(Tensor::of({2}, std::vector<float>{1, 2}));
  CHECK(evaluate(g.append("test.twice", {x})).to_floats() == std::vector<float>{2, 4});
  const Graph::Scope scope(g, "head.special");
  CHECK_THROWS_WITH(evaluate(g.append("test.nowhere", {x})),
                    Contains("head.special") && Contains("'test.nowhere'") && Contains("cpu"));
  const Value loss = dot(g.append("test.twice", {g.parameter("w")}), x);
  CHECK_THROWS_WITH(g.differentiate(loss), Contains("head.special") && Contains("'test.twice'"));
}

}  // namespace convoy
