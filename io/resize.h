// Resizing of decoded images, defined as Pillow does it, for a window of the result: a random crop costs only itself.
#pragma once
#include "io/image.h"

namespace convoy {

/// Part of an image, in pixels.
struct Window {
  int64_t y = 0, x = 0, height = 0, width = 0;
};

/// Bilinear with antialiasing: each axis is a triangle filter of half-width max(1, in/out) around
/// (i + 0.5) * in/out, weights normalised over the pixels inside the image and rounded to 2^-22; horizontal pass first,
/// rounded to 8 bits between the passes. Returns the pixels `window` of the (height, width) result.
Image resize_bilinear(const Image& image, int64_t height, int64_t width, const Window& window);
Image resize_bilinear(const Image& image, int64_t height, int64_t width);

/// Nearest: result (y, x) is source (floor((y + 0.5) * in/out), ...), the product formed by repeated addition.
LabelMap resize_nearest(const LabelMap& labels, int64_t height, int64_t width, const Window& window);
LabelMap resize_nearest(const LabelMap& labels, int64_t height, int64_t width);

}  // namespace convoy
