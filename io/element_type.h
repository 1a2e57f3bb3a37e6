// Element types of arrays in files: more than kernels know (kernels/dtype.h).
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>

#include "kernels/dtype.h"

namespace convoy {

enum class ElementType : uint8_t {
  kF32,
  kF16,
  kBF16,
  kF64,
  kI64,
  kI32,
  kU8,
  kI16,
  kI8,
  kBool,
  kU16,
  kU32,
  kU64,
  kC64,     ///< complex of two f32
  kC128,    ///< complex of two f64
  kF8E4M3,  ///< torch.float8_e4m3fn
  kF8E5M2,  ///< torch.float8_e5m2
};

/// Bytes of one element.
size_t element_size(ElementType type);

/// The type's name in PyTorch: "float32", "bfloat16", "bool", ...
const char* element_name(ElementType type);

/// 2 for complex numbers, else 1.
constexpr int64_t element_parts(ElementType type) {
  return type == ElementType::kC64 || type == ElementType::kC128 ? 2 : 1;
}

/// The type of a tensor's elements.
ElementType element_type(DType dtype);

}  // namespace convoy
