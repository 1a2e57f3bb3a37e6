// Learning rates against values worked out by hand, and what the optimizer leaves alone.
#include <catch2/catch.hpp>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "engine/lr_schedule.h"
#include "engine/optimizer.h"
#include "tests/test_device.h"

namespace convoy {

using Kind = LrSchedule::Kind;

TEST_CASE("poly schedule") {
  const LrSchedule plain{.kind = Kind::kPoly, .base = 0.01, .total_steps = 100, .power = 0.9};
  CHECK(plain.at(0) == Approx(0.01));
  CHECK(plain.at(50) == Approx(0.01 * 0.535886731268147).epsilon(1e-12));   // 0.5^0.9
  CHECK(plain.at(99) == Approx(0.01 * 0.0158489319246111).epsilon(1e-10));  // 0.01^0.9
  CHECK(plain.at(100) == plain.at(99));
  CHECK(plain.at(100000) == plain.at(99));

  const LrSchedule warm{
      .kind = Kind::kPoly, .base = 0.3, .total_steps = 110, .warmup_steps = 10, .warmup_factor = 1.0 / 3, .power = 1};
  CHECK(warm.at(0) == Approx(0.1));
  CHECK(warm.at(5) == Approx(0.2));
  CHECK(warm.at(10) == Approx(0.3));
  CHECK(warm.at(60) == Approx(0.15));
  CHECK(warm.at(109) == Approx(0.003));
}

TEST_CASE("constant warm-up") {
  const LrSchedule s{.kind = Kind::kPoly,
                     .base = 1,
                     .total_steps = 100,
                     .warmup_steps = 4,
                     .warmup_factor = 0.25,
                     .linear_warmup = false};
  CHECK(s.at(0) == 0.25);
  CHECK(s.at(3) == 0.25);
  CHECK(s.at(4) == 1);
}

TEST_CASE("cosine schedule") {
  const LrSchedule s{.kind = Kind::kCosine, .base = 0.2, .total_steps = 100};
  CHECK(s.at(0) == Approx(0.2));
  CHECK(s.at(50) == Approx(0.1));
  CHECK(s.at(25) == Approx(0.2 * 0.853553390593274));  // (1 + sqrt(1/2)) / 2
  CHECK(s.at(99) == Approx(0.2 * 0.000246719817134).epsilon(1e-6));
  CHECK(s.at(500) == s.at(99));
  const LrSchedule warm{
      .kind = Kind::kCosine, .base = 0.2, .total_steps = 100, .warmup_steps = 50, .warmup_factor = 0.5};
  CHECK(warm.at(25) == Approx(0.2 * 0.853553390593274 * 0.75));
}

TEST_CASE("step schedule") {
  const LrSchedule s{.kind = Kind::kStep, .base = 1, .total_steps = 100, .gamma = 0.1, .milestones = {30, 60, 100}};
  CHECK(s.at(0) == 1);
  CHECK(s.at(29) == 1);
  CHECK(s.at(30) == Approx(0.1));
  CHECK(s.at(60) == Approx(0.01));
  CHECK(s.at(99) == Approx(0.01));
  CHECK(s.at(100) == s.at(99));
  CHECK(s.at(1000) == s.at(99));
}

TEST_CASE("parameters without a gradient stay as they are, decay and momentum included") {
  ParamStore store;
  for (const char* name : {"a", "b", "c", "d"}) store.add_parameter(name, {5});
  store.allocate();
  store.require_gradients();
  store.require_optimizer_states({"momentum"});
  auto& parameters = store.parameters();
  parameters[0].has_gradient = parameters[2].has_gradient = parameters[3].has_gradient = true;
  parameters[3].group = 1;
  for (int64_t p = 0; p < 4; ++p)
    for (int i = 0; i < 5; ++i) {
      store.value(p)[i] = 2;
      store.gradient(p)[i] = 3;
      store.optimizer_state(0, p)[i] = 7;
    }
  Optimizer optimizer(store,
                      {{.name = "all", .weight_decay = 0.5}, {.name = "head", .lr_factor = 10, .weight_decay = 0}},
                      {.momentum = 0.5});
  optimizer.resume(4);
  optimizer.step(0.1);
  CHECK(optimizer.steps_taken() == 5);
  for (int i = 0; i < 5; ++i) {
    CHECK(store.value(0)[i] == Approx(2 - 0.1 * (0.5 * 7 + 3 + 0.5 * 2)));
    CHECK(store.value(1)[i] == 2);
    CHECK(store.optimizer_state(0, 1)[i] == 7);
    CHECK(store.value(2)[i] == store.value(0)[i]);
    CHECK(store.value(3)[i] == Approx(2 - 1.0 * (0.5 * 7 + 3)));
  }
}

TEST_CASE("the first step starts the velocity, Nesterov looks ahead") {
  for (const bool nesterov : {false, true}) {
    ParamStore store;
    store.add_parameter("a", {1});
    store.allocate();
    store.require_gradients();
    store.parameters()[0].has_gradient = true;
    store.value(0)[0] = 1;
    Optimizer optimizer(store, {{.name = "all"}}, {.momentum = 0.5, .nesterov = nesterov});
    store.gradient(0)[0] = 2;
    optimizer.step(0.1);
    const double first = nesterov ? 1 - 0.1 * (2 + 0.5 * 2) : 1 - 0.1 * 2;
    CHECK(store.value(0)[0] == Approx(first));
    store.gradient(0)[0] = 4;
    optimizer.step(0.1);  // v = 0.5*2 + 4 = 5
    CHECK(store.value(0)[0] == Approx(first - 0.1 * (nesterov ? 4 + 0.5 * 5 : 5)));
  }
}

TEST_CASE("all optimizers have PyTorch's values, clipped gradients included", "[device]") {
  std::ifstream file(CONVOY_TEST_DIR "/golden/optimizers.json");
  const nlohmann::json golden = nlohmann::json::parse(file);
  const std::vector<float> start = golden.at("start");
  const auto count = static_cast<int64_t>(start.size());
  const auto distance = [&](const float* got, const std::vector<double>& want) {
    double error = 0, norm = 0;
    for (size_t i = 0; i < want.size(); ++i) {
      error += (got[i] - want[i]) * (got[i] - want[i]);
      norm += want[i] * want[i];
    }
    return std::sqrt(error / norm);
  };
  Context context(test::on_test_device());
  for (const auto& c : golden.at("cases")) {
    INFO(c.at("name").get<std::string>());
    ParamStore store;
    store.add_parameter("untrained", {5});
    store.add_parameter("p", {count});
    store.allocate();
    store.parameters()[1].has_gradient = true;
    Optimizer optimizer(store, {{.name = "all", .weight_decay = c.at("weight_decay")}},
                        {.kind = update_kind(c.at("kind")),
                         .momentum = c.value("momentum", 0.9),
                         .nesterov = c.value("nesterov", false),
                         .beta1 = c.value("beta1", 0.9),
                         .beta2 = c.value("beta2", 0.999),
                         .alpha = c.value("alpha", 0.9),
                         .eps = c.value("eps", 1e-8),
                         .max_norm = c.at("clip_norm")});
    store.require_gradients();
    std::copy(start.begin(), start.end(), store.value(1));
    for (size_t step = 0; step < golden.at("gradients").size(); ++step) {
      const std::vector<float> gradient = golden.at("gradients").at(step);
      std::copy(gradient.begin(), gradient.end(), store.gradient(1));
      if (context.device()) store.on_device(*context.device());
      const int64_t transfers = store.transfers();
      optimizer.step(c.at("lr"));
      CHECK(store.transfers() == transfers);
      CHECK(distance(store.value(1), c.at("values").at(step)) < 1e-6);
    }
    for (size_t k = 0; k < store.optimizer_states().size(); ++k) {
      const std::string name = store.optimizer_states()[k].name;
      INFO(name);
      CHECK(distance(store.optimizer_state(k, 1), c.at("states").at(name == "momentum" ? "momentum_buffer" : name)) <
            1e-6);
      CHECK(store.optimizer_state(k, 0)[0] == 0);
    }
    CHECK(store.optimizer_states().size() == c.at("states").size());
  }
}

TEST_CASE("optimizers of other kinds and unknown ones are refused") {
  ParamStore store;
  store.add_parameter("a", {1});
  store.allocate();
  const Optimizer optimizer(store, {{.name = "all"}}, {.kind = UpdateKind::kAdam});
  CHECK_THROWS_WITH(Optimizer(store, {{.name = "all"}}, {}), Catch::Contains("momentum") && Catch::Contains("exp_avg"));
  CHECK_THROWS_WITH(update_kind("lion"), Catch::Contains("'lion'") && Catch::Contains("adamw"));
}

TEST_CASE("groups that do not exist are refused") {
  ParamStore store;
  store.add_parameter("a", {1});
  store.parameters()[0].group = 2;
  CHECK_THROWS_WITH(Optimizer(store, {{.name = "all"}}, {}), Catch::Contains("'a'") && Catch::Contains("2"));
  CHECK_THROWS_WITH(Optimizer(store, {}, {}), Catch::Contains("group"));
}

}  // namespace convoy
