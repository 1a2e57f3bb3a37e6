// Small checks that the operators' shape inference shares.
#pragma once
#include "engine/op.h"

namespace convoy {

inline const Shape& require_image(const Node& node, size_t i) {
  const Shape& shape = node.inputs[i].shape();
  CONVOY_CHECK(shape.rank() == 4 && node.inputs[i].dtype() == DType::kF32,
               "input {} must be an f32 image (N,C,H,W), it is {} {}", i, dtype_name(node.inputs[i].dtype()),
               shape.str());
  return shape;
}

inline void require_shape(const Node& node, size_t i, const Shape& wanted, DType dtype = DType::kF32) {
  const Value& v = node.inputs[i];
  CONVOY_CHECK(v.shape() == wanted && v.dtype() == dtype, "input {} must be {} {}, it is {} {}", i, dtype_name(dtype),
               wanted.str(), dtype_name(v.dtype()), v.shape().str());
}

inline TensorInfo info_of(Value v) {
  return {v.dtype(), v.shape()};
}

}  // namespace convoy
