#include "apps/evaluator.h"

#include <future>
#include <utility>

#include "kernels/metrics.h"

namespace convoy {
namespace {

void sum_over_ranks(Communicator& communicator, SegmentationScores& scores, int64_t& stopped) {
  std::vector<int64_t> counts = scores.confusion;
  counts.push_back(scores.images);
  counts.push_back(stopped);
  communicator.all_reduce(std::span<int64_t>(counts), ReduceOp::kSum, "scores of the evaluation");
  stopped = counts.back();
  counts.pop_back();
  scores.images = counts.back();
  counts.pop_back();
  scores.confusion = std::move(counts);
}

}  // namespace

int64_t SegmentationScores::labelled_pixels() const {
  int64_t sum = 0;
  for (const int64_t count : confusion) sum += count;
  return sum;
}

std::optional<double> SegmentationScores::pixel_accuracy() const {
  int64_t correct = 0;
  for (int64_t c = 0; c < classes; ++c) correct += confusion[static_cast<size_t>(c * classes + c)];
  const int64_t labelled = labelled_pixels();
  if (labelled == 0) return std::nullopt;
  return static_cast<double>(correct) / static_cast<double>(labelled);
}

std::optional<double> SegmentationScores::iou(int64_t c) const {
  int64_t target = 0, predicted = 0;
  for (int64_t other = 0; other < classes; ++other) {
    target += confusion[static_cast<size_t>(c * classes + other)];
    predicted += confusion[static_cast<size_t>(other * classes + c)];
  }
  const int64_t both = confusion[static_cast<size_t>(c * classes + c)], either = target + predicted - both;
  if (either == 0) return std::nullopt;
  return static_cast<double>(both) / static_cast<double>(either);
}

double SegmentationScores::miou() const {
  double sum = 0;
  for (int64_t c = 0; c < classes; ++c) sum += iou(c).value_or(0);
  return classes ? sum / static_cast<double>(classes) : 0;
}

std::optional<double> SegmentationScores::miou_present() const {
  double sum = 0;
  int64_t present = 0;
  for (int64_t c = 0; c < classes; ++c)
    if (const auto value = iou(c)) {
      sum += *value;
      ++present;
    }
  if (present == 0) return std::nullopt;
  return sum / static_cast<double>(present);
}

nlohmann::ordered_json SegmentationScores::json(const std::vector<std::string>& names) const {
  const auto value = [](const std::optional<double>& v) {
    return v ? nlohmann::ordered_json(*v) : nlohmann::ordered_json();
  };
  nlohmann::ordered_json by_class = nlohmann::ordered_json::object();
  for (int64_t c = 0; c < classes; ++c) by_class[names[static_cast<size_t>(c)]] = value(iou(c));
  return {{"eval", true},
          {"images", images},
          {"pixel_accuracy", value(pixel_accuracy())},
          {"miou", miou()},
          {"miou_present", value(miou_present())},
          {"iou", by_class}};
}

EvaluationOptions evaluation_options(const Config& config) {
  EvaluationOptions options{.batch_size = config.test.batch_size};
  if (config.dataset.mode == "val") options.val_crop = config.train.crop_size;
  return options;
}

std::optional<SegmentationScores> evaluate_dataset(Predictor& predictor, const SegmentationDataset& dataset,
                                                   const EvaluationOptions& options) {
  const int64_t classes = dataset.num_classes();
  SegmentationScores scores{.classes = classes,
                            .confusion = std::vector<int64_t>(static_cast<size_t>(classes * classes))};
  std::vector<Image> images;
  std::vector<LabelMap> targets;
  std::vector<int64_t> indices;
  const int ranks = options.communicator ? options.communicator->size() : 1;
  const int rank = options.communicator ? options.communicator->rank() : 0;
  const int64_t mine = (dataset.size() - rank + ranks - 1) / ranks;
  const auto flush = [&] {
    if (images.empty()) return;
    const std::vector<LabelMap> predictions = predictor.predict(images);
    for (size_t i = 0; i < images.size(); ++i) {
      confusion_matrix(predictions[i].data.data(), targets[i].data.data(), static_cast<int64_t>(targets[i].data.size()),
                       classes, kIgnoreLabel, scores.confusion.data());
      if (options.prediction) options.prediction(indices[i], images[i], predictions[i]);
    }
    scores.images += static_cast<int64_t>(images.size());
    if (options.progress) options.progress(indices.back() / ranks + 1, mine);
    images.clear();
    targets.clear();
    indices.clear();
  };
  const auto decode = [&](int64_t index) {
    if (options.communicator) options.communicator->set_data_file(dataset.image_path(index));
    Sample sample = dataset.decode(index);
    return options.val_crop ? augment_val(sample, *options.val_crop) : std::move(sample);
  };

  std::future<Sample> next;  // decodes ahead of the network by one
  const auto start_decoding = [&](int64_t index) {
    if (index < dataset.size()) next = std::async(std::launch::async, decode, index);
  };
  start_decoding(rank);
  int64_t stopped = 0;
  for (int64_t index = rank; index < dataset.size(); index += ranks) {
    std::future<Sample> current = std::exchange(next, {});
    start_decoding(index + ranks);
    if (options.stop && options.stop()) {
      stopped = 1;
      break;
    }
    if (ranks > 1)
      options.communicator->set_activity(fmt::format("evaluating image {} of {}", index + 1, dataset.size()));
    Sample sample;
    try {
      sample = current.get();
    } catch (const Error& error) {
      if (!options.skip) throw;
      options.skip(error.what());
      continue;
    }
    if (!images.empty() && (images[0].height != sample.image.height || images[0].width != sample.image.width)) flush();
    images.push_back(std::move(sample.image));
    targets.push_back(std::move(sample.labels));
    indices.push_back(index);
    if (static_cast<int64_t>(images.size()) == options.batch_size) flush();
  }
  if (!stopped) flush();
  if (ranks > 1) sum_over_ranks(*options.communicator, scores, stopped);
  if (stopped) return std::nullopt;
  return scores;
}

std::string score_table(const SegmentationScores& scores, const std::vector<std::string>& names) {
  std::string text = fmt::format("{:>3}  {:<24} {:>6}\n", "id", "class", "IoU");
  for (int64_t c = 0; c < scores.classes; ++c) {
    const auto iou = scores.iou(c);
    text += fmt::format("{:3}  {:<24} {}\n", c, names[static_cast<size_t>(c)],
                        iou ? fmt::format("{:6.2f} %", *iou * 100) : "absent");
  }
  text += fmt::format(
      "mIoU {:.2f} % over all {} classes (absent ones count as 0), {:.2f} % over those that occur; pixel accuracy "
      "{:.2f} %; {} images",
      scores.miou() * 100, scores.classes, scores.miou_present().value_or(0) * 100,
      scores.pixel_accuracy().value_or(0) * 100, scores.images);
  return text;
}

}  // namespace convoy
