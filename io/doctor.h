// Looks for faults in a data set before the first training step.
#pragma once
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "io/dataset.h"

namespace convoy {

enum class Severity { note, warning, error };

struct Finding {
  Severity severity = Severity::error;
  std::string kind;     ///< missing, corrupt, size, label, palette, class, ignore, unused, leak, time
  std::string message;  ///< names the file
};

/// How much of a data set to look at; samples are spread evenly over it.
struct CheckOptions {
  int64_t headers = -1;                                      ///< samples whose headers are read; -1: all
  int64_t decoded = -1;                                      ///< of those, samples that are decoded whole; -1: all
  double seconds = std::numeric_limits<double>::infinity();  ///< then no further sample is begun
  int64_t threads = 1;                                       ///< that read and decode
  std::function<void(int64_t index)> looking_at = nullptr;   ///< told before a sample's files are read, by any thread
};

/// What `convoy train` looks at when it starts.
CheckOptions quick_check();

struct DatasetReport {
  std::vector<Finding> findings;   ///< in the data set's order, those on the whole set last
  int64_t headers = 0;             ///< samples whose two headers were read
  int64_t decoded = 0;             ///< samples decoded whole
  std::vector<int64_t> histogram;  ///< pixels per class over the decoded samples
  int64_t ignored_pixels = 0;      ///< over the decoded samples
  SizeHW smallest, largest;        ///< of the images whose headers were read, by number of pixels

  int64_t count(Severity severity) const;
};

/// Looks for missing and unreadable files, colour masks, sizes that differ, palettes that contradict the classes,
/// damage behind the header, labels outside the range, samples and sets that are ignored, classes that do not occur,
/// label files without an image. open_dataset with MissingLabels::keep lets it list every missing file. Throws nothing
/// for a bad file.
DatasetReport check_dataset(const SegmentationDataset& dataset, const CheckOptions& options = {});

/// Images of `val` that are in `train`, too: the same path, or byte for byte the same file. `seconds` as above.
std::vector<Finding> check_leak(const SegmentationDataset& train, const SegmentationDataset& val,
                                double seconds = std::numeric_limits<double>::infinity());

/// "error", "warning" or "note".
const char* severity_name(Severity severity);

}  // namespace convoy
