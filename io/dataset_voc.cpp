// PASCAL VOC 2012 and its augmented form (SBD).
#include "engine/error.h"
#include "io/dataset_parts.h"
#include "io/mat.h"

namespace convoy {
namespace {

namespace fs = std::filesystem;

/// Around the objects, and where it is hard to say what is there.
constexpr Color kBorder = {224, 224, 192};

/// cls/NAME.mat of SBD, or index PNGs of the same names.
class SbdLabels : public LabelFormat {
 public:
  LabelMap read(const SamplePaths& sample) const override {
    return sample.label.ends_with(".mat") ? read_mat_labels(sample.label, "GTcls", "Segmentation")
                                          : read_label_map(sample.label);
  }
  SizeHW size(const SamplePaths& sample) const override {
    const LabelMap labels = read(sample);  // a compressed file tells its size only when it is inflated
    return {labels.height, labels.width};
  }
};

}  // namespace

ClassTable voc_classes() {
  ClassTable classes{{"background", "aeroplane", "bicycle",     "bird",  "boat",        "bottle", "bus",
                      "car",        "cat",       "chair",       "cow",   "diningtable", "dog",    "horse",
                      "motorbike",  "person",    "pottedplant", "sheep", "sofa",        "train",  "tvmonitor"},
                     {},
                     {}};
  for (size_t c = 0; c < classes.names.size(); ++c) classes.colors.push_back(voc_color(static_cast<int64_t>(c)));
  return classes;
}

LabelTable voc_labels() {
  return identity_labels(21, 255);
}

DatasetParts read_pascal_voc(const DatasetConfig& config, const std::string& split, MissingLabels missing) {
  const fs::path root = dataset_root(config, "pascal_voc");
  require_split("pascal_voc", split, {"train", "val", "trainval", "test"});
  const fs::path labels = split == "test" ? "" : root / "SegmentationClass";
  std::vector<SamplePaths> samples =
      pair_by_list(root, root / "ImageSets" / "Segmentation" / (split + ".txt"), root / "JPEGImages", labels, missing);
  require_files(samples, split, missing);
  return {root.string(), split, std::move(samples), voc_labels(), voc_classes(), nullptr, {kBorder}};
}

DatasetParts read_pascal_aug(const DatasetConfig& config, const std::string& split, MissingLabels missing) {
  const fs::path root = dataset_root(config, "pascal_aug");
  require_split("pascal_aug", split, {"train", "val", "trainval"});
  std::error_code unreadable;
  const bool joined = split == "train" && fs::exists(root / "trainval.txt", unreadable);
  std::vector<SamplePaths> samples =
      pair_by_list(root, root / ((joined ? "trainval" : split) + ".txt"), root / "img", root / "cls", missing);
  for (SamplePaths& sample : samples) {
    const fs::path mat = fs::path(sample.label).replace_extension(".mat");
    if (fs::exists(mat, unreadable) || !fs::exists(sample.label, unreadable)) sample.label = mat.string();
  }
  require_files(samples, split, missing);
  return {root.string(), split, std::move(samples), voc_labels(), voc_classes(), std::make_shared<SbdLabels>()};
}

}  // namespace convoy
