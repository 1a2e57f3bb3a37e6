// Class maps made visible.
#pragma once
#include <string>

#include "io/dataset.h"

namespace convoy {

/// The classes' colours (H,W,3); ignored pixels are black.
Image color_picture(const LabelMap& labels, const std::vector<Color>& palette);
/// The image with its classes' colours over it, half and half; ignored pixels show the image.
Image overlay_picture(const Image& image, const LabelMap& labels, const std::vector<Color>& palette);
/// The image halved in size until its width is at most `width`: small enough for a report.
Image shrunk(const Image& image, int64_t width);

}  // namespace convoy
