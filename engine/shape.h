// Extents of a tensor: rank 0 to 5, held by value.
#pragma once
#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "engine/error.h"

namespace convoy {

class Shape {
 public:
  static constexpr int kMaxRank = 5;

  Shape() = default;
  Shape(std::initializer_list<int64_t> extents) : Shape(extents.begin(), extents.end()) {}
  explicit Shape(const std::vector<int64_t>& extents) : Shape(extents.begin(), extents.end()) {}

  int rank() const { return rank_; }
  int64_t operator[](int i) const { return extents_[static_cast<size_t>(i)]; }
  int64_t& operator[](int i) { return extents_[static_cast<size_t>(i)]; }
  int64_t count() const {
    int64_t product = 1;
    for (int i = 0; i < rank_; ++i) product *= (*this)[i];
    return product;
  }
  bool operator==(const Shape& other) const { return rank_ == other.rank_ && extents_ == other.extents_; }
  std::vector<int64_t> to_vector() const { return {extents_.begin(), extents_.begin() + rank_}; }
  /// "(2,64,128,256)"
  std::string str() const {
    std::string text = "(";
    for (int i = 0; i < rank_; ++i) text += (i ? "," : "") + std::to_string((*this)[i]);
    return text + ")";
  }

 private:
  template <class It>
  Shape(It first, It last) {
    CONVOY_CHECK(last - first <= kMaxRank, "a tensor has at most {} dimensions, got {}", kMaxRank, last - first);
    for (; first != last; ++first) extents_[static_cast<size_t>(rank_++)] = *first;
  }

  std::array<int64_t, kMaxRank> extents_{};
  int rank_ = 0;
};

}  // namespace convoy
