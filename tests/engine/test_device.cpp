// Sessions and parameters on device `emulated` beside those on the CPU.
#include <catch2/catch.hpp>

#include "engine/ops.h"
#include "engine/param_store.h"
#include "engine/session.h"
#include "tests/golden_ops.h"
#include "tests/op_runner.h"

namespace convoy::test {
namespace {

std::vector<float> drawn(const std::string& name, size_t count) {
  const golden::Stream u(name);
  std::vector<float> values;
  for (size_t i = 0; i < count; ++i) values.push_back(static_cast<float>(4 * u[i] - 2));
  return values;
}

/// Batch norm of an image, a residual, an activation and a resize, with running statistics.
struct SmallNet {
  Context context;
  ParamStore store;
  Graph graph{context, store};
  Value y;
  std::vector<Value> targets;

  explicit SmallNet(DeviceKind device, bool check_values = false)
      : context({.device = device, .threads = 1, .check_values = check_values}) {
    store.add_parameter("weight", {3}, {.a = 1.5});
    store.add_parameter("bias", {3}, {.kind = Initializer::Kind::kUniform, .a = 1});
    store.add_buffer("mean", Tensor::zeros(DType::kF32, {3}));
    store.add_buffer("var", Tensor::zeros(DType::kF32, {3}));
    store.add_buffer("count", Tensor::zeros(DType::kI64, {}));
    store.allocate();
    store.initialize(1);
    const Value x = graph.input("x", DType::kF32, {2, 3, 5, 7});
    const auto [mean, var] = bn_stats(x);
    bn_update_running(x, mean, var, graph.buffer("mean"), graph.buffer("var"), graph.buffer("count"), 0.1);
    const Value shifted = add(x, graph.constant(Tensor::of({2, 3, 5, 7}, drawn("constant", 210))));
    const Value normal = bn_apply(x, mean, var, graph.parameter("weight"), graph.parameter("bias"), 1e-5, true);
    y = resize_bilinear(relu(add(normal, shifted)), 9, 4, false);
    targets = {y, mean};
  }
};

TEST_CASE("a step on the emulated device gives the CPU's values", "[device]") {
  const bool check = GENERATE(false, true);
  const std::vector<float> x = drawn("x", 210);
  std::vector<std::vector<float>> results[2], states[2];
  for (const int d : {0, 1}) {
    SmallNet net(d == 0 ? DeviceKind::kCpu : DeviceKind::kEmulated, check);
    Session session(net.graph, net.targets);
    session.bind("x", x.data());
    for (int step = 0; step < 2; ++step) session.run({.global_step = step});
    for (size_t t = 0; t < net.targets.size(); ++t) results[d].push_back(session.fetch(t).to_floats());
    for (const Buffer& b : net.store.buffers()) states[d].push_back(b.value.to_floats());
  }
  for (size_t t = 0; t < results[0].size(); ++t) CHECK(relative_l2(results[1][t], results[0][t]) < 1e-6);
  for (size_t b = 0; b < states[0].size(); ++b) CHECK(relative_l2(states[1][b], states[0][b]) < 1e-6);
  CHECK(states[1][2] == std::vector<float>{2});
}

TEST_CASE("steps on a device copy no parameters, and what the host writes arrives", "[device]") {
  SmallNet net(DeviceKind::kEmulated);
  Session session(net.graph, net.targets);
  const std::vector<float> x = drawn("x", 210);
  session.bind("x", x.data());
  session.run({});
  const int64_t before = net.store.transfers();
  for (int step = 1; step < 4; ++step) session.run({.global_step = step});
  CHECK(net.store.transfers() == before);
  CHECK(*net.store.buffers()[2].value.i64() == 4);
  CHECK(net.store.transfers() == before + 1);

  const std::vector<float> bright = session.fetch(0).to_floats();
  std::fill_n(net.store.value(0), 3, 0.0f);
  std::fill_n(net.store.value(1), 3, -100.0f);
  session.run({.global_step = 4});
  CHECK(*std::max_element(bright.begin(), bright.end()) > 0);
  for (const float v : session.fetch(0).to_floats()) CHECK(v == 0);
}

TEST_CASE("values can be asked for line by line on a device", "[device]") {
  Context context({.device = DeviceKind::kEmulated});
  ParamStore store;
  Graph graph(context, store);
  const Value a = graph.constant(Tensor::of({1, 2, 1, 2}, std::vector<float>{1, 2, 3, 4}));
  CHECK(evaluate(add(a, a)).to_floats() == std::vector<float>{2, 4, 6, 8});
  const Value b = scale(add(a, a), 0.5);
  CHECK(evaluate(b).to_floats() == std::vector<float>{1, 2, 3, 4});
  CHECK(evaluate(mul(b, a)).to_floats() == std::vector<float>{1, 4, 9, 16});
}

TEST_CASE("devices that are not there are refused by name", "[device]") {
  CHECK_THROWS_WITH(Context({.device = DeviceKind::kCuda}),
                    Catch::Matchers::Contains("'cuda' is not part of this build"));
}

}  // namespace
}  // namespace convoy::test
