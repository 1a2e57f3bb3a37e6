#include "engine/error.h"
#include "io/dataset_parts.h"

namespace convoy {

namespace fs = std::filesystem;

DatasetParts read_sbu(const DatasetConfig& config, const std::string& split, MissingLabels missing) {
  const fs::path root = dataset_root(config, "sbu");
  require_split("sbu", split, {"train", "val", "test"});
  const fs::path part = root / (split == "train" ? "SBUTrain4KRecoveredSmall" : "SBU-Test");
  std::vector<std::string> unused;
  std::vector<SamplePaths> samples = pair_by_name(root, part / "ShadowImages", part / "ShadowMasks", unused);
  require_files(samples, split, missing);
  LabelTable labels{std::vector<int32_t>(256, 1), "0 (background) and 1..255 (shadow)"};
  labels.classes[0] = 0;
  ClassTable classes{{"background", "shadow"}, {voc_color(0), voc_color(1)}, {0, 255}};
  return {root.string(), split, std::move(samples), std::move(labels), std::move(classes),
          nullptr,       {},    std::move(unused)};
}

}  // namespace convoy
