// Every operator of the table, through graph, plan and session.
#include <catch2/catch.hpp>

#include "tests/op_runner.h"

namespace convoy::test {

namespace {

/// Runs a check for every case; an exception fails that case alone, by name.
void for_each_case(const std::function<void(const OpCase&)>& check) {
  for (const OpCase& c : op_cases()) {
    INFO(c.name);
    try {
      check(c);
    } catch (const std::exception& e) {
      FAIL_CHECK(c.name << ": " << e.what());
    }
  }
}

double dot_of(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return sum;
}

}  // namespace

TEST_CASE("operator gradients are the limits of differences", "[device]") {
  constexpr double kStep = 0.02;
  for_each_case([&](const OpCase& c) {
    OpRun op(c);
    const OpResult base = op.run();
    for (size_t i = 0; i < c.inputs.size(); ++i) {
      if (!c.inputs[i].differentiable) continue;
      INFO("gradient of " << c.inputs[i].name);
      const std::vector<float>& gradient = base.gradients[i];
      REQUIRE(gradient.size() == c.inputs[i].values.size());
      const golden::Stream u("direction " + c.name + c.inputs[i].name);
      std::vector<float> direction(gradient.size());
      for (size_t k = 0; k < direction.size(); ++k) direction[k] = u[k] < 0.5 ? -1.0f : 1.0f;
      const std::vector<float> original = op.values(i);
      std::vector<float> plus(original), minus(original);
      for (size_t k = 0; k < direction.size(); ++k) {
        plus[k] += static_cast<float>(kStep) * direction[k];
        minus[k] -= static_cast<float>(kStep) * direction[k];
      }
      op.values(i) = plus;
      const auto high = op.run_outputs();
      op.values(i) = minus;
      const auto low = op.run_outputs();
      op.values(i) = original;
      double difference = 0;
      for (size_t o = 0; o < high.size(); ++o) {
        const std::vector<float> upstream = op.upstream(o).to_floats();
        difference += (dot_of(high[o], upstream) - dot_of(low[o], upstream)) / (2 * kStep);
      }
      const double wanted = dot_of(gradient, direction), size = std::sqrt(dot_of(gradient, gradient));
      CHECK(size > 0);
      CHECK(std::abs(difference - wanted) <= 1e-2 * std::max(size, 1e-3));
    }
  });
}

TEST_CASE("operators give the same bits for one and two threads", "[device]") {
  for_each_case([](const OpCase& c) {
    const OpResult one = OpRun(c, {.threads = 1}).run(), two = OpRun(c, {.threads = 2}).run();
    CHECK(one.outputs == two.outputs);
    CHECK(one.gradients == two.gradients);
  });
}

TEST_CASE("plain convolutions agree with the fast ones", "[device]") {
  for_each_case([](const OpCase& c) {
    const OpResult fast = OpRun(c).run(), plain = OpRun(c, {.direct_conv = true}).run();
    for (size_t o = 0; o < fast.outputs.size(); ++o) CHECK(relative_l2(fast.outputs[o], plain.outputs[o]) < 2e-6);
    for (size_t i = 0; i < c.inputs.size(); ++i) {
      INFO("gradient of " << c.inputs[i].name);
      CHECK(relative_l2(fast.gradients[i], plain.gradients[i]) < 2e-6);
    }
  });
}

TEST_CASE("operators do not care which values stay in memory", "[device]") {
  for_each_case([](const OpCase& c) {
    OpRun op(c);
    const OpResult all = op.run();
    CHECK(op.run_outputs() == all.outputs);
    CHECK(op.run_gradients().gradients == all.gradients);
  });
}

TEST_CASE("operators work on slices and into concats", "[device]") {
  for_each_case([](const OpCase& c) {
    const OpResult alone = OpRun(c).run(), embedded = OpRun(c, {}, {.slices = true}).run();
    for (size_t o = 0; o < alone.outputs.size(); ++o) CHECK(relative_l2(embedded.outputs[o], alone.outputs[o]) < 1e-6);
    for (size_t i = 0; i < c.inputs.size(); ++i) {
      INFO("gradient of " << c.inputs[i].name);
      CHECK(relative_l2(embedded.gradients[i], alone.gradients[i]) < 1e-6);
    }
  });
}

}  // namespace convoy::test
