#include "io/element_type.h"

#include "engine/error.h"

namespace convoy {
namespace {

struct Properties {
  ElementType type;
  size_t size;
  const char* name;
};

constexpr Properties kProperties[] = {
    {ElementType::kF32, 4, "float32"},
    {ElementType::kF16, 2, "float16"},
    {ElementType::kBF16, 2, "bfloat16"},
    {ElementType::kF64, 8, "float64"},
    {ElementType::kI64, 8, "int64"},
    {ElementType::kI32, 4, "int32"},
    {ElementType::kU8, 1, "uint8"},
    {ElementType::kI16, 2, "int16"},
    {ElementType::kI8, 1, "int8"},
    {ElementType::kBool, 1, "bool"},
    {ElementType::kU16, 2, "uint16"},
    {ElementType::kU32, 4, "uint32"},
    {ElementType::kU64, 8, "uint64"},
    {ElementType::kC64, 8, "complex64"},
    {ElementType::kC128, 16, "complex128"},
    {ElementType::kF8E4M3, 1, "float8_e4m3fn"},
    {ElementType::kF8E5M2, 1, "float8_e5m2"},
};

constexpr bool in_order() {
  for (size_t i = 0; i < std::size(kProperties); ++i)
    if (static_cast<size_t>(kProperties[i].type) != i) return false;
  return true;
}
static_assert(in_order());

}  // namespace

size_t element_size(ElementType type) {
  return kProperties[static_cast<size_t>(type)].size;
}

const char* element_name(ElementType type) {
  return kProperties[static_cast<size_t>(type)].name;
}

ElementType element_type(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return ElementType::kF32;
    case DType::kF16:
      return ElementType::kF16;
    case DType::kBF16:
      return ElementType::kBF16;
    case DType::kF64:
      return ElementType::kF64;
    case DType::kI64:
      return ElementType::kI64;
    case DType::kI32:
      return ElementType::kI32;
    case DType::kU8:
      return ElementType::kU8;
  }
  fail("a tensor of unknown type {}", static_cast<int>(dtype));
}

}  // namespace convoy
