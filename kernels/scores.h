// Class scores of several predictions of one image, added up at the image's size. Plain code, the same on every CPU.
#pragma once
#include <cstdint>

namespace convoy {

/// Logits (C,H,W) of one prediction, plain row-major fp32, of which rows 0..height and columns x..x+width are the image
/// and the rest is padding.
struct ScoreSource {
  const float* logits = nullptr;
  int64_t classes = 0, padded_height = 0, padded_width = 0;
  int64_t x = 0, height = 0, width = 0;
  bool mirrored = false;       ///< the image's columns run from right to left
  bool align_corners = false;  ///< the rule by which the image was resized; see ResizeParams
};

/// Sums of scores in rows of (C,width): element (y,c,x) at (y * C + c) * width + x.
struct ScoreSink {
  float* sums = nullptr;
  int64_t width = 0;
  int64_t y = 0, x = 0;  ///< where the prediction's first pixel goes
};

/// Resizes the logits to (height,width) bilinearly, turns them into probabilities (softmax over the classes) unless
/// `raw`, and adds row_weights[y] * column_weights[x] times them to the sums.
void add_scores(const ScoreSource& source, int64_t height, int64_t width, const float* row_weights,
                const float* column_weights, bool raw, const ScoreSink& sink);

/// labels (width) of one row of sums (C,width): the class of the largest sum, the lowest of equals; NaN is never
/// largest.
void argmax_row(const float* sums, int64_t classes, int64_t width, int32_t* labels);

/// y (H',W') from x (H,W), both plain fp32, bilinear.
void resize_plane(const float* x, int64_t in_height, int64_t in_width, bool align_corners, float* y, int64_t height,
                  int64_t width);

}  // namespace convoy
