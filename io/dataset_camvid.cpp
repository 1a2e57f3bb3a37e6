#include "engine/error.h"
#include "io/dataset_parts.h"

namespace convoy {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kVoid = 11;

ClassTable camvid_classes() {
  return {{"sky", "building", "pole", "road", "pavement", "tree", "sign", "fence", "car", "pedestrian", "bicyclist"},
          {{128, 128, 128},
           {128, 0, 0},
           {192, 192, 128},
           {128, 64, 128},
           {60, 40, 222},
           {128, 128, 0},
           {192, 128, 128},
           {64, 64, 128},
           {64, 0, 128},
           {64, 64, 0},
           {0, 128, 192}},
          {}};
}

}  // namespace

DatasetParts read_camvid(const DatasetConfig& config, const std::string& split, MissingLabels missing) {
  const fs::path root = dataset_root(config, "camvid");
  require_split("camvid", split, {"train", "val", "trainval", "test"});
  std::vector<std::string> parts = {split};
  if (split == "trainval") parts = {"train", "val"};
  std::vector<SamplePaths> samples;
  std::vector<std::string> unused;
  for (const std::string& part : parts) {
    std::error_code unreadable;
    const fs::path images = root / part, labels = root / (part + "annot");
    CONVOY_CHECK(fs::is_directory(images, unreadable),
                 "{}: no CamVid split '{}' here (no folder {}); set DATASET.ROOT to the folder of train, trainannot, "
                 "val and valannot",
                 root.string(), part, part);
    const bool unlabelled = part == "test" && !fs::is_directory(labels, unreadable);
    for (SamplePaths& sample : pair_by_name(root, images, unlabelled ? "" : labels, unused))
      samples.push_back(std::move(sample));
  }
  require_files(samples, split, missing);
  ClassTable classes = camvid_classes();
  LabelTable labels = identity_labels(static_cast<int64_t>(classes.names.size()), kVoid);
  return {root.string(),      split,   std::move(samples), std::move(labels),
          std::move(classes), nullptr, {Color{0, 0, 0}},   std::move(unused)};
}

}  // namespace convoy
