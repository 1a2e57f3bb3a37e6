#include "io/doctor.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <map>
#include <set>
#include <thread>
#include <unordered_set>

#include "engine/error.h"
#include "io/file.h"

namespace convoy {
namespace {

namespace fs = std::filesystem;

/// Ends after a number of seconds.
class Deadline {
 public:
  explicit Deadline(double seconds) : seconds_(seconds) {}
  bool passed() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count() > seconds_;
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  double seconds_;
};

/// Whether sample `index` of `size` is one of `wanted` that are spread evenly: number k stands at floor(k size /
/// wanted).
bool is_chosen(int64_t index, int64_t size, int64_t wanted) {
  return wanted > 0 && (index * wanted + size - 1) / size * size / wanted == index;
}

/// What is found in one sample.
struct SampleReport {
  std::vector<Finding> findings;
  std::string palette_fault;
  bool header = false, decoded = false;
  SizeHW size;
  std::vector<int64_t> histogram;
  int64_t ignored = 0;
};

/// How a palette contradicts the classes; empty: it does not. Colour tables of other purposes agree or differ wholly,
/// so that two values with the colours of other classes are asked for.
std::string palette_fault(const SegmentationDataset& dataset, const std::vector<Color>& palette) {
  const ClassTable& classes = dataset.classes();
  const auto key = [](const Color& color) { return color[0] << 16 | color[1] << 8 | color[2]; };
  std::map<int, std::vector<size_t>> owners;
  for (size_t c = 0; c < classes.colors.size(); ++c) owners[key(classes.colors[c])].push_back(c);
  int64_t right = 0, wrong = 0;
  std::string example;
  for (size_t c = 0; c < classes.colors.size(); ++c) {
    const size_t value = classes.file_values.empty() ? c : static_cast<size_t>(classes.file_values[c]);
    if (value >= palette.size()) continue;
    const auto owner = owners.find(key(palette[value]));
    if (owner == owners.end() || owner->second.size() > 1) continue;
    const size_t other = owner->second.front();
    if (other == c) {
      ++right;
      continue;
    }
    if (wrong++ == 0)
      example = fmt::format("value {} ({}) has the colour of {}", value, classes.names[c], classes.names[other]);
  }
  return wrong >= 2 && wrong > right ? example : "";
}

/// Checks one sample's headers; true where decoding it makes sense.
bool check_headers(const SegmentationDataset& dataset, int64_t index, SampleReport& report) {
  const std::string &image_path = dataset.image_path(index), &label_path = dataset.label_path(index);
  const auto found = [&](const char* kind, const std::string& message) {
    report.findings.push_back({Severity::error, kind, message});
  };
  std::error_code unreadable;
  const bool image_there = fs::exists(image_path, unreadable);
  const bool label_there = !dataset.has_labels() || fs::exists(label_path, unreadable);
  if (!image_there) found("missing", fmt::format("{}: the image is missing", image_path));
  if (!label_there) found("missing", fmt::format("{}: its label file {} is missing", image_path, label_path));
  if (!image_there || !label_there) return false;
  try {
    const ImageHeader image = read_image_header(image_path);
    report.size = {image.height, image.width};
    if (!dataset.has_labels()) return false;
    if (dataset.index_labels()) {
      const ImageHeader label = read_image_header(label_path);
      if (label.format != ImageFormat::png || label.color == ColorKind::rgb)
        found("label", fmt::format("{}: labels need an index PNG (palette or gray), found {}", label_path,
                                   label.format == ImageFormat::png
                                       ? "a colour mask; DATASET.MASK_COLORS says what its colours mean"
                                       : "a JPEG, whose compression changes values"));
      report.palette_fault = palette_fault(dataset, label.palette);
      if (!report.palette_fault.empty()) report.palette_fault = label_path + ": " + report.palette_fault;
    }
    const SizeHW label = dataset.label_size(index);
    if (image.height != label.height || image.width != label.width)
      found("size", fmt::format("{} has {} x {} pixels (height x width), but its label file {} has {} x {}", image_path,
                                image.height, image.width, label_path, label.height, label.width));
  } catch (const Error& error) {
    found("corrupt", error.what());
  }
  return report.findings.empty();
}

/// What wrong label values look like.
std::string value_hint(const SegmentationDataset& dataset, int64_t index) {
  const LabelMap labels = dataset.read_file_values(index);
  const std::set<int32_t> values(labels.data.begin(), labels.data.end());
  constexpr size_t kShown = 12;
  const std::vector<int32_t> shown(values.begin(),
                                   std::next(values.begin(), static_cast<ptrdiff_t>(std::min(kShown, values.size()))));
  const std::string list =
      fmt::format("; the file holds the values {}{}", fmt::join(shown, ", "), values.size() > kShown ? ", ..." : "");
  const auto only = [&](const std::set<int32_t>& known) {
    return std::includes(known.begin(), known.end(), values.begin(), values.end());
  };
  if (only({0, 255})) return list + ": a black and white mask, whose values have to become 0 and 1";
  std::set<int32_t> brightness;
  for (const Color& color : dataset.palette())
    brightness.insert((19595 * color[0] + 38470 * color[1] + 7471 * color[2] + 0x8000) >> 16);
  if (values.size() > 2 && only(brightness))
    return list + ": the brightness of the classes' colours, so a colour mask that was saved in gray";
  std::set<int32_t> others = values;
  for (int32_t c = 0; c < static_cast<int32_t>(dataset.num_classes()); ++c) others.erase(c);
  if (others == std::set<int32_t>{255} && dataset.classes().file_values.empty())
    return list + ": 255 often means ignore, which DATASET.IGNORE_LABEL 255 says";
  return list;
}

void decode_sample(const SegmentationDataset& dataset, int64_t index, SampleReport& report) {
  try {
    const Sample sample = dataset.decode(index);
    report.histogram.assign(static_cast<size_t>(dataset.num_classes()), 0);
    for (const int32_t label : sample.labels.data)
      ++(label < 0 ? report.ignored : report.histogram[static_cast<size_t>(label)]);
    report.decoded = true;
    if (report.ignored == static_cast<int64_t>(sample.labels.data.size()))
      report.findings.push_back({Severity::warning, "ignore", fmt::format("{}: every pixel is ignored", sample.name)});
  } catch (const Error& error) {
    std::string message = error.what();
    const bool label = message.find("label value") != std::string::npos;
    if (label && dataset.index_labels()) message += value_hint(dataset, index);
    report.findings.push_back({Severity::error, label ? "label" : "corrupt", message});
  }
}

/// Adds a sample to the whole.
void add(SampleReport&& sample, DatasetReport& report) {
  std::move(sample.findings.begin(), sample.findings.end(), std::back_inserter(report.findings));
  report.headers += sample.header;
  report.decoded += sample.decoded;
  for (size_t c = 0; c < sample.histogram.size(); ++c) report.histogram[c] += sample.histogram[c];
  if (sample.decoded) report.ignored_pixels += sample.ignored;
  const auto pixels = [](SizeHW size) { return size.height * size.width; };
  if (pixels(sample.size) == 0) return;
  if (pixels(report.smallest) == 0 || pixels(sample.size) < pixels(report.smallest)) report.smallest = sample.size;
  if (pixels(sample.size) > pixels(report.largest)) report.largest = sample.size;
}

void judge_unused_labels(const SegmentationDataset& dataset, DatasetReport& report) {
  constexpr size_t kShown = 3;
  const std::vector<std::string>& unused = dataset.labels_without_image();
  if (unused.empty()) return;
  const std::vector<std::string> shown(unused.begin(),
                                       unused.begin() + static_cast<ptrdiff_t>(std::min(kShown, unused.size())));
  report.findings.push_back(
      {Severity::warning, "unused",
       fmt::format("{} ({}): {} label files have no image of their name and are not used: {}{}", dataset.root(),
                   dataset.split(), unused.size(), fmt::join(shown, ", "), unused.size() > kShown ? ", ..." : "")});
}

void judge_histogram(const SegmentationDataset& dataset, DatasetReport& report) {
  int64_t all = report.ignored_pixels;
  for (const int64_t pixels : report.histogram) all += pixels;
  if (all == 0) return;
  const double ignored = static_cast<double>(report.ignored_pixels) / static_cast<double>(all);
  const std::string place = fmt::format("{} ({})", dataset.root(), dataset.split());
  if (ignored > 0.5)
    report.findings.push_back({Severity::warning, "ignore",
                               fmt::format("{}: {:.1f} % of the pixels in {} decoded samples are ignored", place,
                                           100 * ignored, report.decoded)});
  const Severity severity = report.decoded == dataset.size() ? Severity::warning : Severity::note;
  constexpr size_t kShown = 30;
  std::vector<std::string> absent;
  for (size_t c = 0; c < report.histogram.size(); ++c)
    if (report.histogram[c] == 0) absent.push_back(fmt::format("{} ({})", c, dataset.class_names()[c]));
  if (absent.empty()) return;
  const size_t count = absent.size();
  absent.resize(std::min(count, kShown));
  report.findings.push_back(
      {severity, "class",
       fmt::format("{}: {} of {} classes {} not occur in {} decoded samples: {}{}", place, count,
                   report.histogram.size(), count == 1 ? "does" : "do", report.decoded, fmt::join(absent, ", "),
                   count > kShown ? fmt::format(" and {} more", count - kShown) : "")});
}

bool same_file(const std::string& a, const std::string& b) {
  constexpr size_t kEnd = 4096;  // what tells files of one size apart nearly always
  const auto of_a = read_file_ends(a, kEnd), of_b = read_file_ends(b, kEnd);
  if (!of_a || !of_b || of_a->head != of_b->head || of_a->tail != of_b->tail) return false;
  try {
    return read_file_bytes(a) == read_file_bytes(b);
  } catch (const Error&) {
    return false;  // check_dataset names what cannot be read
  }
}

}  // namespace

const char* severity_name(Severity severity) {
  return severity == Severity::error ? "error" : severity == Severity::warning ? "warning" : "note";
}

CheckOptions quick_check() {
  return {.headers = 4096, .decoded = 16, .seconds = 60};
}

int64_t DatasetReport::count(Severity severity) const {
  return std::count_if(findings.begin(), findings.end(),
                       [severity](const Finding& f) { return f.severity == severity; });
}

DatasetReport check_dataset(const SegmentationDataset& dataset, const CheckOptions& options) {
  DatasetReport report;
  report.histogram.assign(static_cast<size_t>(dataset.num_classes()), 0);
  const int64_t size = dataset.size();
  const auto limited = [size](int64_t limit) { return limit < 0 ? size : std::min(limit, size); };
  const int64_t headers = limited(options.headers), decoded = limited(options.decoded);
  const Deadline deadline(options.seconds);
  std::vector<SampleReport> samples(static_cast<size_t>(size));
  std::atomic<int64_t> next = 0;
  std::atomic<bool> late = false;
  const auto work = [&] {
    for (int64_t index; !late && (index = next++) < size;) {
      const bool whole = is_chosen(index, size, decoded);
      if (!whole && !is_chosen(index, size, headers)) continue;
      if (deadline.passed()) {
        late = true;
        break;
      }
      if (options.looking_at) options.looking_at(index);
      SampleReport& sample = samples[static_cast<size_t>(index)];
      sample.header = true;
      if (check_headers(dataset, index, sample) && whole) decode_sample(dataset, index, sample);
    }
  };
  std::vector<std::thread> threads;
  while (static_cast<int64_t>(threads.size()) + 1 < std::min<int64_t>(options.threads, 64)) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();

  int64_t palettes = 0;
  std::string first_palette;
  for (SampleReport& sample : samples) {
    if (!sample.palette_fault.empty() && palettes++ == 0) first_palette = sample.palette_fault;
    add(std::move(sample), report);
  }
  if (palettes > 0)
    report.findings.push_back(
        {Severity::warning, "palette",
         fmt::format("{} ({} label files): the values are read, not the colours; files that an image program has "
                     "renumbered are read by DATASET.MASK_COLORS classes",
                     first_palette, palettes)});
  if (late)
    report.findings.push_back({Severity::note, "time",
                               fmt::format("{} ({}): {} of {} samples were looked at in {:.0f} s", dataset.root(),
                                           dataset.split(), report.headers, size, options.seconds)});
  judge_unused_labels(dataset, report);
  judge_histogram(dataset, report);
  return report;
}

std::vector<Finding> check_leak(const SegmentationDataset& train, const SegmentationDataset& val, double seconds) {
  const Deadline deadline(seconds);
  std::multimap<uintmax_t, int64_t> by_size;
  std::unordered_set<std::string> paths;
  std::error_code unreadable;
  for (int64_t i = 0; i < train.size(); ++i) {
    const uintmax_t bytes = fs::file_size(train.image_path(i), unreadable);
    if (!unreadable) by_size.emplace(bytes, i);
    paths.insert(train.image_path(i));
  }
  std::vector<Finding> findings;
  for (int64_t i = 0; i < val.size() && !deadline.passed(); ++i) {
    const std::string& path = val.image_path(i);
    if (paths.contains(path)) {
      findings.push_back({Severity::warning, "leak", fmt::format("{} is in the training split, too", path)});
      continue;
    }
    const uintmax_t bytes = fs::file_size(path, unreadable);
    if (unreadable) continue;
    const auto [first, last] = by_size.equal_range(bytes);
    const auto twin =
        std::find_if(first, last, [&](const auto& entry) { return same_file(train.image_path(entry.second), path); });
    if (twin == last) continue;
    findings.push_back(
        {Severity::warning, "leak",
         fmt::format("{} is the same file as {} of the training split", path, train.image_path(twin->second))});
  }
  return findings;
}

}  // namespace convoy
