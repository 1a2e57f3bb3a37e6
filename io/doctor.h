// Looks for faults in a data set before the first training step.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "io/dataset.h"

namespace convoy {

enum class Severity { note, warning, error };

struct Finding {
  Severity severity = Severity::error;
  std::string kind;     ///< missing, corrupt, size, label, class, ignore, leak
  std::string message;  ///< names the file
};

struct DatasetReport {
  std::vector<Finding> findings;   ///< in the data set's order, histogram findings last
  int64_t headers = 0;             ///< samples whose two headers were read
  int64_t decoded = 0;             ///< samples decoded whole
  std::vector<int64_t> histogram;  ///< pixels per class over the decoded samples
  int64_t ignored_pixels = 0;      ///< over the decoded samples
};

/// Reads the headers of all files (missing, unreadable, colour masks, sizes that differ) and decodes `limit` samples
/// spread evenly over the set (-1 = all): damage behind the header, labels outside the range, the class histogram.
/// `open_*` with MissingLabels::keep lets it list every missing label. Throws nothing for a bad file. `looking_at` is
/// told of each sample before its files are read.
DatasetReport check_dataset(const SegmentationDataset& dataset, int64_t limit,
                            const std::function<void(int64_t index)>& looking_at = {});

/// Images of `val` whose file is byte for byte an image of `train`.
std::vector<Finding> check_leak(const SegmentationDataset& train, const SegmentationDataset& val);

/// "error", "warning" or "note".
const char* severity_name(Severity severity);

}  // namespace convoy
