// Segmentation data sets: a sorted list of image and label files, a table from file values to classes, and names.
// Every layout (Cityscapes, plain folders) only differs in how that list and table are made.
#pragma once
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "io/config.h"
#include "io/image.h"

namespace convoy {

/// The one ignore value of the whole chain: pixels with it count in no loss and no metric.
inline constexpr int32_t kIgnoreLabel = -1;

/// One decoded sample: image (H,W,3) and classes (H,W) of the same size.
struct Sample {
  Image image;
  LabelMap labels;
  std::string name;  ///< the image's path relative to the data set's folder
};

struct SamplePaths {
  std::string image, label;  ///< absolute
  std::string name;          ///< as Sample::name
};

/// Values in the label files to classes.
struct LabelTable {
  static constexpr int32_t kInvalid = std::numeric_limits<int32_t>::min();
  std::vector<int32_t> classes;  ///< file value -> class, kIgnoreLabel or kInvalid; values beyond the end are invalid
  std::string allowed;           ///< "0..10, 11 = ignore", for messages
};

/// What the classes are called and drawn as.
struct ClassTable {
  std::vector<std::string> names;
  std::vector<Color> colors;
};

class SegmentationDataset {
 public:
  /// `samples` in any order (they are sorted by name); `root` and `split` for messages.
  SegmentationDataset(std::string root, std::string split, std::vector<SamplePaths> samples, LabelTable labels,
                      ClassTable classes);

  int64_t size() const { return static_cast<int64_t>(samples_.size()); }
  const std::string& image_path(int64_t index) const { return at(index).image; }
  const std::string& label_path(int64_t index) const { return at(index).label; }
  const std::string& sample_name(int64_t index) const { return at(index).name; }
  int64_t num_classes() const { return static_cast<int64_t>(classes_.names.size()); }
  const std::vector<std::string>& class_names() const { return classes_.names; }
  const std::vector<Color>& palette() const { return classes_.colors; }
  const std::string& root() const { return root_; }
  const std::string& split() const { return split_; }

  /// Hash of the sorted names and file sizes: equal lists give equal hashes on every machine.
  uint64_t content_hash() const { return content_hash_; }

  /// Reads both files; may be called from several threads. Throws Error naming the file and what is wrong: unreadable,
  /// sizes that differ (both files and sizes), a label outside the table (pixel, value, allowed values).
  Sample decode(int64_t index) const;

  /// Turns file values into classes in place; throws as decode() does, `path` names the file.
  void map_labels(LabelMap& labels, const std::string& path) const;

 private:
  const SamplePaths& at(int64_t index) const;

  std::string root_, split_;
  std::vector<SamplePaths> samples_;
  LabelTable labels_;
  ClassTable classes_;
  uint64_t content_hash_ = 0;
};

/// What to do with images that have no label file.
enum class MissingLabels { error, keep };

/// Cityscapes: ROOT/{leftImg8bit,gtFine}/SPLIT/CITY/*_{leftImg8bit,gtFine_labelIds}.png; 19 classes. Split: train, val,
/// trainval (both). Names that begin with "." are skipped.
SegmentationDataset open_cityscapes(const std::string& root, const std::string& split,
                                    MissingLabels missing = MissingLabels::error);

/// Images and masks of the same base name in two folders: config.image_dir and mask_dir with {split} replaced, else the
/// first that exists of images/SPLIT + masks/SPLIT, SPLIT + SPLITannot, SPLIT/images + SPLIT/masks. Classes:
/// num_classes and, one per line, ROOT/classes.txt (name, or name and red green blue).
SegmentationDataset open_folder(const DatasetConfig& config, const std::string& split,
                                MissingLabels missing = MissingLabels::error);

/// By config.dataset.name; a relative ROOT counts from config.root_path, where that is set.
SegmentationDataset open_dataset(const Config& config, const std::string& split,
                                 MissingLabels missing = MissingLabels::error);

/// PASCAL VOC's colour for class `index`: the index's bits spread over the high bits of red, green and blue.
Color voc_color(int64_t index);

/// The official 34 Cityscapes ids' train ids (kIgnoreLabel where not evaluated), index = id 0..33.
const std::vector<int32_t>& cityscapes_train_ids();

}  // namespace convoy
