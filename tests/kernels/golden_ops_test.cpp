#include "tests/golden_ops.h"

#include <catch2/catch.hpp>

namespace convoy {

TEST_CASE("number streams have their published values") {
  const golden::Stream u("input");
  const double expected[] = {-0.80436337, -0.705042839, 0.148168802, 0.705455542};
  for (uint64_t i = 0; i < 4; ++i) CHECK(2 * u[i] - 1 == Approx(expected[i]).epsilon(1e-7));
}

TEST_CASE("golden cases are complete") {
  CHECK(golden::op_cases().size() > 100);
  CHECK_THROWS(golden::op_case("no such case"));
  const golden::OpCase& c = golden::op_case("relu");
  CHECK(c.input("x").shape == std::vector<int64_t>{2, 3, 4, 5});
  CHECK(c.output("y").upstream.size() == c.output("y").count());
  for (size_t i = 0; i < c.input("x").count(); ++i)
    CHECK(c.output("y").values[i] == std::max(0.0f, c.input("x").values[i]));
  CHECK_THROWS(c.input("z"));
}

}  // namespace convoy
