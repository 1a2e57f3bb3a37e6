// What an operator case is, and the inputs it is made of.
#pragma once
#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "engine/ops.h"
#include "tests/golden_ops.h"

namespace convoy::test {

/// A graph input of a case, its values in row-major order; labels are i32 and take no part in gradients.
struct OpInput {
  std::string name;
  Shape shape;
  std::vector<float> values;
  bool differentiable = true;
  DType dtype = DType::kF32;
};

struct OpCase {
  std::string name;
  std::vector<OpInput> inputs;
  /// The operator's differentiable outputs.
  std::function<std::vector<Value>(Graph&, const std::vector<Value>&)> build;
  /// Gradient that flows into each output; empty: drawn from the case's name.
  std::vector<std::vector<float>> upstream = {};
};

/// Uniform in -scale..scale.
inline OpInput sym(const std::string& name, const Shape& shape, double scale = 1) {
  const golden::Stream u("op cases " + name + shape.str());
  OpInput in{.name = name, .shape = shape, .values = {}};
  for (int64_t i = 0; i < shape.count(); ++i)
    in.values.push_back(static_cast<float>((2 * u[static_cast<uint64_t>(i)] - 1) * scale));
  return in;
}

/// Uniform in low..high.
inline OpInput between(const std::string& name, const Shape& shape, double low, double high) {
  OpInput in = sym(name, shape, (high - low) / 2);
  for (float& x : in.values) x += static_cast<float>((low + high) / 2);
  return in;
}

/// Values at least 0.1 from each other in every stretch of 97, and from multiples of 0.5: away from the kinks of
/// maxima and of activations.
inline OpInput spaced(const std::string& name, const Shape& shape, double low = -5) {
  OpInput in{.name = name, .shape = shape, .values = {}};
  for (int64_t i = 0; i < shape.count(); ++i) {
    const auto place = static_cast<double>(i * 37 % 97);
    in.values.push_back(static_cast<float>(low + 0.25 + 0.5 * std::floor(place / 3) + 0.1 * (std::fmod(place, 3) - 1)));
  }
  return in;
}

/// The given values over and over.
inline OpInput cycle(const std::string& name, const Shape& shape, const std::vector<float>& of) {
  OpInput in{.name = name, .shape = shape, .values = {}};
  for (int64_t i = 0; i < shape.count(); ++i) in.values.push_back(of[static_cast<size_t>(i) % of.size()]);
  return in;
}

/// Labels 0..classes-1, about a tenth of them `ignore`.
inline OpInput labels(const Shape& shape, int64_t classes, int64_t ignore) {
  const golden::Stream u("labels" + shape.str()), v("ignored" + shape.str());
  OpInput in{.name = "target", .shape = shape, .values = {}, .differentiable = false, .dtype = DType::kI32};
  for (uint64_t i = 0; i < static_cast<uint64_t>(shape.count()); ++i)
    in.values.push_back(
        static_cast<float>(v[i] < 0.1 ? static_cast<double>(ignore) : std::floor(u[i] * static_cast<double>(classes))));
  return in;
}

inline OpInput constant(OpInput in) {
  in.differentiable = false;
  return in;
}

/// An operator of one input.
inline OpCase unary(const std::string& name, OpInput x, std::function<Value(Value)> op) {
  return {.name = name, .inputs = {std::move(x)}, .build = [op = std::move(op)](Graph&, const std::vector<Value>& v) {
            return std::vector<Value>{op(v[0])};
          }};
}

/// An operator of two inputs.
inline OpCase binary(const std::string& name, OpInput a, OpInput b, std::function<Value(Value, Value)> op) {
  return {.name = name,
          .inputs = {std::move(a), std::move(b)},
          .build = [op = std::move(op)](Graph&, const std::vector<Value>& v) {
            return std::vector<Value>{op(v[0], v[1])};
          }};
}

}  // namespace convoy::test
