// Exact sums: the same bits whatever the order and the division into parts.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <random>

#include "engine/exact_sum.h"

namespace convoy {

namespace {

std::vector<double> sum(const std::vector<std::vector<double>>& parts, int64_t most = 64) {
  NullCommunicator alone;
  std::vector<double> result(parts.at(0).size());
  exact_sum(alone, parts, most, result, "test");
  return result;
}

}  // namespace

TEST_CASE("exact sums do not depend on the order of parts") {
  std::mt19937_64 random(1);
  std::normal_distribution<double> normal;
  std::vector<std::vector<double>> parts(9, std::vector<double>(100));
  for (auto& part : parts)
    for (size_t i = 0; i < part.size(); ++i) part[i] = normal(random) * std::pow(10.0, static_cast<double>(i % 7) - 3);
  const std::vector<double> first = sum(parts);
  for (size_t i = 0; i < first.size(); ++i) {
    double plain = 0;
    for (const auto& part : parts) plain += part[i];
    CHECK(std::abs(first[i] - plain) < 1e-12);
  }
  for (int round = 0; round < 5; ++round) {
    std::shuffle(parts.begin(), parts.end(), random);
    CHECK(sum(parts) == first);
  }
}

TEST_CASE("exact sums at the ends of the range") {
  CHECK(sum({{0.0, 0.0}}) == std::vector<double>{0, 0});
  const double largest = std::numeric_limits<float>::max(), smallest = std::numeric_limits<float>::denorm_min();
  CHECK(sum({{largest}, {largest}, {-largest}}) == std::vector<double>{largest});
  CHECK(sum({{smallest}, {smallest}}) == std::vector<double>{2 * smallest});
  CHECK(sum({{1e-320}, {1e-320}})[0] < 1e-300);
  CHECK(sum(std::vector<std::vector<double>>(64, {1.0})) == std::vector<double>{64});
}

TEST_CASE("exact sums of numbers that are not finite are NaN") {
  for (const double bad : {std::nan(""), std::numeric_limits<double>::infinity()})
    for (const double x : sum({{1.0, 2.0}, {bad, 0.0}})) CHECK(std::isnan(x));
}

TEST_CASE("exact sums refuse more parts than were announced") {
  CHECK_THROWS_WITH(sum({{1.0}, {1.0}}, 1), Catch::Contains("at most 1"));
}

}  // namespace convoy
