#include <algorithm>
#include <filesystem>

#include "engine/error.h"
#include "io/color_masks.h"
#include "io/dataset_parts.h"

namespace convoy {
namespace {

namespace fs = std::filesystem;

std::string with_split(std::string text, const std::string& split) {
  for (size_t at = 0; (at = text.find("{split}", at)) != std::string::npos; at += split.size()) {
    text.replace(at, 7, split);
  }
  return text;
}

struct FolderPair {
  fs::path images, masks;
};

FolderPair find_folders(const DatasetConfig& config, const fs::path& root, const std::string& split) {
  if (!config.image_dir.empty() || !config.mask_dir.empty()) {
    CONVOY_CHECK(!config.image_dir.empty() && !config.mask_dir.empty(),
                 "DATASET.IMAGE_DIR and DATASET.MASK_DIR are set together or not at all");
    return {root / with_split(config.image_dir, split), root / with_split(config.mask_dir, split)};
  }
  const std::vector<FolderPair> layouts = {{root / "images" / split, root / "masks" / split},
                                           {root / split, root / (split + "annot")},
                                           {root / split / "images", root / split / "masks"}};
  for (const FolderPair& layout : layouts) {
    if (fs::is_directory(layout.images) && fs::is_directory(layout.masks)) return layout;
  }
  fail(
      "{}: no images of split '{}': none of the folder pairs images/{} + masks/{}, {} + {}annot, {}/images + {}/masks "
      "exists; set DATASET.ROOT, or DATASET.IMAGE_DIR and DATASET.MASK_DIR",
      root.string(), split, split, split, split, split, split, split);
}

ClassTable read_classes(const fs::path& path) {
  ClassTable table;
  for (const NamedColor& line : read_named_colors(path)) {
    CONVOY_CHECK(std::find(table.names.begin(), table.names.end(), line.name) == table.names.end(),
                 "{}:{}: class '{}' is listed twice", path.string(), line.number, line.name);
    table.colors.push_back(line.color.value_or(voc_color(static_cast<int64_t>(table.names.size()))));
    table.names.push_back(line.name);
  }
  CONVOY_CHECK(!table.names.empty(), "{}: lists no class", path.string());
  return table;
}

ClassTable find_classes(const DatasetConfig& config, const fs::path& root) {
  const fs::path file = root / "classes.txt";
  if (fs::exists(file)) {
    ClassTable table = read_classes(file);
    const auto listed = static_cast<int64_t>(table.names.size());
    CONVOY_CHECK(config.num_classes == 0 || config.num_classes == listed,
                 "{} lists {} classes, DATASET.NUM_CLASSES is {}", file.string(), listed, config.num_classes);
    return table;
  }
  CONVOY_CHECK(config.num_classes > 0,
               "{}: the number of classes is unknown; set DATASET.NUM_CLASSES or write classes.txt", root.string());
  ClassTable table;
  for (int64_t index = 0; index < config.num_classes; ++index) {
    table.names.push_back(fmt::format("class {}", index));
    table.colors.push_back(voc_color(index));
  }
  return table;
}

}  // namespace

DatasetParts read_folder(const DatasetConfig& config, const std::string& split, MissingLabels missing) {
  CONVOY_CHECK(!config.root.empty(), "DATASET.ROOT is not set: the folder data set needs it");
  const fs::path root = dataset_root(config, "folder");
  ClassTable classes = find_classes(config, root);
  const FolderPair folders = find_folders(config, root, split);
  std::vector<std::string> unused;
  std::vector<SamplePaths> samples = pair_by_name(root, folders.images, folders.masks, unused);
  require_files(samples, split, missing);
  LabelTable labels = identity_labels(static_cast<int64_t>(classes.names.size()), config.ignore_label);
  return {root.string(), split, std::move(samples), std::move(labels), std::move(classes),
          nullptr,       {},    std::move(unused)};
}

}  // namespace convoy
