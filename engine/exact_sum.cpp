#include "engine/exact_sum.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "engine/error.h"

namespace convoy {

void exact_sum(Communicator& communicator, std::span<const std::vector<double>> parts, int64_t most_parts,
               std::span<double> result, const std::string& name) {
  CONVOY_CHECK(static_cast<int64_t>(parts.size()) <= most_parts, "{}: {} parts, at most {} were announced", name,
               parts.size(), most_parts);
  // A power of two above every magnitude travels as its exponent; numbers that are not finite have one of their own.
  constexpr int64_t kZero = std::numeric_limits<int64_t>::min(), kNotFinite = std::numeric_limits<int64_t>::max();
  double largest = 0, not_finite = 0;
  for (const std::vector<double>& part : parts)
    for (const double x : part) {
      largest = std::max(largest, std::abs(x));
      not_finite += x * 0;  // NaN from the first that is not finite
    }
  int64_t exponent = kZero;
  if (not_finite != 0) {
    exponent = kNotFinite;
  } else if (largest > 0) {
    int e = 0;
    std::frexp(largest, &e);
    exponent = e;
  }
  communicator.all_reduce({&exponent, 1}, ReduceOp::kMax, name + ", scale");
  const bool finite = exponent != kNotFinite;
  const int bits = 62 - std::bit_width(static_cast<uint64_t>(most_parts));
  constexpr int kLargestShift = 1000;  // what is smaller than that allows is zero
  const int shift = finite && exponent != kZero ? std::min(bits - static_cast<int>(exponent), kLargestShift) : 0;
  const double scale = std::ldexp(1.0, shift);  // a power of two: products are exact

  std::vector<int64_t> sums(result.size(), 0);
  if (finite)
    for (const std::vector<double>& part : parts)
      for (size_t i = 0; i < part.size(); ++i) sums[i] += std::llrint(part[i] * scale);
  communicator.all_reduce(sums, ReduceOp::kSum, name);
  for (size_t i = 0; i < result.size(); ++i)
    result[i] = finite ? std::ldexp(static_cast<double>(sums[i]), -shift) : std::numeric_limits<double>::quiet_NaN();
}

}  // namespace convoy
