// Segmentation data sets: a sorted list of image and label files, a table from file values to classes, and names.
// Every layout (Cityscapes, plain folders) only differs in how that list and table are made.
#pragma once
#include <cstdint>
#include <limits>
#include <memory>
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
  std::string image, label;  ///< absolute; label empty: the split has no labels
  std::string name;          ///< as Sample::name
};

/// Values in the label files to classes; kIgnoreLabel itself stays.
struct LabelTable {
  static constexpr int32_t kInvalid = std::numeric_limits<int32_t>::min();
  std::vector<int32_t> classes;  ///< file value -> class, kIgnoreLabel or kInvalid; values beyond the end are invalid
  std::string allowed;           ///< "0..10, 11 = ignore", for messages
};

/// What the classes are called, drawn as, and written as.
struct ClassTable {
  std::vector<std::string> names;
  std::vector<Color> colors;
  std::vector<int32_t> file_values;  ///< class -> its value in the data set's label files; empty: the class itself

  /// Turns classes into file values in place: predictions in the data set's own encoding. Negative ones stay.
  void to_file_values(LabelMap& labels) const;
};

/// Label files that are no index PNGs.
class LabelFormat {
 public:
  virtual ~LabelFormat() = default;
  /// File values (H,W) of one sample; called from several threads. Throws Error naming the file and the fault.
  virtual LabelMap read(const SamplePaths& sample) const = 0;
  /// Their size, as cheaply as it is to be had. Throws as read() does.
  virtual SizeHW size(const SamplePaths& sample) const = 0;
};

/// What a reader makes of a data set's folder.
struct DatasetParts {
  std::string root, split;           ///< for messages
  std::vector<SamplePaths> samples;  ///< in any order
  LabelTable labels;
  ClassTable classes;
  std::shared_ptr<const LabelFormat> format;  ///< null: index PNGs
  std::vector<Color> ignore_colors;           ///< of pixels that are ignored, in colour masks
  std::vector<std::string> unused_labels;     ///< label files that belong to no image
};

class SegmentationDataset {
 public:
  /// Sorts the samples by name. Throws Error where there are none.
  explicit SegmentationDataset(DatasetParts parts);

  int64_t size() const { return static_cast<int64_t>(parts_.samples.size()); }
  const std::string& image_path(int64_t index) const { return at(index).image; }
  const std::string& label_path(int64_t index) const { return at(index).label; }
  const std::string& sample_name(int64_t index) const { return at(index).name; }
  int64_t num_classes() const { return static_cast<int64_t>(parts_.classes.names.size()); }
  const std::vector<std::string>& class_names() const { return parts_.classes.names; }
  const std::vector<Color>& palette() const { return parts_.classes.colors; }
  const ClassTable& classes() const { return parts_.classes; }
  const std::string& root() const { return parts_.root; }
  const std::string& split() const { return parts_.split; }
  bool has_labels() const { return !parts_.samples.front().label.empty(); }
  /// Files in the folders of labels that have no image of their name, where samples are paired by name.
  const std::vector<std::string>& labels_without_image() const { return parts_.unused_labels; }
  bool index_labels() const { return !parts_.format; }  ///< the label files are index PNGs

  /// Hash of the sorted names, the sizes of all files, and the first and last 4 KiB of the label files: equal data
  /// gives equal hashes on every machine.
  uint64_t content_hash() const { return content_hash_; }

  /// Reads both files; may be called from several threads. Throws Error naming the file and what is wrong: unreadable,
  /// sizes that differ (both files and sizes), a label outside the table (pixel, value, allowed values).
  Sample decode(int64_t index) const;

  /// Size of the label map without decoding it, where the format allows that. Throws Error naming the file.
  SizeHW label_size(int64_t index) const;

  /// The label file's values before they become classes.
  LabelMap read_file_values(int64_t index) const;

  /// Turns file values into classes in place; throws as decode() does, `path` names the file.
  void map_labels(LabelMap& labels, const std::string& path) const;

 private:
  const SamplePaths& at(int64_t index) const;

  DatasetParts parts_;
  uint64_t content_hash_ = 0;
};

/// What to do with images that have no label file, and with listed names that have no image.
enum class MissingLabels { error, keep };

/// By config.dataset.name, from DATASET.ROOT or the published default folder (docs/datasets.md lists both); a relative
/// folder counts from config.root_path, where that is set. A split without labels (test) opens with MissingLabels::keep
/// alone. Throws Error: unknown names and splits, folders and files that are missing, NUM_CLASSES or IGNORE_LABEL that
/// contradict the data set.
SegmentationDataset open_dataset(const Config& config, const std::string& split,
                                 MissingLabels missing = MissingLabels::error);

/// open_dataset for Cityscapes in `root`.
SegmentationDataset open_cityscapes(const std::string& root, const std::string& split,
                                    MissingLabels missing = MissingLabels::error);

/// open_dataset for a plain folder, config.root.
SegmentationDataset open_folder(const DatasetConfig& config, const std::string& split,
                                MissingLabels missing = MissingLabels::error);

/// The names that DATASET.NAME knows.
std::vector<std::string> dataset_names();

/// PASCAL VOC's colour for class `index`: the index's bits spread over the high bits of red, green and blue.
Color voc_color(int64_t index);

/// The official 34 Cityscapes ids' train ids (kIgnoreLabel where not evaluated), index = id 0..33.
const std::vector<int32_t>& cityscapes_train_ids();

}  // namespace convoy
