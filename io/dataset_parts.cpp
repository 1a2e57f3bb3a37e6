#include "io/dataset_parts.h"

#include <algorithm>
#include <cctype>

#include "engine/error.h"
#include "io/file.h"

namespace convoy {

namespace fs = std::filesystem;

fs::path dataset_root(const DatasetConfig& config, const std::string& name) {
  const fs::path root = fs::absolute(config.root).lexically_normal();
  std::error_code unreadable;
  CONVOY_CHECK(fs::is_directory(root, unreadable), "{}: no such folder, data set {}; set DATASET.ROOT", root.string(),
               name);
  return root;
}

void require_split(const std::string& name, const std::string& split, const std::vector<std::string>& known) {
  CONVOY_CHECK(std::find(known.begin(), known.end(), split) != known.end(), "{} has the splits {}, not '{}'", name,
               fmt::join(known, ", "), split);
}

std::vector<fs::path> sorted_entries(const fs::path& folder) {
  std::error_code error;
  std::vector<fs::path> entries;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (it->path().filename().string().front() != '.') entries.push_back(it->path());
  }
  CONVOY_CHECK(!error, "{}: cannot be listed: {}", folder.string(), error.message());
  std::sort(entries.begin(), entries.end());
  return entries;
}

std::map<std::string, fs::path> list_files(const fs::path& folder, const std::vector<std::string>& endings) {
  std::map<std::string, fs::path> files;
  for (const fs::path& path : sorted_entries(folder)) {
    std::string ending = path.extension().string();
    std::transform(ending.begin(), ending.end(), ending.begin(), [](unsigned char c) { return std::tolower(c); });
    if (std::find(endings.begin(), endings.end(), ending) == endings.end()) continue;
    const auto [other, inserted] = files.emplace(path.stem().string(), path);
    CONVOY_CHECK(inserted, "{} and {} have the same base name; one image per label file", other->second.string(),
                 path.string());
  }
  return files;
}

const std::vector<std::string>& image_endings() {
  static const std::vector<std::string> endings = {".png", ".jpg", ".jpeg"};
  return endings;
}

std::vector<SamplePaths> pair_by_name(const fs::path& root, const fs::path& images, const fs::path& labels,
                                      std::vector<std::string>& unused) {
  std::map<std::string, fs::path> masks;
  if (!labels.empty()) masks = list_files(labels, {".png"});
  std::vector<SamplePaths> samples;
  for (const auto& [base, image] : list_files(images, image_endings())) {
    const auto mask = masks.find(base);
    const fs::path label = labels.empty() ? "" : mask == masks.end() ? labels / (base + ".png") : mask->second;
    samples.push_back({image.string(), label.string(), image.lexically_relative(root).string()});
    if (mask != masks.end()) masks.erase(mask);
  }
  for (const auto& [base, mask] : masks) unused.push_back(mask.string());
  return samples;
}

std::vector<ListedName> read_name_list(const fs::path& path) {
  std::vector<ListedName> names;
  std::map<std::string, int64_t> lines;
  int64_t number = 0;
  for (const std::string& line : read_lines(path)) {
    ++number;
    const size_t first = line.find_first_not_of(" \t\r"), last = line.find_last_not_of(" \t\r");
    if (first == std::string::npos) continue;
    const std::string name = line.substr(first, last + 1 - first);
    const auto [other, inserted] = lines.emplace(name, number);
    CONVOY_CHECK(inserted, "{}:{}: {} is listed twice, the first time in line {}", path.string(), number, name,
                 other->second);
    names.push_back({name, number});
  }
  CONVOY_CHECK(!names.empty(), "{}: lists no names", path.string());
  return names;
}

std::vector<SamplePaths> pair_by_list(const fs::path& root, const fs::path& list, const fs::path& images,
                                      const fs::path& labels, MissingLabels missing) {
  std::vector<SamplePaths> samples;
  for (const auto& [name, line] : read_name_list(list)) {
    fs::path image = images / (name + ".jpg");
    std::error_code unreadable;
    for (const std::string ending : {".jpeg", ".png"}) {
      if (fs::exists(image, unreadable)) break;
      if (fs::exists(images / (name + ending), unreadable)) image = images / (name + ending);
    }
    CONVOY_CHECK(missing == MissingLabels::keep || fs::exists(image, unreadable), "{}:{}: the image {} is missing",
                 list.string(), line, image.string());
    const fs::path label = labels.empty() ? "" : labels / (name + ".png");
    samples.push_back({image.string(), label.string(), image.lexically_relative(root).string()});
  }
  return samples;
}

void require_files(const std::vector<SamplePaths>& samples, const std::string& split, MissingLabels missing) {
  if (missing == MissingLabels::keep) return;
  for (const SamplePaths& sample : samples) {
    std::error_code unreadable;
    CONVOY_CHECK(!sample.label.empty(), "split '{}' has no labels: it can be predicted, not trained on or evaluated",
                 split);
    CONVOY_CHECK(fs::exists(sample.image, unreadable), "{} is missing", sample.image);
    CONVOY_CHECK(fs::exists(sample.label, unreadable), "{}: its label file {} is missing", sample.image, sample.label);
  }
}

LabelTable identity_labels(int64_t num_classes, std::optional<int64_t> ignore_label) {
  LabelTable table;
  for (int64_t value = 0; value < num_classes; ++value) table.classes.push_back(static_cast<int32_t>(value));
  table.allowed = fmt::format("0..{}", num_classes - 1);
  if (ignore_label)
    ignore_value(table, *ignore_label);
  else
    table.allowed += " (DATASET.IGNORE_LABEL is not set)";
  return table;
}

void ignore_value(LabelTable& labels, int64_t value) {
  const auto index = static_cast<size_t>(value);
  if (index >= labels.classes.size()) labels.classes.resize(index + 1, LabelTable::kInvalid);
  if (labels.classes[index] == kIgnoreLabel) return;
  labels.classes[index] = kIgnoreLabel;
  labels.allowed += fmt::format(" and {} (ignore)", value);
}

}  // namespace convoy
