// Tiny data sets on disk for the io tests.
#pragma once
#include <fmt/format.h>

#include "engine/rng.h"
#include "io/config.h"
#include "io/image.h"
#include "tests/io/support.h"

namespace convoy::testing {

/// A folder data set of three classes (ignore label 9) with `count` images of slightly different sizes.
inline DatasetConfig write_folder_dataset(const std::string& root, int count) {
  namespace fs = std::filesystem;
  fs::create_directories(root + "/images/train");
  fs::create_directories(root + "/masks/train");
  for (int i = 0; i < count; ++i) {
    RandomStream random(5, "scene", static_cast<uint64_t>(i));
    Image image{20 + i % 5, 30 + i % 3, 3, {}, 8};
    LabelMap labels{image.height, image.width, {}};
    for (int64_t k = 0; k < image.height * image.width; ++k) {
      for (int c = 0; c < 3; ++c) image.data.push_back(static_cast<uint8_t>(random.next_word()));
      labels.data.push_back(k % 11 == 0 ? 9 : static_cast<int32_t>(random.integer(0, 2)));
    }
    write_png(fmt::format("{}/images/train/{:03}.png", root, i), image);
    write_png_gray(fmt::format("{}/masks/train/{:03}.png", root, i), labels);
  }
  DatasetConfig config;
  config.name = "folder";
  config.root = root;
  config.num_classes = 3;
  config.ignore_label = 9;
  return config;
}

}  // namespace convoy::testing
