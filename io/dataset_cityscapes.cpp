#include <algorithm>
#include <filesystem>
#include <set>

#include "engine/error.h"
#include "io/dataset_parts.h"

namespace convoy {
namespace {

namespace fs = std::filesystem;

/// Class -> official id.
const std::vector<int32_t> kEvaluatedIds = {7, 8, 11, 12, 13, 17, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 31, 32, 33};

ClassTable cityscapes_classes() {
  return {{"road", "sidewalk", "building", "wall", "fence", "pole", "traffic light", "traffic sign", "vegetation",
           "terrain", "sky", "person", "rider", "car", "truck", "bus", "train", "motorcycle", "bicycle"},
          {{128, 64, 128},
           {244, 35, 232},
           {70, 70, 70},
           {102, 102, 156},
           {190, 153, 153},
           {153, 153, 153},
           {250, 170, 30},
           {220, 220, 0},
           {107, 142, 35},
           {152, 251, 152},
           {70, 130, 180},
           {220, 20, 60},
           {255, 0, 0},
           {0, 0, 142},
           {0, 0, 70},
           {0, 60, 100},
           {0, 80, 100},
           {0, 0, 230},
           {119, 11, 32}},
          kEvaluatedIds};
}

void list_split(const fs::path& root, const std::string& split, std::vector<SamplePaths>& samples,
                std::vector<std::string>& unused) {
  static const std::string kImageEnd = "_leftImg8bit.png", kLabelEnd = "_gtFine_labelIds.png";
  for (const fs::path& city : sorted_entries(root / "leftImg8bit" / split)) {
    std::error_code broken_link;
    if (!fs::is_directory(city, broken_link)) continue;
    for (const fs::path& image : sorted_entries(city)) {
      const std::string name = image.filename().string();
      if (!name.ends_with(kImageEnd)) continue;
      const std::string scene = name.substr(0, name.size() - kImageEnd.size());
      const fs::path label = root / "gtFine" / split / city.filename() / (scene + kLabelEnd);
      samples.push_back({image.string(), label.string(), fs::relative(image, root).string()});
    }
  }
  std::set<std::string> used;
  for (const SamplePaths& sample : samples) used.insert(sample.label);
  std::error_code none;
  if (!fs::is_directory(root / "gtFine" / split, none)) return;
  for (const fs::path& city : sorted_entries(root / "gtFine" / split)) {
    if (!fs::is_directory(city, none)) continue;
    for (const fs::path& label : sorted_entries(city))
      if (label.string().ends_with(kLabelEnd) && !used.contains(label.string())) unused.push_back(label.string());
  }
}

}  // namespace

const std::vector<int32_t>& cityscapes_train_ids() {
  static const std::vector<int32_t> ids = [] {
    std::vector<int32_t> table(34, kIgnoreLabel);
    int32_t next = 0;
    for (const int32_t id : kEvaluatedIds) table[static_cast<size_t>(id)] = next++;
    return table;
  }();
  return ids;
}

DatasetParts read_cityscapes(const DatasetConfig& config, const std::string& split, MissingLabels missing) {
  const fs::path root = fs::absolute(config.root).lexically_normal();
  CONVOY_CHECK(fs::is_directory(root / "leftImg8bit"),
               "{}: no Cityscapes data here (no folder leftImg8bit); set DATASET.ROOT", root.string());
  require_split("Cityscapes", split, {"train", "val", "test", "trainval"});
  std::vector<SamplePaths> samples;
  std::vector<std::string> unused;
  for (const std::string part : {"train", "val", "test"}) {
    if (split == part || (split == "trainval" && part != "test")) list_split(root, part, samples, unused);
  }
  require_files(samples, split, missing);
  LabelTable labels{cityscapes_train_ids(), "the Cityscapes ids -1..33"};
  return {root.string(),        split,   std::move(samples), std::move(labels),
          cityscapes_classes(), nullptr, {Color{0, 0, 0}},   std::move(unused)};
}

}  // namespace convoy
