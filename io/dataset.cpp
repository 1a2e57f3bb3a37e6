#include "io/dataset.h"

#include <algorithm>
#include <filesystem>

#include "engine/error.h"
#include "engine/rng.h"

namespace convoy {

SegmentationDataset::SegmentationDataset(std::string root, std::string split, std::vector<SamplePaths> samples,
                                         LabelTable labels, ClassTable classes)
    : root_(std::move(root)),
      split_(std::move(split)),
      samples_(std::move(samples)),
      labels_(std::move(labels)),
      classes_(std::move(classes)) {
  CONVOY_CHECK(!samples_.empty(), "{}: no images in split '{}'", root_, split_);
  std::sort(samples_.begin(), samples_.end(),
            [](const SamplePaths& a, const SamplePaths& b) { return a.name < b.name; });
  content_hash_ = fnv1a(split_);
  for (const SamplePaths& sample : samples_) {
    content_hash_ = fnv1a(sample.name, content_hash_);
    for (const std::string& path : {sample.image, sample.label}) {
      std::error_code missing;
      const uintmax_t bytes = std::filesystem::file_size(path, missing);
      content_hash_ = mix(content_hash_, missing ? 0 : static_cast<uint64_t>(bytes));
    }
  }
}

const SamplePaths& SegmentationDataset::at(int64_t index) const {
  CONVOY_CHECK(index >= 0 && index < size(), "{}: sample {} of {} in split '{}'", root_, index, size(), split_);
  return samples_[static_cast<size_t>(index)];
}

void SegmentationDataset::map_labels(LabelMap& labels, const std::string& path) const {
  const auto known = static_cast<int64_t>(labels_.classes.size());
  for (size_t i = 0; i < labels.data.size(); ++i) {
    const int32_t value = labels.data[i];
    const int32_t mapped =
        value >= 0 && value < known ? labels_.classes[static_cast<size_t>(value)] : LabelTable::kInvalid;
    if (mapped == LabelTable::kInvalid) {
      fail("{}: label value {} at pixel (x {}, y {}); allowed are {}", path, value,
           static_cast<int64_t>(i) % labels.width, static_cast<int64_t>(i) / labels.width, labels_.allowed);
    }
    labels.data[i] = mapped;
  }
}

Sample SegmentationDataset::decode(int64_t index) const {
  const SamplePaths& paths = at(index);
  Sample sample{read_image_rgb(paths.image), {}, paths.name};
  std::error_code unreadable;
  CONVOY_CHECK(std::filesystem::exists(paths.label, unreadable), "{}: its label file {} is missing", paths.image,
               paths.label);
  sample.labels = read_label_map(paths.label);
  CONVOY_CHECK(sample.image.height == sample.labels.height && sample.image.width == sample.labels.width,
               "{} has {} x {} pixels (height x width), but its label file {} has {} x {}", paths.image,
               sample.image.height, sample.image.width, paths.label, sample.labels.height, sample.labels.width);
  map_labels(sample.labels, paths.label);
  return sample;
}

SegmentationDataset open_dataset(const Config& config, const std::string& split, MissingLabels missing) {
  DatasetConfig dataset = config.dataset;
  CONVOY_CHECK(!dataset.name.empty(), "DATASET.NAME is not set; choose cityscape or folder");
  if (!dataset.root.empty() && !config.root_path.empty()) {
    dataset.root = (std::filesystem::path(config.root_path) / dataset.root).string();
  }
  if (dataset.name == "cityscape") {
    SegmentationDataset data =
        open_cityscapes(dataset.root.empty() ? "datasets/cityscapes" : dataset.root, split, missing);
    CONVOY_CHECK(dataset.num_classes == 0 || dataset.num_classes == data.num_classes(),
                 "DATASET.NUM_CLASSES is {}, but DATASET.NAME cityscape has {} classes; remove the key",
                 dataset.num_classes, data.num_classes());
    return data;
  }
  if (dataset.name == "folder") return open_folder(dataset, split, missing);
  const std::vector<std::string> known = {"cityscape", "folder"};
  fail("DATASET.NAME {}: no reader for this data set; known are cityscape and folder, the nearest is {}", dataset.name,
       nearest_name(dataset.name, known));
}

Color voc_color(int64_t index) {
  Color color{};
  for (int bit = 7; bit >= 0; --bit, index >>= 3) {
    for (size_t channel = 0; channel < 3; ++channel) {
      color[channel] = static_cast<uint8_t>(color[channel] | ((index >> channel & 1) << bit));
    }
  }
  return color;
}

}  // namespace convoy
