#include "engine/error.h"
#include "io/dataset_parts.h"

namespace convoy {
namespace {

namespace fs = std::filesystem;

ClassTable lip_classes() {
  ClassTable classes{{"background", "hat",       "hair",     "glove",     "sunglasses", "upper clothes", "dress",
                      "coat",       "socks",     "pants",    "jumpsuit",  "scarf",      "skirt",         "face",
                      "left arm",   "right arm", "left leg", "right leg", "left shoe",  "right shoe"},
                     {},
                     {}};
  for (size_t c = 0; c < classes.names.size(); ++c) classes.colors.push_back(voc_color(static_cast<int64_t>(c)));
  return classes;
}

std::vector<SamplePaths> list_part(const fs::path& root, const std::string& part, MissingLabels missing) {
  if (part == "test") {
    const fs::path folder = root / "Testing_images";
    return pair_by_list(root, folder / "test_id.txt", folder / "testing_images", "", missing);
  }
  const fs::path folder = root / "TrainVal_images";
  return pair_by_list(root, folder / (part + "_id.txt"), folder / (part + "_images"),
                      root / "TrainVal_parsing_annotations" / (part + "_segmentations"), missing);
}

}  // namespace

DatasetParts read_lip(const DatasetConfig& config, const std::string& split, MissingLabels missing) {
  const fs::path root = dataset_root(config, "lip");
  require_split("lip", split, {"train", "val", "trainval", "test"});
  std::vector<SamplePaths> samples = list_part(root, split == "trainval" ? "train" : split, missing);
  if (split == "trainval")
    for (SamplePaths& sample : list_part(root, "val", missing)) samples.push_back(std::move(sample));
  require_files(samples, split, missing);
  ClassTable classes = lip_classes();
  LabelTable labels = identity_labels(static_cast<int64_t>(classes.names.size()), std::nullopt);
  return {root.string(), split, std::move(samples), std::move(labels), std::move(classes), nullptr};
}

}  // namespace convoy
