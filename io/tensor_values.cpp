#include "io/tensor_values.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "engine/error.h"

namespace convoy {
namespace {

template <class T>
T load(const void* values, int64_t i) {
  T value;
  std::memcpy(&value, static_cast<const std::byte*>(values) + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

/// A small float of `exponent_bits` and `mantissa_bits` whose top exponent is infinity and NaN.
double small_float(uint32_t bits, int exponent_bits, int mantissa_bits) {
  const int top = (1 << exponent_bits) - 1, bias = top / 2;
  const int exponent = static_cast<int>(bits >> mantissa_bits) & top;
  const int mantissa = static_cast<int>(bits) & ((1 << mantissa_bits) - 1);
  const bool negative = bits >> (exponent_bits + mantissa_bits) & 1;
  double value;
  if (exponent == top)
    value = mantissa ? NAN : INFINITY;
  else if (exponent > 0)
    value = std::ldexp((1 << mantissa_bits) + mantissa, exponent - bias - mantissa_bits);
  else
    value = std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return negative ? -value : value;
}

/// Four exponent bits, no infinity: the top exponent holds numbers, too, and only all ones are NaN.
double float8_e4m3(uint8_t bits) {
  if ((bits & 0x7f) == 0x7f) return NAN;
  const int exponent = (bits >> 3) & 15, mantissa = bits & 7;
  const double value = exponent ? std::ldexp(8 + mantissa, exponent - 10) : std::ldexp(mantissa, -9);
  return bits & 0x80 ? -value : value;
}

template <ElementType dtype>
double value(const void* values, int64_t i) {
  if constexpr (dtype == ElementType::kF32 || dtype == ElementType::kC64) return load<float>(values, i);
  if constexpr (dtype == ElementType::kF64 || dtype == ElementType::kC128) return load<double>(values, i);
  if constexpr (dtype == ElementType::kF16) return small_float(load<uint16_t>(values, i), 5, 10);
  if constexpr (dtype == ElementType::kBF16)
    return std::bit_cast<float>(static_cast<uint32_t>(load<uint16_t>(values, i)) << 16);
  if constexpr (dtype == ElementType::kF8E4M3) return float8_e4m3(load<uint8_t>(values, i));
  if constexpr (dtype == ElementType::kF8E5M2) return small_float(load<uint8_t>(values, i), 5, 2);
  if constexpr (dtype == ElementType::kI64) return static_cast<double>(load<int64_t>(values, i));
  if constexpr (dtype == ElementType::kI32) return load<int32_t>(values, i);
  if constexpr (dtype == ElementType::kI16) return load<int16_t>(values, i);
  if constexpr (dtype == ElementType::kI8) return load<int8_t>(values, i);
  if constexpr (dtype == ElementType::kU64) return static_cast<double>(load<uint64_t>(values, i));
  if constexpr (dtype == ElementType::kU32) return load<uint32_t>(values, i);
  if constexpr (dtype == ElementType::kU16) return load<uint16_t>(values, i);
  if constexpr (dtype == ElementType::kU8) return load<uint8_t>(values, i);
  if constexpr (dtype == ElementType::kBool) return load<uint8_t>(values, i) ? 1 : 0;
}

/// Calls f with the function that reads elements of the type.
template <class F>
auto with_reader(ElementType dtype, F&& f) {
  switch (dtype) {
    case ElementType::kF32:
      return f(value<ElementType::kF32>);
    case ElementType::kF16:
      return f(value<ElementType::kF16>);
    case ElementType::kBF16:
      return f(value<ElementType::kBF16>);
    case ElementType::kF64:
      return f(value<ElementType::kF64>);
    case ElementType::kI64:
      return f(value<ElementType::kI64>);
    case ElementType::kI32:
      return f(value<ElementType::kI32>);
    case ElementType::kU8:
      return f(value<ElementType::kU8>);
    case ElementType::kI16:
      return f(value<ElementType::kI16>);
    case ElementType::kI8:
      return f(value<ElementType::kI8>);
    case ElementType::kBool:
      return f(value<ElementType::kBool>);
    case ElementType::kU16:
      return f(value<ElementType::kU16>);
    case ElementType::kU32:
      return f(value<ElementType::kU32>);
    case ElementType::kU64:
      return f(value<ElementType::kU64>);
    case ElementType::kC64:
      return f(value<ElementType::kC64>);
    case ElementType::kC128:
      return f(value<ElementType::kC128>);
    case ElementType::kF8E4M3:
      return f(value<ElementType::kF8E4M3>);
    case ElementType::kF8E5M2:
      return f(value<ElementType::kF8E5M2>);
  }
  fail("an element type of number {}", static_cast<int>(dtype));
}

}  // namespace

double value_at(ElementType dtype, const void* values, int64_t i) {
  return with_reader(dtype, [&](auto* read) { return read(values, i); });
}

std::vector<float> to_floats(const NamedTensor& tensor) {
  CONVOY_CHECK(element_parts(tensor.dtype) == 1, "tensor \"{}\" is of complex numbers, which no network here has",
               tensor.name);
  const int64_t count = tensor.count();
  std::vector<float> floats(static_cast<size_t>(count));
  with_reader(tensor.dtype, [&](auto* read) {
    for (int64_t i = 0; i < count; ++i) floats[static_cast<size_t>(i)] = static_cast<float>(read(tensor.values(), i));
  });
  return floats;
}

void require_usable_values(const NamedTensor& tensor, const std::string& file) {
  if (element_parts(tensor.dtype) != 1) return;
  const bool is_variance = tensor.name.ends_with("running_var");
  const int64_t count = tensor.count();
  const auto refuse = [&](int64_t i, double value, const char* why) {
    std::vector<int64_t> index(tensor.shape.size());
    for (size_t k = index.size(); k-- > 0; i /= tensor.shape[k]) index[k] = i % tensor.shape[k];
    fail("{}: tensor \"{}\" holds {} at ({}), {}", file, tensor.name, value, fmt::join(index, ", "), why);
  };
  with_reader(tensor.dtype, [&](auto* read) {
    for (int64_t i = 0; i < count; ++i) {
      const double value = read(tensor.values(), i);
      if (!std::isfinite(value)) refuse(i, value, "which is not finite");
      if (std::abs(value) > std::numeric_limits<float>::max()) refuse(i, value, "which float32 cannot hold");
      if (is_variance && value < 0) refuse(i, value, "and a variance is not negative");
    }
  });
}

TensorSummary summarize(const NamedTensor& tensor) {
  TensorSummary summary{tensor.name, tensor.dtype, tensor.shape, 0, {}};
  const int64_t parts = element_parts(tensor.dtype), count = tensor.count() * parts;
  with_reader(tensor.dtype, [&](auto* read) {
    double sum = 0;
    for (int64_t i = 0; i < count; ++i) {
      const double value = read(tensor.values(), i);
      sum += value * value;
      if (i < 4 * parts) summary.first.push_back(value);
    }
    summary.l2 = std::sqrt(sum);
  });
  return summary;
}

}  // namespace convoy
