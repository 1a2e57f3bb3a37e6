// Image tensors for kernel tests: owned storage in any layout, optionally a slice of a wider tensor, the surroundings
// of which must stay untouched. Outputs start as NaN, so that pad lanes a kernel forgets are seen.
#pragma once
#include <omp.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "kernels/isa.h"
#include "kernels/view.h"

namespace convoy::test {

constexpr float kOutside = -12345.0f;  // value of neighbouring channels in a slice

class ImageTensor {
 public:
  /// block 1 is nchw. extra_blocks channel blocks of a wider tensor lie before and behind this one.
  ImageTensor(int64_t n, int64_t c, int64_t h, int64_t w, int64_t block, int64_t extra_blocks = 0) {
    const int64_t blocks = (c + block - 1) / block;
    pitch_ = (blocks + 2 * extra_blocks) * block;
    storage_.assign(static_cast<size_t>(n * pitch_ * h * w), kOutside);
    view_.data = storage_.data() + extra_blocks * block * h * w;
    view_.layout = block == 1 ? Layout::kNchw : Layout::kBlocked;
    view_.n = n;
    view_.c = c;
    view_.h = h;
    view_.w = w;
    view_.pitch = pitch_;
    view_.block = block;
    for_each([&](int64_t, bool) { return std::numeric_limits<float>::quiet_NaN(); });
  }
  ImageTensor(const ImageTensor&) = delete;
  ImageTensor& operator=(const ImageTensor&) = delete;

  const View& view() const { return view_; }
  const std::vector<float>& storage() const { return storage_; }

  /// Copies plain NCHW values in; pad lanes become zero.
  void fill(const std::vector<float>& plain) {
    for_each([&](int64_t i, bool pad) { return pad ? 0.0f : plain[static_cast<size_t>(i)]; });
  }

  /// The values in plain NCHW order. Fails the test where a pad lane is not zero or a neighbour was written.
  std::vector<float> plain() const {
    std::vector<float> values(static_cast<size_t>(view_.count()));
    int64_t bad_pads = 0, inside = 0, untouched = 0;
    for (int64_t n = 0; n < view_.n; ++n)
      for (int64_t c = 0; c < view_.blocks() * view_.block; ++c)
        for (int64_t p = 0; p < view_.pixels(); ++p) {
          const float v = view_.f32()[offset(n, c, p)];
          ++inside;
          if (c < view_.c)
            values[static_cast<size_t>((n * view_.c + c) * view_.pixels() + p)] = v;
          else
            bad_pads += v != 0.0f || std::isnan(v);
        }
    for (const float v : storage_) untouched += v == kOutside;
    CHECK(bad_pads == 0);
    CHECK(untouched >= static_cast<int64_t>(storage_.size()) - inside);
    return values;
  }

 private:
  int64_t offset(int64_t n, int64_t c, int64_t pixel) const {
    return n * view_.image_stride() + (c / view_.block * view_.pixels() + pixel) * view_.block + c % view_.block;
  }
  template <class F>
  void for_each(F value) {
    for (int64_t n = 0; n < view_.n; ++n)
      for (int64_t c = 0; c < view_.blocks() * view_.block; ++c)
        for (int64_t p = 0; p < view_.pixels(); ++p)
          view_.f32()[offset(n, c, p)] = value((n * view_.c + c) * view_.pixels() + p, c >= view_.c);
  }

  std::vector<float> storage_;
  View view_;
  int64_t pitch_ = 0;
};

inline std::vector<float> random_values(int64_t count, uint32_t seed, float scale = 1.0f) {
  std::mt19937 engine(seed);
  std::uniform_real_distribution<float> uniform(-scale, scale);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& v : values) v = uniform(engine);
  return values;
}

/// ||a - b|| / ||b||, or the norm of a where b is zero.
template <class A, class B>
double relative_error(const std::vector<A>& a, const std::vector<B>& b) {
  REQUIRE(a.size() == b.size());
  double difference = 0, norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double d = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    difference += d * d;
    norm += static_cast<double>(b[i]) * static_cast<double>(b[i]);
  }
  return norm > 0 ? std::sqrt(difference / norm) : std::sqrt(difference);
}

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

/// Sets the number of OpenMP threads for a scope.
class Threads {
 public:
  explicit Threads(int count) : before_(omp_get_max_threads()) { omp_set_num_threads(count); }
  ~Threads() { omp_set_num_threads(before_); }

 private:
  int before_;
};

/// Whether this machine can run the launchers of cpu::avx512.
inline bool has_avx512() {
  return cpu::isa() == cpu::Isa::kAvx512;
}

}  // namespace convoy::test

/// The launcher of one instruction set:  CONVOY_TEST_KERNEL(avx512, relu)(x, y)
#if defined(__x86_64__)
#define CONVOY_TEST_KERNEL(avx512_set, name) ((avx512_set) ? ::convoy::cpu::avx512::name : ::convoy::cpu::base::name)
#else
#define CONVOY_TEST_KERNEL(avx512_set, name) (::convoy::cpu::base::name)
#endif
