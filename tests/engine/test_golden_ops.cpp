// Operators against the reference's figures (tests/golden/ops.json), through graph, plan and session.
#include <catch2/catch.hpp>

#include <set>

#include "engine/optimizer.h"
#include "layers/losses.h"
#include "tests/golden_compare.h"

namespace convoy::test {

namespace {

PoolOptions pool_of(const nlohmann::json& a) {
  return {.kernel_h = at(a, "kernel", 0),
          .kernel_w = at(a, "kernel", 1),
          .stride_h = at(a, "stride", 0),
          .stride_w = at(a, "stride", 1),
          .pad_h = at(a, "padding", 0),
          .pad_w = at(a, "padding", 1),
          .ceil_mode = a.at("ceil_mode"),
          .count_include_pad = a.value("count_include_pad", true)};
}

}  // namespace

TEST_CASE("convolutions have the reference's values", "[device]") {
  const auto cases = golden::op_cases_of("conv2d");
  CHECK(cases.size() >= 20);
  for (const golden::OpCase& g : cases) {
    const Conv2dOptions o{.stride_h = at(g.attrs, "stride", 0),
                          .stride_w = at(g.attrs, "stride", 1),
                          .pad_h = at(g.attrs, "padding", 0),
                          .pad_w = at(g.attrs, "padding", 1),
                          .dilation_h = at(g.attrs, "dilation", 0),
                          .dilation_w = at(g.attrs, "dilation", 1),
                          .groups = g.attrs.at("groups")};
    compare(g, [o](Graph&, const Values& v) { return Values{conv2d(v[0], v[1], v.size() > 2 ? v[2] : Value{}, o)}; });
  }
}

TEST_CASE("batch norms have the reference's values and running statistics", "[device]") {
  for (const golden::OpCase& g : golden::op_cases_of("batch_norm")) {
    const Shape shape(g.input("x").shape);
    const bool train = g.attrs.at("train");
    const double eps = g.attrs.at("eps"), momentum = g.attrs.at("momentum");
    compare(g, [=](Graph&, const Values& v) {
      const Value x = as_image(v[0]);
      if (!train) return Values{reshape(bn_apply(x, v[3], v[4], v[1], v[2], eps, false), shape)};
      const auto [mean, var] = bn_stats(x);
      return Values{reshape(bn_apply(x, mean, var, v[1], v[2], eps, true), shape)};
    });
    if (!train) continue;
    INFO(g.id);
    Context context{on_test_device()};
    ParamStore store;
    const golden::Array& mean = g.input("running_mean");
    store.add_buffer("mean", Tensor::of(Shape(mean.shape), mean.values));
    store.add_buffer("var", Tensor::of(Shape(mean.shape), g.input("running_var").values));
    store.add_buffer("count", Tensor::zeros(DType::kI64, {}));
    Graph graph(context, store);
    const Value x = as_image(graph.constant(Tensor::of(shape, g.input("x").values)));
    const auto [batch_mean, batch_var] = bn_stats(x);
    bn_update_running(x, batch_mean, batch_var, graph.buffer("mean"), graph.buffer("var"), graph.buffer("count"),
                      momentum);
    evaluate(batch_mean);
    CHECK(relative_l2(store.buffers()[0].value.to_floats(), g.output("new_running_mean").values) < kLimit);
    CHECK(relative_l2(store.buffers()[1].value.to_floats(), g.output("new_running_var").values) < kLimit);
    CHECK(*store.buffers()[2].value.i64() == 1);
  }
}

TEST_CASE("activations have the reference's values", "[device]") {
  compare(golden::op_case("relu"), one(relu));
  compare(golden::op_case("relu6"), one(relu6));
  compare(golden::op_case("sigmoid"), one(sigmoid));
}

TEST_CASE("pooling has the reference's values", "[device]") {
  for (const golden::OpCase& g : golden::op_cases_of("max_pool2d")) {
    const PoolOptions o = pool_of(g.attrs);
    const bool unpool = g.attrs.value("unpool", false);
    compare(g, [=](Graph&, const Values& v) {
      const auto [y, index] = max_pool2d(v[0], o);
      Values outputs{y};
      if (unpool) outputs.push_back(max_unpool2d(v[1], index, v[0].shape()[2], v[0].shape()[3]));
      return outputs;
    });
    INFO(g.id);
    Context context{on_test_device()};
    ParamStore store;
    Graph graph(context, store);
    const Value x = graph.constant(Tensor::of(Shape(g.input("x").shape), g.input("x").values));
    CHECK(evaluate(max_pool2d(x, o).second).to_floats() == g.output("index").values);
  }
  for (const golden::OpCase& g : golden::op_cases_of("avg_pool2d"))
    compare(g, one([o = pool_of(g.attrs)](Value x) { return avg_pool2d(x, o); }));
  for (const golden::OpCase& g : golden::op_cases_of("adaptive_avg_pool2d"))
    compare(g, one([h = at(g.attrs, "output", 0), w = at(g.attrs, "output", 1)](Value x) {
              return adaptive_avg_pool2d(x, h, w);
            }));
}

TEST_CASE("cross entropy has the reference's values", "[device]") {
  for (const golden::OpCase& g : golden::op_cases_of("cross_entropy")) {
    const int64_t ignore = g.attrs.at("ignore_index"), classes = g.input("x").shape[1];
    compare(g, [=](Graph&, const Values& v) {
      const Value weight = v.size() > 2 ? v[2] : Value{};
      return Values{softmax_cross_entropy(v[0], v[1], label_weight_sum(v[1], classes, ignore, weight), ignore, weight)};
    });
  }
  for (const golden::OpCase& g : golden::op_cases_of("mix_softmax_ce")) {
    const LossOptions o{
        .aux = g.attrs.at("aux"), .aux_weight = g.attrs.value("aux_weight", 0.4), .ignore = g.attrs.at("ignore_index")};
    compare(g, [o](Graph&, const Values& v) {
      return Values{mixed_softmax_cross_entropy({{"out0", v[0]}, {"out1", v[1]}}, v[2], o)};
    });
  }
}

TEST_CASE("SGD has the reference's values", "[device]") {
  const golden::OpCase& g = golden::op_case("sgd");
  compared_cases().insert(g.id);
  ParamStore store;
  store.add_parameter("p", Shape(g.input("p").shape));
  store.allocate();
  store.require_gradients();
  store.parameters()[0].has_gradient = true;
  const auto put = [](const std::vector<float>& from, float* to) { std::copy(from.begin(), from.end(), to); };
  put(g.input("p").values, store.value(0));
  Optimizer optimizer(store, {{.name = "all", .weight_decay = g.attrs.at("weight_decay")}},
                      {.momentum = g.attrs.at("momentum"), .nesterov = g.attrs.at("nesterov")});
  for (const int step : {0, 1, 2}) {
    put(g.input("g" + std::to_string(step)).values, store.gradient(0));
    optimizer.step(g.attrs.at("lr"));
    const std::vector<float> p(store.value(0), store.value(0) + g.input("p").count());
    CHECK(relative_l2(p, g.output("p" + std::to_string(step + 1)).values) < 1e-6);
  }
}

// Test cases run in the order of the files' names and of their lines, so this one, in the last file that compares
// golden cases, sees what all have done.
TEST_CASE("no golden case is left out", "[device]") {
  const bool all_ran = !Catch::getCurrentContext().getConfig()->hasTestFilters() || test_device() != DeviceKind::kCpu;
  std::set<std::string> compared_ops;
  for (const golden::OpCase& g : golden::op_cases())
    if (compared_cases().count(g.id)) compared_ops.insert(g.op);
  for (const golden::OpCase& g : golden::op_cases()) {
    if (!all_ran && !compared_ops.count(g.op)) continue;
    INFO("operator " << g.op << ", case " << g.id);
    CHECK(compared_cases().count(g.id) == 1);
  }
}

}  // namespace convoy::test
