// What the tests of the CPU kernels share: tensors in any layout, as slices of wider buffers, with poisoned
// surroundings; both instruction sets; several numbers of threads.
#pragma once
#include <omp.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "kernels/isa.h"
#include "kernels/view.h"
#include "tests/golden_ops.h"

/// The launcher of the instruction set whose channel block is `block`: 8 base, 16 avx512.
#if defined(__x86_64__)
#define CONVOY_KERNEL(block, name) ((block) == 16 ? ::convoy::cpu::avx512::name : ::convoy::cpu::base::name)
#else
#define CONVOY_KERNEL(block, name) (::convoy::cpu::base::name)
#endif

namespace convoy::test {

/// Channel blocks of the instruction sets that this CPU can run.
inline std::vector<int64_t> channel_blocks() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl"))
    return {8, 16};
#endif
  return {8};
}

struct Shape {
  int64_t n, c, h, w;
  int64_t count() const { return n * c * h * w; }
  std::string text() const {
    return std::to_string(n) + "x" + std::to_string(c) + "x" + std::to_string(h) + "x" + std::to_string(w);
  }
};

/// Shapes that every kernel on images meets: one channel, counts that fill no block, odd and single pixels.
inline std::vector<Shape> image_shapes() {
  return {{1, 1, 1, 1}, {2, 3, 5, 7}, {3, 19, 9, 4}, {1, 33, 1, 1}, {2, 64, 6, 5}, {2, 16, 33, 41}, {3, 8, 1, 3}};
}

/// A tensor (N,C,H,W) of 4-byte elements in one layout, lying in a wider buffer between other channels when `sliced`.
/// Everything is NaN before it is filled, pads included, so that a kernel that leaves or reads poison is seen.
class TestTensor {
 public:
  TestTensor(Shape shape, Layout layout, int64_t block, bool sliced = false) : shape_(shape) {
    view_.layout = layout;
    view_.n = shape.n, view_.c = shape.c, view_.h = shape.h, view_.w = shape.w;
    view_.block = layout == Layout::kBlocked ? block : 1;
    const int64_t channels = view_.blocks() * view_.block;
    const int64_t before = sliced ? (layout == Layout::kBlocked ? block : 3) : 0;
    view_.pitch = channels + (sliced ? 2 * before : 0);
    buffer_.assign(static_cast<size_t>(shape.n * view_.image_stride()), std::numeric_limits<float>::quiet_NaN());
    view_.data = buffer_.data() + (layout == Layout::kNhwc ? before : before * view_.pixels());
    inside_.assign(buffer_.size(), 0);
    for (int64_t n = 0; n < shape.n; ++n)
      for (int64_t c = 0; c < channels; ++c)
        for (int64_t p = 0; p < view_.pixels(); ++p) inside_[position(n, c, p)] = c < shape.c ? 1 : 2;
  }
  TestTensor(const TestTensor& other)
      : shape_(other.shape_), view_(other.view_), buffer_(other.buffer_), inside_(other.inside_) {
    view_.data = buffer_.data() + (other.view_.f32() - other.buffer_.data());
  }
  TestTensor& operator=(const TestTensor&) = delete;

  const View& view() const { return view_; }
  Shape shape() const { return shape_; }

  /// Takes NCHW values; pads become zero.
  TestTensor& fill(const std::vector<float>& values) {
    REQUIRE(values.size() == static_cast<size_t>(shape_.count()));
    for (size_t i = 0; i < buffer_.size(); ++i)
      if (inside_[i] == 2) buffer_[i] = 0;
    for_each([&](size_t index, float& element) { element = values[index]; });
    return *this;
  }
  /// NCHW values.
  std::vector<float> values() const {
    std::vector<float> result(static_cast<size_t>(shape_.count()));
    const_cast<TestTensor*>(this)->for_each([&](size_t index, float& element) { result[index] = element; });
    return result;
  }
  std::vector<int32_t> integers() const {
    const std::vector<float> bits = values();
    std::vector<int32_t> result(bits.size());
    std::memcpy(result.data(), bits.data(), bits.size() * sizeof(int32_t));
    return result;
  }
  /// Pads are zero and nothing outside of the tensor was written.
  bool surroundings_intact() const {
    for (size_t i = 0; i < buffer_.size(); ++i) {
      if (inside_[i] == 2 && buffer_[i] != 0) return false;
      if (inside_[i] == 0 && !std::isnan(buffer_[i])) return false;
    }
    return true;
  }
  bool same_bits(const TestTensor& other) const {
    return buffer_.size() == other.buffer_.size() &&
           std::memcmp(buffer_.data(), other.buffer_.data(), buffer_.size() * sizeof(float)) == 0;
  }

 private:
  size_t position(int64_t n, int64_t c, int64_t p) const {
    const int64_t start = view_.f32() - buffer_.data() + n * view_.image_stride(), block = view_.block;
    if (view_.layout == Layout::kNhwc) return static_cast<size_t>(start + p * view_.pitch + c);
    return static_cast<size_t>(start + (c / block * view_.pixels() + p) * block + c % block);
  }
  template <class Body>
  void for_each(const Body& body) {
    size_t index = 0;
    for (int64_t n = 0; n < shape_.n; ++n)
      for (int64_t c = 0; c < shape_.c; ++c)
        for (int64_t p = 0; p < view_.pixels(); ++p) body(index++, buffer_[position(n, c, p)]);
  }

  Shape shape_;
  View view_;
  std::vector<float> buffer_;
  std::vector<uint8_t> inside_;  ///< 0 neighbour, 1 element, 2 pad lane
};

/// A blocked tensor holding scale * (2u-1) + offset of the stream `name`.
inline std::vector<float> random_values(const std::string& name, int64_t count, double scale = 1, double offset = 0) {
  const golden::Stream u(name);
  std::vector<float> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(offset + scale * (2 * u[i] - 1));
  return values;
}

/// Largest |a - b| over the largest |b|, 0 for nothing to compare; infinite where one of them is NaN.
template <class T>
double relative_error(const std::vector<float>& a, const std::vector<T>& b) {
  REQUIRE(a.size() == b.size());
  double worst = 0, largest = 1e-30;
  for (size_t i = 0; i < a.size(); ++i) {
    const double difference = std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    if (std::isnan(difference)) return std::numeric_limits<double>::infinity();
    worst = std::max(worst, difference);
    largest = std::max(largest, std::abs(static_cast<double>(b[i])));
  }
  return worst / largest;
}

/// Runs `compute` (which returns something comparable by ==) with 1, 2 and 3 threads and demands equal results.
template <class Compute>
auto same_for_any_threads(const Compute& compute) {
  const int before = omp_get_max_threads();
  omp_set_num_threads(1);
  const auto first = compute();
  for (const int threads : {2, 3}) {
    omp_set_num_threads(threads);
    const auto other = compute();
    INFO(threads << " threads");
    CHECK(first == other);
  }
  omp_set_num_threads(before);
  return first;
}

/// Bit patterns, for results that may hold NaN.
inline std::vector<uint32_t> bits(const std::vector<float>& values) {
  std::vector<uint32_t> result(values.size());
  std::memcpy(result.data(), values.data(), values.size() * sizeof(float));
  return result;
}

}  // namespace convoy::test
