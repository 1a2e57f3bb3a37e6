#include "io/dataset.h"

#include <algorithm>
#include <filesystem>

#include "engine/error.h"
#include "engine/rng.h"
#include "io/checksum.h"
#include "io/color_masks.h"
#include "io/dataset_parts.h"
#include "io/file.h"

namespace convoy {

namespace {

/// The first and last 4 KiB of a file and its size; 0 for a file that is missing or none that can be read.
uint64_t sampled_hash(const std::string& path) {
  constexpr size_t kSampled = 4096;
  const auto ends = read_file_ends(path, kSampled);
  if (!ends) return 0;
  const uint64_t hash = mix(ends->bytes, crc64(ends->head.data(), ends->head.size()));
  return ends->bytes <= kSampled ? hash : mix(hash, crc64(ends->tail.data(), ends->tail.size()));
}

uint64_t hash_of(const DatasetParts& parts) {
  uint64_t hash = fnv1a(parts.split), label_hash = 0;
  const std::string* label = nullptr;  // one file may hold the labels of all samples
  for (const SamplePaths& sample : parts.samples) {
    if (!label || *label != sample.label) label_hash = sampled_hash(sample.label);
    label = &sample.label;
    std::error_code missing;
    const uintmax_t bytes = std::filesystem::file_size(sample.image, missing);
    hash = fnv1a(sample.name, hash);
    hash = mix(hash, missing ? 0 : static_cast<uint64_t>(bytes));
    hash = mix(hash, label_hash);
  }
  return hash;
}

struct NamedReader {
  std::string name, default_root;
  DatasetReader read;
};

const std::vector<NamedReader>& readers() {
  static const std::vector<NamedReader> table = {
      {"cityscape", "datasets/cityscapes", read_cityscapes},
      {"camvid", "datasets/camvid", read_camvid},
      {"ade20k", "datasets/ade/ADEChallengeData2016", read_ade20k},
      {"pascal_voc", "datasets/voc/VOC2012", read_pascal_voc},
      {"pascal_aug", "datasets/voc/VOCaug/dataset", read_pascal_aug},
      {"coco", "datasets/coco", read_coco},
      {"sbu", "datasets/sbu", read_sbu},
      {"lip", "datasets/LIP", read_lip},
      {"folder", "", read_folder},
  };
  return table;
}

SegmentationDataset open_with(DatasetReader read, const DatasetConfig& config, const std::string& split,
                              MissingLabels missing) {
  DatasetParts parts = read(config, split, missing);
  const auto classes = static_cast<int64_t>(parts.classes.names.size());
  CONVOY_CHECK(config.num_classes == 0 || config.num_classes == classes,
               "DATASET.NUM_CLASSES is {}, but DATASET.NAME {} has {} classes; remove the key", config.num_classes,
               config.name, classes);
  if (config.ignore_label) ignore_value(parts.labels, *config.ignore_label);
  if (!config.mask_colors.empty()) {
    CONVOY_CHECK(!parts.format, "DATASET.MASK_COLORS is set, but the labels of DATASET.NAME {} are no PNGs",
                 config.name);
    parts.format = color_masks(parts, config.mask_colors);
  }
  return SegmentationDataset(std::move(parts));
}

}  // namespace

void ClassTable::to_file_values(LabelMap& labels) const {
  if (file_values.empty()) return;
  for (int32_t& label : labels.data) {
    if (label < 0) continue;
    CONVOY_CHECK(label < static_cast<int64_t>(file_values.size()), "class {} of {}", label, file_values.size());
    label = file_values[static_cast<size_t>(label)];
  }
}

SegmentationDataset::SegmentationDataset(DatasetParts parts) : parts_(std::move(parts)) {
  CONVOY_CHECK(!parts_.samples.empty(), "{}: no images in split '{}'", parts_.root, parts_.split);
  std::sort(parts_.samples.begin(), parts_.samples.end(),
            [](const SamplePaths& a, const SamplePaths& b) { return a.name < b.name; });
  content_hash_ = hash_of(parts_);
}

const SamplePaths& SegmentationDataset::at(int64_t index) const {
  CONVOY_CHECK(index >= 0 && index < size(), "{}: sample {} of {} in split '{}'", parts_.root, index, size(),
               parts_.split);
  return parts_.samples[static_cast<size_t>(index)];
}

void SegmentationDataset::map_labels(LabelMap& labels, const std::string& path) const {
  const auto known = static_cast<int64_t>(parts_.labels.classes.size());
  for (size_t i = 0; i < labels.data.size(); ++i) {
    const int32_t value = labels.data[i];
    if (value == kIgnoreLabel) continue;
    const int32_t mapped =
        value >= 0 && value < known ? parts_.labels.classes[static_cast<size_t>(value)] : LabelTable::kInvalid;
    if (mapped == LabelTable::kInvalid) {
      fail("{}: label value {} at pixel (x {}, y {}); allowed are {}", path, value,
           static_cast<int64_t>(i) % labels.width, static_cast<int64_t>(i) / labels.width, parts_.labels.allowed);
    }
    labels.data[i] = mapped;
  }
}

SizeHW SegmentationDataset::label_size(int64_t index) const {
  const SamplePaths& paths = at(index);
  if (parts_.format) return parts_.format->size(paths);
  const ImageHeader header = read_image_header(paths.label);
  return {header.height, header.width};
}

LabelMap SegmentationDataset::read_file_values(int64_t index) const {
  const SamplePaths& paths = at(index);
  CONVOY_CHECK(!paths.label.empty(), "{}: split '{}' has no labels", parts_.root, parts_.split);
  std::error_code unreadable;
  CONVOY_CHECK(std::filesystem::exists(paths.label, unreadable), "{}: its label file {} is missing", paths.image,
               paths.label);
  return parts_.format ? parts_.format->read(paths) : read_label_map(paths.label);
}

Sample SegmentationDataset::decode(int64_t index) const {
  const SamplePaths& paths = at(index);
  Sample sample{read_image_rgb(paths.image), read_file_values(index), paths.name};
  CONVOY_CHECK(sample.image.height == sample.labels.height && sample.image.width == sample.labels.width,
               "{} has {} x {} pixels (height x width), but its label file {} has {} x {}", paths.image,
               sample.image.height, sample.image.width, paths.label, sample.labels.height, sample.labels.width);
  map_labels(sample.labels, paths.label);
  return sample;
}

std::vector<std::string> dataset_names() {
  std::vector<std::string> names;
  for (const NamedReader& reader : readers()) names.push_back(reader.name);
  return names;
}

SegmentationDataset open_dataset(const Config& config, const std::string& split, MissingLabels missing) {
  DatasetConfig dataset = config.dataset;
  CONVOY_CHECK(!dataset.name.empty(), "DATASET.NAME is not set; choose one of {}", fmt::join(dataset_names(), ", "));
  const auto reader = std::find_if(readers().begin(), readers().end(),
                                   [&](const NamedReader& known) { return known.name == dataset.name; });
  if (reader == readers().end())
    fail("DATASET.NAME {}: no reader for this data set; known are {}{}", dataset.name, fmt::join(dataset_names(), ", "),
         nearest_hint(dataset.name, dataset_names()));
  if (dataset.root.empty()) dataset.root = reader->default_root;
  if (!dataset.root.empty() && !config.root_path.empty()) {
    dataset.root = (std::filesystem::path(config.root_path) / dataset.root).string();
  }
  return open_with(reader->read, dataset, split, missing);
}

SegmentationDataset open_cityscapes(const std::string& root, const std::string& split, MissingLabels missing) {
  DatasetConfig config;
  config.name = "cityscape";
  config.root = root;
  return open_with(read_cityscapes, config, split, missing);
}

SegmentationDataset open_folder(const DatasetConfig& config, const std::string& split, MissingLabels missing) {
  return open_with(read_folder, config, split, missing);
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
