// Tensors with reproducible values.
#pragma once
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "io/safetensors.h"

namespace convoy {

inline NamedTensor random_tensor(std::string name, ElementType dtype, std::vector<int64_t> shape, uint32_t seed) {
  NamedTensor tensor{std::move(name), dtype, std::move(shape), nullptr, {}};
  tensor.owned.resize(tensor.bytes());
  std::mt19937 random(seed);
  for (auto& byte : tensor.owned) byte = static_cast<std::byte>(random());
  return tensor;
}

inline bool same(const NamedTensor& a, const NamedTensor& b) {
  return a.name == b.name && a.dtype == b.dtype && a.shape == b.shape &&
         (a.bytes() == 0 || std::memcmp(a.values(), b.values(), a.bytes()) == 0);
}

inline const NamedTensor* find_tensor(const std::vector<NamedTensor>& tensors, const std::string& name) {
  for (const auto& tensor : tensors)
    if (tensor.name == name) return &tensor;
  return nullptr;
}

}  // namespace convoy
