#include "io/resize.h"

#include <algorithm>
#include <cmath>

#include "engine/error.h"
#include "kernels/augment_axis.h"

namespace convoy {
namespace {

uint8_t to_byte(int32_t fixed) {
  return static_cast<uint8_t>(std::clamp(fixed >> kResampleBits, 0, 255));
}

void filter_row(const uint8_t* row, const ResampleFilter& filter, int64_t channels, uint8_t* out) {
  const auto count = static_cast<int64_t>(filter.first.size());
  for (int64_t i = 0; i < count; ++i) {
    const int32_t* weights = filter.weights.data() + i * filter.taps;
    const uint8_t* source = row + filter.first[static_cast<size_t>(i)] * channels;
    for (int64_t c = 0; c < channels; ++c) {
      int32_t sum = 1 << (kResampleBits - 1);
      for (int64_t k = 0; k < filter.taps; ++k) sum += weights[k] * source[k * channels + c];
      out[i * channels + c] = to_byte(sum);
    }
  }
}

void check_window(int64_t height, int64_t width, const Window& window) {
  CONVOY_CHECK(height > 0 && width > 0 && window.y >= 0 && window.x >= 0 && window.height > 0 && window.width > 0 &&
                   window.y + window.height <= height && window.x + window.width <= width,
               "resize: window of {} x {} at ({}, {}) outside the result of {} x {}", window.height, window.width,
               window.y, window.x, height, width);
}

}  // namespace

Image resize_bilinear(const Image& image, int64_t height, int64_t width, const Window& window) {
  check_window(height, width, window);
  const int64_t channels = image.channels, row_bytes = window.width * channels;
  const ResampleFilter across = triangle_filter(image.width, width, window.x, window.width);
  const ResampleFilter down = triangle_filter(image.height, height, window.y, window.height);
  const int64_t first_row = *std::min_element(down.first.begin(), down.first.end());
  const int64_t last_row = *std::max_element(down.first.begin(), down.first.end()) + down.taps;
  std::vector<uint8_t> rows(static_cast<size_t>((last_row - first_row) * row_bytes));
  for (int64_t y = first_row; y < last_row; ++y) {
    filter_row(image.pixel(y, 0), across, channels, rows.data() + (y - first_row) * row_bytes);
  }
  Image out{window.height, window.width, channels, {}, 8};
  out.data.resize(static_cast<size_t>(window.height * row_bytes));
  std::vector<int32_t> sums(static_cast<size_t>(row_bytes));
  for (int64_t y = 0; y < window.height; ++y) {
    std::fill(sums.begin(), sums.end(), 1 << (kResampleBits - 1));
    for (int64_t k = 0; k < down.taps; ++k) {
      const int32_t weight = down.weights[static_cast<size_t>(y * down.taps + k)];
      if (weight == 0) continue;
      const uint8_t* row = rows.data() + (down.first[static_cast<size_t>(y)] + k - first_row) * row_bytes;
      for (int64_t x = 0; x < row_bytes; ++x) sums[static_cast<size_t>(x)] += weight * row[x];
    }
    uint8_t* line = out.data.data() + y * row_bytes;
    for (int64_t x = 0; x < row_bytes; ++x) line[x] = to_byte(sums[static_cast<size_t>(x)]);
  }
  return out;
}

Image resize_bilinear(const Image& image, int64_t height, int64_t width) {
  return resize_bilinear(image, height, width, {0, 0, height, width});
}

LabelMap resize_nearest(const LabelMap& labels, int64_t height, int64_t width, const Window& window) {
  check_window(height, width, window);
  const std::vector<int64_t> columns = nearest_positions(labels.width, width, window.x, window.width);
  const std::vector<int64_t> rows = nearest_positions(labels.height, height, window.y, window.height);
  LabelMap out{window.height, window.width, {}};
  out.data.reserve(static_cast<size_t>(window.height * window.width));
  for (const int64_t row : rows) {
    const int32_t* line = labels.data.data() + row * labels.width;
    for (const int64_t column : columns) out.data.push_back(line[column]);
  }
  return out;
}

LabelMap resize_nearest(const LabelMap& labels, int64_t height, int64_t width) {
  return resize_nearest(labels, height, width, {0, 0, height, width});
}

}  // namespace convoy
