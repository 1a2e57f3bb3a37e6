// Cutting one axis of an image into overlapping tiles of one size.
#pragma once
#include <cstdint>
#include <vector>

namespace convoy {

struct AxisTiles {
  int64_t tile = 0;             ///< extent of each
  std::vector<int64_t> starts;  ///< ascending; the first is 0, the last tile ends where the axis ends
  /// By tile, of each of its pixels: falls to both sides over the overlap, so that no seam is left; over all tiles the
  /// weights of a pixel add up to 1.
  std::vector<std::vector<float>> weights;
};

/// The fewest tiles of `tile` pixels that cover `extent` pixels with neighbours sharing at least the part `overlap`
/// (from 0, below 1) of a tile, evenly spread. One of the whole extent where that is no larger than a tile.
AxisTiles cut_axis(int64_t extent, int64_t tile, double overlap);

}  // namespace convoy
