// Bytes: two rows of logits in, one row of sums in and out, per row of the image. Rows are independent, so that results
// do not depend on the number of threads.
#include "kernels/scores.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace convoy {
namespace {

/// Output pixel = (1 - weight) source[first] + weight source[second].
struct Tap {
  int64_t first, second;
  float weight;
};

Tap tap(int64_t out_index, int64_t in, int64_t out, bool align_corners) {
  const double o = static_cast<double>(out_index), n_in = static_cast<double>(in), n_out = static_cast<double>(out);
  double at =
      align_corners ? (out > 1 ? o * (n_in - 1) / (n_out - 1) : 0) : std::max((o + 0.5) * n_in / n_out - 0.5, 0.0);
  if (in == out) at = o;
  const int64_t first = std::min(static_cast<int64_t>(at), in - 1), second = std::min(first + 1, in - 1);
  return {first, second, second > first ? static_cast<float>(at - static_cast<double>(first)) : 0.0f};
}

std::vector<Tap> taps(int64_t in, int64_t out, bool align_corners) {
  std::vector<Tap> all;
  all.reserve(static_cast<size_t>(out));
  for (int64_t o = 0; o < out; ++o) all.push_back(tap(o, in, out, align_corners));
  return all;
}

float mix(float a, float b, float weight) {
  return weight == 0 ? a : a + (b - a) * weight;
}

/// Row (C,width) of logits to probabilities, in place.
void softmax_row(float* row, int64_t classes, int64_t width, float* most, float* total) {
  std::fill_n(most, width, -std::numeric_limits<float>::infinity());
  std::fill_n(total, width, 0.0f);
  for (int64_t c = 0; c < classes; ++c)
    for (int64_t x = 0; x < width; ++x) most[x] = std::max(most[x], row[c * width + x]);
  for (int64_t c = 0; c < classes; ++c)
    for (int64_t x = 0; x < width; ++x) {
      const float e = std::exp(row[c * width + x] - most[x]);
      row[c * width + x] = e;
      total[x] += e;
    }
  for (int64_t x = 0; x < width; ++x) total[x] = 1 / total[x];
  for (int64_t c = 0; c < classes; ++c)
    for (int64_t x = 0; x < width; ++x) row[c * width + x] *= total[x];
}

}  // namespace

void add_scores(const ScoreSource& source, int64_t height, int64_t width, const float* row_weights,
                const float* column_weights, bool raw, const ScoreSink& sink) {
  const std::vector<Tap> rows = taps(source.height, height, source.align_corners);
  std::vector<Tap> columns = taps(source.width, width, source.align_corners);
  for (Tap& column : columns) {  // where the pixel lies in the logits
    const auto place = [&](int64_t i) { return source.x + (source.mirrored ? source.width - 1 - i : i); };
    column = {place(column.first), place(column.second), column.weight};
  }
  const int64_t classes = source.classes;
#pragma omp parallel
  {
    std::vector<float> row(static_cast<size_t>(classes * width)), mixed(static_cast<size_t>(source.padded_width)),
        most(static_cast<size_t>(width)), total(static_cast<size_t>(width));
#pragma omp for schedule(static)
    for (int64_t y = 0; y < height; ++y) {
      const Tap& at = rows[static_cast<size_t>(y)];
      for (int64_t c = 0; c < classes; ++c) {
        const float* plane = source.logits + c * source.padded_height * source.padded_width;
        const float *upper = plane + at.first * source.padded_width, *lower = plane + at.second * source.padded_width;
        for (int64_t x = source.x; x < source.x + source.width; ++x)
          mixed[static_cast<size_t>(x)] = mix(upper[x], lower[x], at.weight);
        for (int64_t x = 0; x < width; ++x) {
          const Tap& column = columns[static_cast<size_t>(x)];
          row[static_cast<size_t>(c * width + x)] =
              mix(mixed[static_cast<size_t>(column.first)], mixed[static_cast<size_t>(column.second)], column.weight);
        }
      }
      if (!raw) softmax_row(row.data(), classes, width, most.data(), total.data());
      for (int64_t c = 0; c < classes; ++c) {
        float* sums = sink.sums + ((sink.y + y) * classes + c) * sink.width + sink.x;
        const float* scores = row.data() + c * width;
        for (int64_t x = 0; x < width; ++x) sums[x] += row_weights[y] * column_weights[x] * scores[x];
      }
    }
  }
}

void argmax_row(const float* sums, int64_t classes, int64_t width, int32_t* labels) {
  std::vector<float> best(static_cast<size_t>(width), -std::numeric_limits<float>::infinity());
  std::fill_n(labels, width, 0);
  for (int64_t c = 0; c < classes; ++c)
    for (int64_t x = 0; x < width; ++x) {
      const float value = sums[c * width + x];
      if (!(value > best[static_cast<size_t>(x)])) continue;
      best[static_cast<size_t>(x)] = value;
      labels[x] = static_cast<int32_t>(c);
    }
}

void resize_plane(const float* x, int64_t in_height, int64_t in_width, bool align_corners, float* y, int64_t height,
                  int64_t width) {
  const std::vector<Tap> columns = taps(in_width, width, align_corners);
#pragma omp parallel for schedule(static)
  for (int64_t row = 0; row < height; ++row) {
    const Tap at = tap(row, in_height, height, align_corners);
    const float *upper = x + at.first * in_width, *lower = x + at.second * in_width;
    for (int64_t column = 0; column < width; ++column) {
      const Tap& side = columns[static_cast<size_t>(column)];
      y[row * width + column] = mix(mix(upper[side.first], lower[side.first], at.weight),
                                    mix(upper[side.second], lower[side.second], at.weight), side.weight);
    }
  }
}

}  // namespace convoy
