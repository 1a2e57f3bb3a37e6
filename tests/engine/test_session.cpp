// Running plans: step after step and line by line.
#include <catch2/catch.hpp>
#include <cmath>

#include "engine/ops.h"
#include "engine/param_store.h"
#include "engine/plan_cache.h"
#include "engine/session.h"
#include "layers/module.h"
#include "tests/training_step.h"

namespace convoy {

using Catch::Contains;

namespace {

Tensor filled(const Shape& shape, float value) {
  return Tensor::of(shape, std::vector<float>(static_cast<size_t>(shape.count()), value));
}

}  // namespace

TEST_CASE("ten thousand steps line by line: flat memory, no new plan after the first") {
  Context context{{.threads = 1}};
  ParamStore store;
  const Conv2d conv({.store = store, .path = "conv"}, 3, 8, ConvOptions::square(3));
  const BatchNorm2d bn({.store = store, .path = "bn"}, 8);
  store.allocate();
  store.initialize(1);
  const Tensor image = filled({2, 3, 4, 4}, 0.5f);
  MemoryUse after_first;
  int64_t plans = 0;
  constexpr int kSteps = 10000;
  for (int step = 0; step < kSteps; ++step) {
    Graph graph(context, store);
    Builder b{graph, Mode::kTrain};
    const Value y = conv(b, graph.constant(image));
    evaluate(y);
    const Value z = relu(bn(b, y));
    evaluate(z);
    const Value loss = dot(z, z);
    evaluate(loss, {.global_step = step});
    if (step % 10 == 0) {
      graph.differentiate(loss);
      evaluate(graph.gradient_effects());
    }
    if (step == 0) {
      after_first = default_allocator()->use();
      default_allocator()->reset_peak();
      plans = context.plans().misses();
    }
  }
  const MemoryUse use = default_allocator()->use();
  CHECK(use.in_use <= after_first.in_use);
  CHECK(use.in_use + use.cached == after_first.in_use + after_first.cached);
  CHECK(use.peak <= after_first.peak);
  CHECK(context.plans().misses() == plans);
  CHECK(*store.buffers()[2].value.i64() == kSteps);
}

TEST_CASE("a value that is not finite is named with the node it comes from") {
  Context context{{.check_values = true}};
  ParamStore store;
  const auto run = [&](const std::string& scope, float bad) {
    Graph graph(context, store);
    const Value x = graph.input("x", DType::kF32, {1, 3, 2, 2});
    const Value y = sigmoid(x);
    const Graph::Scope in(graph, scope);
    Session session(graph, {scale(mul(y, graph.constant(filled({1, 3, 2, 2}, bad))), 2)});
    const Tensor image = filled({1, 3, 2, 2}, 0);
    session.bind("x", image.view().data);
    session.run({.global_step = 17});
  };
  CHECK_NOTHROW(run("decoder.first", 1));
  CHECK_THROWS_WITH(run("decoder.first", NAN), Contains("decoder.first") && Contains("mul") && Contains("nan"));
  // The plan comes from the cache, the name from this graph.
  CHECK_THROWS_WITH(run("decoder.second", INFINITY), Contains("decoder.second") && Contains("inf"));
  CHECK(context.plans().misses() == 1);
}

TEST_CASE("a label that is no class is named with image, row and column, and the step") {
  Context context;
  ParamStore store;
  Graph graph(context, store);
  const Value target = graph.input("t", DType::kI32, {2, 3, 4});
  const Value logits = graph.constant(filled({2, 5, 3, 4}, 1));
  const Graph::Scope scope(graph, "loss.out0");
  const Value loss = softmax_cross_entropy(logits, target, label_weight_sum(target, 5, -1), -1);
  Session session(graph, {loss});
  std::vector<int32_t> labels(24, 1);
  session.bind("t", labels.data());
  session.run({});
  CHECK(session.fetch(0).item() == Approx(std::log(5)));
  for (const int32_t wrong : {5, 255, -2}) {
    labels[12 + 4 + 3] = wrong;
    CHECK_THROWS_WITH(session.run({.global_step = 41}),
                      Contains("step 41") && Contains("loss.out0") && Contains("label " + std::to_string(wrong)) &&
                          Contains("image 1") && Contains("row 1") && Contains("column 3"));
  }
  std::fill(labels.begin(), labels.end(), -1);
  session.run({});
  CHECK(session.fetch(0).item() == 0);  // nothing labelled
}

TEST_CASE("inputs are bound by name, and all of them") {
  Context context;
  ParamStore store;
  Graph graph(context, store);
  const Value x = graph.input("x", DType::kF32, {2}), unused = graph.input("unused", DType::kF32, {2});
  Session session(graph, {scale(x, 2)});
  CHECK_THROWS_WITH(session.run({}), Contains("'x'") && Contains("not bound"));
  const std::vector<float> first{1, 2}, second{3, 4};
  CHECK_THROWS_WITH(session.bind("y", first.data()), Contains("'y'"));
  CHECK_THROWS_WITH(session.bind("x", nullptr), Contains("'x'"));
  CHECK_NOTHROW(session.bind("unused", first.data()));
  session.bind("x", first.data());
  session.run({});
  CHECK(session.fetch(0).to_floats() == std::vector<float>{2, 4});
  session.bind("x", second.data());
  session.run({});
  CHECK(session.fetch(0).to_floats() == std::vector<float>{6, 8});
  CHECK_THROWS_WITH(session.fetch(1), Contains("target 1"));
  CHECK(unused.shape() == Shape{2});
}

TEST_CASE("targets may be leaves, asked for twice, blocked images or parts of others") {
  Context context;
  ParamStore store;
  store.add_parameter("p", {2});
  store.allocate();
  store.value(0)[1] = 5;
  Graph graph(context, store);
  std::vector<float> image(2 * 35 * 3 * 2);
  for (size_t i = 0; i < image.size(); ++i) image[i] = static_cast<float>(i);
  const Value x = graph.input("x", DType::kF32, {2, 35, 3, 2});
  const Value y = avg_pool2d(x, {.kernel_h = 1, .kernel_w = 1, .stride_h = 1, .stride_w = 1});
  const Value part = slice_channels(y, 16, 16), whole = concat({part, y});
  Session session(graph, {x, graph.parameter("p"), y, y, part, whole});
  session.bind("x", image.data());
  session.run({});
  CHECK(session.fetch(0).to_floats() == image);
  CHECK(session.fetch(1).to_floats() == std::vector<float>{0, 5});
  CHECK(session.fetch(2).to_floats() == image);
  CHECK(session.fetch(3).to_floats() == image);
  const auto p = session.fetch(4).to_floats(), w = session.fetch(5).to_floats();
  for (size_t n = 0; n < 2; ++n)
    for (size_t i = 0; i < 16 * 6; ++i) {
      REQUIRE(p[n * 96 + i] == image[n * 210 + 96 + i]);
      REQUIRE(w[n * 306 + i] == p[n * 96 + i]);
    }
  CHECK(w.back() == image.back());
}

TEST_CASE("dropout depends on seed, step, slot, path and call, and on nothing else") {
  Context context;
  ParamStore store;
  const auto mask = [&](const StepState& step, const std::string& path, int calls, int64_t images, int64_t first) {
    Graph graph(context, store);
    const Graph::Scope scope(graph, path);
    const Value x = graph.constant(filled({4, 19, 5, 6}, 1));
    Value y;
    for (int i = 0; i < calls; ++i) y = dropout(x, 0.4);
    Graph rest(context, store);
    const Graph::Scope rest_scope(rest, path);
    if (images == 4) return evaluate(y, step).to_floats();
    StepState later = step;
    later.first_slot += first;
    return evaluate(dropout(rest.constant(filled({images, 19, 5, 6}, 1)), 0.4), later).to_floats();
  };
  const StepState base{.seed = 1, .global_step = 2, .first_slot = 8};
  const auto all = mask(base, "head", 1, 4, 0);
  const auto kept = static_cast<double>(std::count_if(all.begin(), all.end(), [](float v) { return v != 0; }));
  const auto count = static_cast<double>(all.size());
  CHECK(std::abs(kept / count - 0.6) < 5 * std::sqrt(0.24 / count));
  for (const float v : all) REQUIRE((v == 0 || v == Approx(1 / 0.6)));
  CHECK(all == mask(base, "head", 1, 4, 0));
  CHECK(all != mask({.seed = 2, .global_step = 2, .first_slot = 8}, "head", 1, 4, 0));
  CHECK(all != mask({.seed = 1, .global_step = 3, .first_slot = 8}, "head", 1, 4, 0));
  CHECK(all != mask({.seed = 1, .global_step = 2, .first_slot = 9}, "head", 1, 4, 0));
  CHECK(all != mask(base, "tail", 1, 4, 0));
  CHECK(all != mask(base, "head", 2, 4, 0));
  const auto second_half = mask(base, "head", 1, 2, 2);
  CHECK(std::equal(second_half.begin(), second_half.end(), all.begin() + static_cast<int64_t>(all.size() / 2)));
}

TEST_CASE("training steps of Fast-SCNN: the same bits for one and two threads, and from a poisoned arena") {
  const auto train = [](const ContextOptions& options, bool poisoned = false) {
    test::TrainingStep step("FastSCNN", {2, 3, 64, 96}, options);
    const auto losses = step.run(3, poisoned);
    for (const float loss : losses) CHECK(std::isfinite(loss));
    CHECK(losses[0] != losses[1]);
    return std::pair(losses, step.state());
  };
  const auto two = train({.threads = 2});
  CHECK(train({.threads = 1}) == two);
  CHECK(train({.threads = 2}, true) == two);
  CHECK(train({.threads = 2, .check_values = true}) == two);
}

TEST_CASE("training steps of BiSeNet from a poisoned arena") {
  const auto train = [](bool poisoned) {
    test::TrainingStep step("BiSeNet", {2, 3, 32, 64}, {});
    step.run(2, poisoned);
    return step.state();
  };
  CHECK(train(true) == train(false));
}

TEST_CASE("the profiler has a span per launch, under this graph's names") {
  Context context;
  ParamStore store;
  context.profiler().enable(true);
  Graph graph(context, store);
  const Graph::Scope scope(graph, "stem");
  Session session(graph, {sigmoid(scale(graph.constant(filled({3}, 1)), 2))});
  session.run({});
  session.run({});
  REQUIRE(context.profiler().spans().size() == 4);
  CHECK(context.profiler().spans()[0].name == "stem scale");
  CHECK(context.profiler().spans()[1].category == "activation");
}

}  // namespace convoy
