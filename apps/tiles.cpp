#include "apps/tiles.h"

#include <algorithm>

namespace convoy {

AxisTiles cut_axis(int64_t extent, int64_t tile, double overlap) {
  if (extent <= tile) return {extent, {0}, {std::vector<float>(static_cast<size_t>(extent), 1.0f)}};
  AxisTiles axis{tile, {}, {}};
  const int64_t shared = std::min(static_cast<int64_t>(static_cast<double>(tile) * overlap), tile - 1);
  const int64_t step = tile - shared, steps = (extent - tile + step - 1) / step;
  for (int64_t i = 0; i <= steps; ++i) axis.starts.push_back((extent - tile) * i / steps);

  // Rises from the one side's neighbour and falls to the other's; the axis' own ends stay at full weight.
  std::vector<double> total(static_cast<size_t>(extent));
  std::vector<std::vector<double>> raw;
  for (size_t i = 0; i < axis.starts.size(); ++i) {
    const int64_t start = axis.starts[i];
    const int64_t before = i > 0 ? axis.starts[i - 1] + tile - start : 0;
    const int64_t behind = i + 1 < axis.starts.size() ? start + tile - axis.starts[i + 1] : 0;
    std::vector<double> weights(static_cast<size_t>(tile));
    for (int64_t p = 0; p < tile; ++p) {
      const double rise = static_cast<double>(p + 1) / static_cast<double>(before + 1);
      const double fall = static_cast<double>(tile - p) / static_cast<double>(behind + 1);
      weights[static_cast<size_t>(p)] = std::min({1.0, rise, fall});
      total[static_cast<size_t>(start + p)] += weights[static_cast<size_t>(p)];
    }
    raw.push_back(std::move(weights));
  }
  for (size_t i = 0; i < raw.size(); ++i) {
    std::vector<float> weights;
    for (size_t p = 0; p < raw[i].size(); ++p)
      weights.push_back(static_cast<float>(raw[i][p] / total[static_cast<size_t>(axis.starts[i]) + p]));
    axis.weights.push_back(std::move(weights));
  }
  return axis;
}

}  // namespace convoy
