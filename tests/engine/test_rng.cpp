// Random numbers: published vectors of the generator and the ranges of what is drawn from it.
#include <catch2/catch.hpp>
#include <cmath>

#include "engine/rng.h"

namespace convoy {

// Known-answer vectors of Philox4x32-10 from Random123 (Salmon et al. 2011).
TEST_CASE("Philox gives its published words") {
  using Words = std::array<uint32_t, 4>;
  CHECK(philox(0, 0, 0) == Words{0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u});
  constexpr uint64_t kOnes = ~uint64_t{0};
  CHECK(philox(kOnes, kOnes, kOnes) == Words{0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu});
  CHECK(philox(0x299f31d0a4093822u, 0x0370734413198a2eu, 0x85a308d3243f6a88u) ==
        Words{0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u});
}

TEST_CASE("random streams stay in their ranges and reach all of them") {
  RandomStream random(7, "test", 3);
  double sum = 0, squares = 0, low = 1, high = 0;
  constexpr int kDraws = 100000;
  for (int i = 0; i < kDraws; ++i) {
    const double u = static_cast<double>(random.uniform());
    REQUIRE((u >= 0 && u < 1));
    low = std::min(low, u);
    high = std::max(high, u);
    const double x = random.uniform(-3.0, 5.0);
    REQUIRE((x >= -3 && x < 5));
    const double n = random.normal();
    REQUIRE(std::isfinite(n));
    sum += n;
    squares += n * n;
  }
  CHECK(low < 1e-3);
  CHECK(high > 1 - 1e-3);
  CHECK(std::abs(sum / kDraws) < 5 / std::sqrt(double{kDraws}));
  CHECK(std::abs(squares / kDraws - 1) < 5 * std::sqrt(2.0 / kDraws));
}

TEST_CASE("random integers include both ends and are even") {
  RandomStream random(1, "integers", 0);
  std::array<int, 7> seen{};
  constexpr int kDraws = 70000;
  for (int i = 0; i < kDraws; ++i) {
    const int64_t x = random.integer(-2, 4);
    REQUIRE((x >= -2 && x <= 4));
    ++seen[static_cast<size_t>(x + 2)];
  }
  for (const int count : seen) CHECK(std::abs(count - kDraws / 7) < 5 * std::sqrt(kDraws / 7.0));
  CHECK(random.integer(5, 5) == 5);
}

TEST_CASE("a random stream is a function of seed, purpose and index") {
  const auto first = [](uint64_t seed, const char* purpose, uint64_t index) {
    return RandomStream(seed, purpose, index).next_word();
  };
  CHECK(first(1, "a", 2) == first(1, "a", 2));
  CHECK(first(1, "a", 2) != first(2, "a", 2));
  CHECK(first(1, "a", 2) != first(1, "b", 2));
  CHECK(first(1, "a", 2) != first(1, "a", 3));
}

}  // namespace convoy
