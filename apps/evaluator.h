// Segmentation scores of a network over a data set, from exact integer counts.
#pragma once
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>

#include "apps/predictor.h"
#include "io/dataset.h"

namespace convoy {

/// Pixel counts by (target, prediction), and the scores that follow from them.
struct SegmentationScores {
  int64_t classes = 0;
  std::vector<int64_t> confusion;  ///< (classes, classes), row = target; ignored pixels are not counted
  int64_t images = 0;

  int64_t labelled_pixels() const;
  /// Correct / labelled pixels; nullopt when nothing is labelled.
  std::optional<double> pixel_accuracy() const;
  /// Intersection over union; nullopt for a class that occurs neither in targets nor in predictions.
  std::optional<double> iou(int64_t c) const;
  /// Mean over all classes; absent ones count as 0 (the reference's rule).
  double miou() const;
  /// Mean over the classes that occur; nullopt when none does.
  std::optional<double> miou_present() const;
  /// {"eval": true, "pixel_accuracy", "miou", "miou_present", "images", "iou": {name: value or null}}
  nlohmann::ordered_json json(const std::vector<std::string>& names) const;
};

struct EvaluationOptions {
  int64_t batch_size = 1;                        ///< images of equal size that run together
  std::optional<SizeHW> val_crop;                ///< DATASET.MODE val: resize and centre-crop; else native size
  std::function<bool()> stop;                    ///< asked between images; true: give up
  std::function<void(const std::string&)> skip;  ///< told of an unreadable sample that is left out; empty: Error
  std::function<void(int64_t done, int64_t all)> progress;  ///< told of this rank's images
  /// Gets every image as the network saw it, with its classes; called on the rank that scored it.
  std::function<void(int64_t index, const Image&, const LabelMap& prediction)> prediction;
  Communicator* communicator = nullptr;  ///< the ranks that share the images; null: one rank
};

/// Every image of the data set once: image i is rank (i mod ranks)'s. The counts are whole numbers, so that the scores,
/// which every rank gets, do not depend on the number of ranks. Nothing is exchanged before a rank is done with its
/// images. Returns nullopt on every rank when `stop` said so on one. Throws Error naming the file for one that cannot
/// be read, unless `skip` is given.
std::optional<SegmentationScores> evaluate_dataset(Predictor& predictor, const SegmentationDataset& dataset,
                                                   const EvaluationOptions& options);

/// Batch size and mode as configured.
EvaluationOptions evaluation_options(const Config& config);

/// Table "id class IoU", one class a line, with both means: for people.
std::string score_table(const SegmentationScores& scores, const std::vector<std::string>& names);

}  // namespace convoy
