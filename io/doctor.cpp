#include "io/doctor.h"

#include <algorithm>
#include <filesystem>
#include <map>

#include "engine/error.h"

namespace convoy {
namespace {

namespace fs = std::filesystem;

/// Checks one sample's headers; true where decoding it makes sense.
bool check_headers(const SegmentationDataset& dataset, int64_t index, std::vector<Finding>& findings) {
  const std::string& image_path = dataset.image_path(index);
  const std::string& label_path = dataset.label_path(index);
  std::error_code unreadable;
  if (!fs::exists(label_path, unreadable)) {
    findings.push_back(
        {Severity::error, "missing", fmt::format("{}: its label file {} is missing", image_path, label_path)});
    return false;
  }
  ImageHeader image, label;
  try {
    image = read_image_header(image_path);
    label = read_image_header(label_path);
  } catch (const Error& error) {
    findings.push_back({Severity::error, "corrupt", error.what()});
    return false;
  }
  const size_t before = findings.size();
  if (label.format != ImageFormat::png || label.color == ColorKind::rgb) {
    findings.push_back({Severity::error, "label",
                        fmt::format("{}: labels need an index PNG (palette or gray), found {}", label_path,
                                    label.format == ImageFormat::png ? "a colour mask" : "a JPEG")});
  }
  if (image.height != label.height || image.width != label.width) {
    findings.push_back({Severity::error, "size",
                        fmt::format("{} has {} x {} pixels (height x width), but its label file {} has {} x {}",
                                    image_path, image.height, image.width, label_path, label.height, label.width)});
  }
  return findings.size() == before;
}

void count_labels(const Sample& sample, DatasetReport& report) {
  int64_t ignored = 0;
  for (const int32_t label : sample.labels.data) {
    if (label < 0) {
      ++ignored;
    } else {
      ++report.histogram[static_cast<size_t>(label)];
    }
  }
  report.ignored_pixels += ignored;
  if (ignored == static_cast<int64_t>(sample.labels.data.size())) {
    report.findings.push_back({Severity::warning, "ignore", fmt::format("{}: every pixel is ignored", sample.name)});
  }
}

void judge_histogram(const SegmentationDataset& dataset, DatasetReport& report) {
  int64_t labelled = 0;
  for (const int64_t pixels : report.histogram) labelled += pixels;
  const int64_t all = labelled + report.ignored_pixels;
  if (all == 0) return;
  const double ignored = static_cast<double>(report.ignored_pixels) / static_cast<double>(all);
  if (ignored > 0.5) {
    report.findings.push_back({Severity::warning, "ignore",
                               fmt::format("{} ({}): {:.1f} % of the pixels in {} decoded samples are ignored",
                                           dataset.root(), dataset.split(), 100 * ignored, report.decoded)});
  }
  for (size_t c = 0; c < report.histogram.size(); ++c) {
    if (report.histogram[c] > 0) continue;
    report.findings.push_back(
        {Severity::note, "class",
         fmt::format("{} ({}): class {} ({}) does not occur in {} decoded samples", dataset.root(), dataset.split(), c,
                     dataset.class_names()[c], report.decoded)});
  }
}

}  // namespace

const char* severity_name(Severity severity) {
  return severity == Severity::error ? "error" : severity == Severity::warning ? "warning" : "note";
}

DatasetReport check_dataset(const SegmentationDataset& dataset, int64_t limit,
                            const std::function<void(int64_t)>& looking_at) {
  DatasetReport report;
  report.histogram.assign(static_cast<size_t>(dataset.num_classes()), 0);
  const int64_t size = dataset.size();
  const int64_t wanted = limit < 0 ? size : std::min(limit, size);
  for (int64_t index = 0; index < size; ++index) {
    if (looking_at) looking_at(index);
    const bool sound = check_headers(dataset, index, report.findings);
    ++report.headers;
    // Sample k of the wanted ones stands at floor(k size / wanted).
    const bool chosen = wanted > 0 && (index * wanted + size - 1) / size * size / wanted == index;
    if (!sound || !chosen) continue;
    try {
      count_labels(dataset.decode(index), report);
      ++report.decoded;
    } catch (const Error& error) {
      const std::string message = error.what();
      const bool label = message.find("label value") != std::string::npos;
      report.findings.push_back({Severity::error, label ? "label" : "corrupt", message});
    }
  }
  judge_histogram(dataset, report);
  return report;
}

std::vector<Finding> check_leak(const SegmentationDataset& train, const SegmentationDataset& val) {
  std::multimap<uintmax_t, int64_t> by_size;
  std::error_code unreadable;
  for (int64_t i = 0; i < train.size(); ++i) by_size.emplace(fs::file_size(train.image_path(i), unreadable), i);
  std::vector<Finding> findings;
  for (int64_t i = 0; i < val.size(); ++i) {
    const auto [first, last] = by_size.equal_range(fs::file_size(val.image_path(i), unreadable));
    if (first == last || unreadable) continue;
    const std::vector<uint8_t> bytes = read_file_bytes(val.image_path(i));
    const auto twin = std::find_if(
        first, last, [&](const auto& entry) { return read_file_bytes(train.image_path(entry.second)) == bytes; });
    if (twin == last) continue;
    findings.push_back({Severity::warning, "leak",
                        fmt::format("{} is the same file as {} of the training split", val.image_path(i),
                                    train.image_path(twin->second))});
  }
  return findings;
}

}  // namespace convoy
