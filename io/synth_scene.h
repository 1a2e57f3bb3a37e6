// One generated street scene: a ray-cast street (ground, kerbs, facades, sky) with cars, people, poles, signs and trees
// standing in it. Only additions, products and comparisons of doubles, so that a seed gives the same picture
// everywhere.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "io/image.h"

namespace convoy {

/// An object's visible box in pixels, both corners included, counted from 0.
struct SceneBox {
  std::string name;  ///< "car", "person", "traffic sign"
  int64_t xmin = 0, ymin = 0, xmax = 0, ymax = 0;
  bool truncated = false;  ///< touches the image's edge
  bool difficult = false;  ///< less than a quarter of it is visible, or it is tiny
};

struct Scene {
  Image image;      ///< RGB
  LabelMap labels;  ///< official Cityscapes ids
  std::vector<SceneBox> boxes;
};

/// The scene number `index` of a seed.
Scene render_scene(int64_t height, int64_t width, uint64_t seed, uint64_t index);

}  // namespace convoy
