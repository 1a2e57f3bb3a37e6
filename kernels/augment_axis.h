// One axis of the resizing of decoded images, defined as Pillow does it. Host code.
#pragma once
#include <cstdint>
#include <vector>

namespace convoy {

constexpr int kResampleBits = 22;  ///< weights are in units of 2^-22

/// For each output position: the first source position and `taps` weights.
struct ResampleFilter {
  int64_t taps = 0;
  std::vector<int64_t> first;
  std::vector<int32_t> weights;
};

/// Bilinear with antialiasing: a triangle of half-width max(1, in/out) around (i + 0.5) * in/out, weights normalised
/// over the pixels inside the image. Output positions [begin, begin + count) of `out`.
ResampleFilter triangle_filter(int64_t in, int64_t out, int64_t begin, int64_t count);

/// Nearest source positions: floor((i + 0.5) * in/out), the position formed by repeated addition.
std::vector<int64_t> nearest_positions(int64_t in, int64_t out, int64_t begin, int64_t count);

/// Both as kernels read them.
struct AugmentTables {
  int64_t taps = 0;
  std::vector<int32_t> first, weights, nearest;
};
AugmentTables augment_tables(int64_t in, int64_t out, int64_t begin, int64_t count);

}  // namespace convoy
