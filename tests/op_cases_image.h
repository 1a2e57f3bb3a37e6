// Operator cases of layers on images beyond convolution, batch norm and pooling.
#pragma once
#include "tests/op_case.h"

namespace convoy::test {

inline void add_image_op_cases(std::vector<OpCase>& t) {
  t.push_back(unary("reshape of an image", sym("x", {2, 19, 3, 4}), [](Value x) { return reshape(x, {2, 3, 19, 4}); }));
  t.push_back(unary("reshape of a computed value", sym("x", {2, 19, 3, 4}), [](Value x) {
    return scale(reshape(scale(flatten(x), 2), {19, 24}), 0.5);
  }));
}

}  // namespace convoy::test
