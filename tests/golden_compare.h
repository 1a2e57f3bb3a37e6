// Compares an operator with the golden figures of its cases, through graph, plan and session: outputs and gradients.
#pragma once
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/op_runner.h"

namespace convoy::test {

using Values = std::vector<Value>;
using Build = std::function<Values(Graph&, const Values&)>;

/// Relative L2 distance allowed: float32 rounding against results computed in double.
constexpr double kLimit = 1e-5;

/// Norm of a gradient that is zero but for rounding (a bias that softmax cancels): compared absolutely.
constexpr double kZeroNorm = 1e-12;

inline double l2_norm(const std::vector<float>& values) {
  double sum = 0;
  for (const float v : values) sum += static_cast<double>(v) * static_cast<double>(v);
  return std::sqrt(sum);
}

/// Ids of the golden cases that this process has compared.
inline std::set<std::string>& compared_cases() {
  static std::set<std::string> ids;
  return ids;
}

/// The golden case as a case of this engine. Inputs whose name is in `integers` are bound as i32.
inline OpCase case_of(const golden::OpCase& g, Build build, const std::vector<std::string>& integers = {"t"}) {
  OpCase c{.name = g.id, .inputs = {}, .build = std::move(build)};
  for (const golden::Array& a : g.inputs) {
    const bool differentiable =
        std::any_of(g.gradients.begin(), g.gradients.end(), [&](const auto& d) { return d.name == a.name; });
    const bool integer = std::find(integers.begin(), integers.end(), a.name) != integers.end();
    c.inputs.push_back({.name = a.name,
                        .shape = Shape(a.shape),
                        .values = a.values,
                        .differentiable = differentiable,
                        .dtype = integer ? DType::kI32 : DType::kF32});
  }
  for (const golden::Array& y : g.outputs)
    if (!y.upstream.empty()) c.upstream.push_back(y.upstream);
  return c;
}

/// Checks the outputs that have an upstream gradient, and the gradients. `build` makes these outputs of the inputs, in
/// the file's order.
inline void compare(const golden::OpCase& g, const Build& build, const std::vector<std::string>& integers = {"t"},
                    double limit = kLimit) {
  INFO(g.id);
  compared_cases().insert(g.id);
  try {
    const OpCase c = case_of(g, build, integers);
    const OpResult r = OpRun(c).run();
    size_t o = 0;
    for (const golden::Array& y : g.outputs) {
      if (y.upstream.empty()) continue;
      INFO("output " << y.name);
      REQUIRE(o < r.outputs.size());
      CHECK(relative_l2(r.outputs[o++], y.values) < limit);
    }
    CHECK(o == r.outputs.size());
    for (size_t i = 0; i < c.inputs.size(); ++i) {
      if (!c.inputs[i].differentiable) continue;
      INFO("gradient of " << c.inputs[i].name);
      const std::vector<float>& wanted = g.gradient(c.inputs[i].name).values;
      if (l2_norm(wanted) < kZeroNorm)
        CHECK(l2_norm(r.gradients[i]) < limit);
      else
        CHECK(relative_l2(r.gradients[i], wanted) < limit);
    }
  } catch (const std::exception& e) {
    FAIL_CHECK(g.id << ": " << e.what());
  }
}

/// Attribute `key`, the i-th of a list or the same for all i.
inline int64_t at(const nlohmann::json& attrs, const char* key, size_t i) {
  return attrs.at(key).is_array() ? attrs.at(key)[i].get<int64_t>() : attrs.at(key).get<int64_t>();
}

/// The builder of an operator of one input.
inline Build one(std::function<Value(Value)> op) {
  return [op = std::move(op)](Graph&, const Values& v) { return Values{op(v[0])}; };
}

}  // namespace convoy::test
