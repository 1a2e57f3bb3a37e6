#include "kernels/augment_axis.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace convoy {

ResampleFilter triangle_filter(int64_t in, int64_t out, int64_t begin, int64_t count) {
  const double scale = static_cast<double>(in) / static_cast<double>(out);
  const double support = std::max(scale, 1.0);
  ResampleFilter filter;
  filter.taps = std::min(in, static_cast<int64_t>(std::ceil(support)) * 2 + 1);
  filter.first.resize(static_cast<size_t>(count));
  filter.weights.assign(static_cast<size_t>(count * filter.taps), 0);
  std::vector<double> real(static_cast<size_t>(filter.taps));
  for (int64_t i = 0; i < count; ++i) {
    const double center = (static_cast<double>(begin + i) + 0.5) * scale;
    const int64_t low = std::max<int64_t>(0, static_cast<int64_t>(center - support + 0.5));
    const int64_t high = std::min(in, static_cast<int64_t>(center + support + 0.5));
    double sum = 0;
    for (int64_t k = low; k < high; ++k) {
      const double distance = std::abs((static_cast<double>(k) - center + 0.5) / support);
      real[static_cast<size_t>(k - low)] = std::max(0.0, 1.0 - distance);
      sum += real[static_cast<size_t>(k - low)];
    }
    // The row of weights is shifted left where it would read past the last pixel; the shifted-in weights are zero.
    const int64_t first = std::min(low, in - filter.taps);
    filter.first[static_cast<size_t>(i)] = first;
    for (int64_t k = low; k < high; ++k) {
      const double weight = real[static_cast<size_t>(k - low)] / sum;
      filter.weights[static_cast<size_t>(i * filter.taps + k - first)] =
          static_cast<int32_t>(weight * (1 << kResampleBits) + 0.5);
    }
  }
  return filter;
}

// The position is a running sum, as in Pillow, so that ties fall alike.
std::vector<int64_t> nearest_positions(int64_t in, int64_t out, int64_t begin, int64_t count) {
  const double scale = static_cast<double>(in) / static_cast<double>(out);
  std::vector<int64_t> positions;
  double source = scale * 0.5;
  for (int64_t i = 0; i < begin + count; ++i, source += scale) {
    if (i >= begin) positions.push_back(std::min(in - 1, static_cast<int64_t>(source)));
  }
  return positions;
}

AugmentTables augment_tables(int64_t in, int64_t out, int64_t begin, int64_t count) {
  AugmentTables tables;
  ResampleFilter filter = triangle_filter(in, out, begin, count);
  tables.taps = filter.taps;
  tables.weights = std::move(filter.weights);
  for (const int64_t p : filter.first) tables.first.push_back(static_cast<int32_t>(p));
  for (const int64_t p : nearest_positions(in, out, begin, count)) tables.nearest.push_back(static_cast<int32_t>(p));
  return tables;
}

}  // namespace convoy
