#include "apps/pictures.h"

#include <algorithm>

#include "io/resize.h"

namespace convoy {

Image color_picture(const LabelMap& labels, const std::vector<Color>& palette) {
  Image picture{labels.height, labels.width, 3, std::vector<uint8_t>(labels.data.size() * 3)};
  for (size_t i = 0; i < labels.data.size(); ++i)
    if (labels.data[i] >= 0)
      std::copy_n(palette[static_cast<size_t>(labels.data[i])].data(), 3, picture.data.data() + 3 * i);
  return picture;
}

Image overlay_picture(const Image& image, const LabelMap& labels, const std::vector<Color>& palette) {
  Image picture = image;
  for (size_t i = 0; i < labels.data.size(); ++i) {
    if (labels.data[i] < 0) continue;
    const Color& color = palette[static_cast<size_t>(labels.data[i])];
    for (size_t c = 0; c < 3; ++c)
      picture.data[3 * i + c] = static_cast<uint8_t>((picture.data[3 * i + c] + color[c] + 1) / 2);
  }
  return picture;
}

Image shrunk(const Image& image, int64_t width) {
  int64_t h = image.height, w = image.width;
  while (w > width && h > 1) {
    h = (h + 1) / 2;
    w = (w + 1) / 2;
  }
  return w == image.width ? image : resize_bilinear(image, h, w);
}

}  // namespace convoy
