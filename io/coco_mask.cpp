#include "io/coco_mask.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <utility>

#include "engine/error.h"

namespace convoy {
namespace {

/// Grid points per pixel and axis.
constexpr int64_t kFine = 5;

struct GridPoint {
  int64_t x = 0, y = 0;
};

GridPoint to_grid(const double* point) {
  return {static_cast<int64_t>(kFine * point[0] + .5), static_cast<int64_t>(kFine * point[1] + .5)};
}

/// Visits the grid points of a line, both ends included: one per step of its longer axis.
template <class Visit>
void walk_line(GridPoint from, GridPoint to, Visit&& visit) {
  const int64_t steps_x = std::abs(to.x - from.x), steps_y = std::abs(to.y - from.y);
  const bool flat = steps_x >= steps_y;
  const int64_t steps = std::max(steps_x, steps_y);
  // The slope is counted from the end with the smaller coordinate, whichever way the line goes: rounding depends on it.
  const bool backwards = flat ? from.x > to.x : from.y > to.y;
  const GridPoint low = backwards ? to : from, high = backwards ? from : to;
  const double slope = steps == 0 ? 0
                       : flat     ? static_cast<double>(high.y - low.y) / static_cast<double>(steps)
                                  : static_cast<double>(high.x - low.x) / static_cast<double>(steps);
  for (int64_t step = 0; step <= steps; ++step) {
    const int64_t along = backwards ? steps - step : step;
    const double across = static_cast<double>(flat ? low.y : low.x) + slope * static_cast<double>(along) + .5;
    if (flat)
      visit(GridPoint{low.x + along, static_cast<int64_t>(across)});
    else
      visit(GridPoint{static_cast<int64_t>(across), low.y + along});
  }
}

}  // namespace

std::vector<PixelRange> polygon_ranges(std::span<const double> points, int64_t height, int64_t width) {
  const size_t corners = points.size() / 2;
  // Where the outline steps over the middle of a column of pixels, the column's pixels change sides from there on down.
  std::vector<int64_t> changes;
  GridPoint last = to_grid(&points[0]);
  const auto step_to = [&](GridPoint next) {
    const GridPoint from = std::exchange(last, next);
    if (from.x == next.x) return;
    const int64_t left = std::min(next.x, from.x);  // of the grid's columns: a middle lies right of 2, 7, 12 ...
    if (left < 0 || left % kFine != kFine / 2 || left / kFine >= width) return;
    const double row = (static_cast<double>(std::min(from.y, next.y)) + .5) / kFine - .5;
    changes.push_back(left / kFine * height +
                      static_cast<int64_t>(std::ceil(std::clamp(row, 0.0, static_cast<double>(height)))));
  };
  for (size_t i = 0; i < corners; ++i)
    walk_line(to_grid(&points[2 * i]), to_grid(&points[2 * ((i + 1) % corners)]), step_to);
  std::sort(changes.begin(), changes.end());
  changes.push_back(height * width);
  std::vector<PixelRange> ranges;
  for (size_t i = 0; i + 1 < changes.size(); i += 2)
    if (changes[i] < changes[i + 1]) ranges.push_back({changes[i], changes[i + 1]});
  return ranges;
}

std::vector<PixelRange> run_length_ranges(std::span<const uint32_t> counts, int64_t height, int64_t width) {
  std::vector<PixelRange> ranges;
  int64_t at = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    if (i % 2 == 1 && counts[i] > 0) ranges.push_back({at, at + counts[i]});
    at += counts[i];
    CONVOY_CHECK(at <= height * width, "its run lengths sum up to more than {} x {} pixels", height, width);
  }
  CONVOY_CHECK(at == height * width, "its run lengths sum up to {} of {} x {} pixels", at, height, width);
  return ranges;
}

std::vector<uint32_t> unpack_run_lengths(std::string_view text) {
  constexpr int kMost = 7;  // characters of one length: 35 bits
  std::vector<uint32_t> counts;
  for (size_t at = 0; at < text.size();) {
    int64_t value = 0;
    int shift = 0;
    for (bool more = true; more; shift += 5) {
      CONVOY_CHECK(at < text.size() && shift < 5 * kMost, "its packed run lengths are cut off");
      const int bits = text[at] - 48;
      CONVOY_CHECK(bits >= 0 && bits < 64, "its packed run lengths hold the character code {}",
                   static_cast<int>(static_cast<unsigned char>(text[at])));
      value |= static_cast<int64_t>(bits & 31) << shift;
      more = (bits & 32) != 0;
      if (!more && (bits & 16)) value -= int64_t{1} << (shift + 5);
      ++at;
    }
    if (counts.size() > 2) value += counts[counts.size() - 2];
    CONVOY_CHECK(value >= 0 && value <= UINT32_MAX, "its packed run lengths hold the length {}", value);
    counts.push_back(static_cast<uint32_t>(value));
  }
  return counts;
}

}  // namespace convoy
