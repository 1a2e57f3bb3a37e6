// Operator cases of layers on images beyond convolution, batch norm and pooling.
#pragma once
#include "tests/op_case.h"

namespace convoy::test {

inline void add_image_op_cases(std::vector<OpCase>& t) {
  t.push_back(unary("scale, one channel", sym("x", {1, 1, 4, 5}), [](Value x) { return scale(x, 0.5); }));
}

}  // namespace convoy::test
