// COCO's instances as a VOC-like data set: the 20 categories that VOC has, too.
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <sstream>
#include <thread>
#include <unordered_map>

#include "engine/error.h"
#include "io/coco_annotations.h"
#include "io/dataset_parts.h"
#include "io/file.h"

namespace convoy {
namespace {

namespace fs = std::filesystem;

/// Class -> COCO's category id.
const std::vector<int32_t> kCategories = {0, 5, 2, 16, 9, 44, 6, 3, 17, 62, 21, 67, 18, 19, 4, 1, 64, 20, 63, 7, 72};
/// Images with fewer labelled pixels than this are left out.
constexpr int64_t kLabelledPixels = 1001;

class CocoLabels : public LabelFormat {
 public:
  explicit CocoLabels(std::shared_ptr<const CocoAnnotations> annotations) : annotations_(std::move(annotations)) {}

  void add(const std::string& sample_name, size_t image) { images_.emplace(sample_name, image); }

  LabelMap read(const SamplePaths& sample) const override { return annotations_->rasterize(images_.at(sample.name)); }
  SizeHW size(const SamplePaths& sample) const override {
    const CocoImage& image = annotations_->images()[images_.at(sample.name)];
    return {image.height, image.width};
  }

 private:
  std::shared_ptr<const CocoAnnotations> annotations_;
  std::unordered_map<std::string, size_t> images_;
};

/// Which images have enough labelled pixels: every outline is drawn once, on all cores.
std::vector<int64_t> find_labelled(const CocoAnnotations& annotations) {
  const size_t count = annotations.images().size();
  std::vector<uint8_t> kept(count, 0);
  std::atomic<size_t> next = 0;
  std::exception_ptr error;
  std::atomic<bool> failed = false;
  const auto work = [&] {
    try {
      for (size_t i; !failed && (i = next++) < count;) {
        const LabelMap labels = annotations.rasterize(i);
        const int64_t zeros = std::count(labels.data.begin(), labels.data.end(), 0);
        kept[i] = static_cast<int64_t>(labels.data.size()) - zeros >= kLabelledPixels;
      }
    } catch (...) {
      if (!failed.exchange(true)) error = std::current_exception();
    }
  };
  std::vector<std::thread> threads;
  const unsigned wanted = std::clamp(std::thread::hardware_concurrency(), 1u, 16u);
  while (threads.size() + 1 < wanted) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
  if (error) std::rethrow_exception(error);
  std::vector<int64_t> ids;
  for (size_t i = 0; i < count; ++i)
    if (kept[i]) ids.push_back(annotations.images()[i].id);
  return ids;
}

int64_t id_of(const CocoImage& image) {
  return image.id;
}
int64_t id_of(int64_t id) {
  return id;
}

/// The list of ids in a file beside the images, valid for one content of the annotations.
std::string cache_text(uint64_t checksum, const std::vector<int64_t>& ids) {
  return fmt::format("convoy coco ids 1\nannotations {:016x}, images with {} labelled pixels: {}\n{}\nend\n", checksum,
                     kLabelledPixels, ids.size(), fmt::join(ids, "\n"));
}

std::optional<std::vector<int64_t>> read_cache(const fs::path& path, const CocoAnnotations& annotations) {
  std::error_code missing;
  if (!fs::is_regular_file(path, missing)) return std::nullopt;
  std::ifstream file(path);
  std::vector<int64_t> ids;
  std::string line;
  for (int number = 0; std::getline(file, line) && line != "end"; ++number) {
    if (number < 2) continue;
    int64_t id = -1;
    std::istringstream(line) >> id;
    ids.push_back(id);
  }
  // What does not give the same text again is stale or damaged.
  file.clear();
  file.seekg(0);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  if (text != cache_text(annotations.checksum(), ids)) return std::nullopt;
  const auto by_id = [](const auto& a, const auto& b) { return id_of(a) < id_of(b); };
  const std::vector<CocoImage>& images = annotations.images();
  if (!std::includes(images.begin(), images.end(), ids.begin(), ids.end(), by_id)) return std::nullopt;
  return ids;
}

/// Of several processes one makes the list while the others wait. Where the folder cannot be written to, each makes it.
std::vector<int64_t> labelled_ids(const CocoAnnotations& annotations, const fs::path& cache) {
  if (const auto ids = read_cache(cache, annotations)) return *ids;
  const int lock = ::open((cache.string() + ".lock").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0666);
  if (lock < 0) return find_labelled(annotations);
  ::flock(lock, LOCK_EX);
  std::vector<int64_t> ids;
  try {
    if (const auto made = read_cache(cache, annotations)) {
      ids = *made;
    } else {
      ids = find_labelled(annotations);
      try {
        write_text_file(cache, cache_text(annotations.checksum(), ids));
      } catch (const Error&) {  // a full disk costs the next start some time, nothing else
      }
    }
  } catch (...) {
    ::close(lock);
    throw;
  }
  ::close(lock);
  return ids;
}

}  // namespace

DatasetParts read_coco(const DatasetConfig& config, const std::string& split, MissingLabels missing) {
  const fs::path root = dataset_root(config, "coco");
  require_split("coco", split, {"train", "val", "test"});
  const fs::path images = root / (split + "2017");
  LabelTable labels{std::vector<int32_t>(91, LabelTable::kInvalid), "COCO's category ids"};
  for (size_t c = 0; c < kCategories.size(); ++c)
    labels.classes[static_cast<size_t>(kCategories[c])] = static_cast<int32_t>(c);
  ClassTable classes = voc_classes();
  classes.file_values = kCategories;
  if (split == "test") {
    std::vector<std::string> no_labels;
    std::vector<SamplePaths> samples = pair_by_name(root, images, "", no_labels);
    require_files(samples, split, missing);
    return {root.string(), split, std::move(samples), std::move(labels), std::move(classes), nullptr};
  }
  const fs::path file = root / "annotations" / ("instances_" + split + "2017.json");
  const auto annotations = std::make_shared<const CocoAnnotations>(
      file.string(), std::vector<int64_t>(kCategories.begin() + 1, kCategories.end()));
  const std::vector<int64_t> ids = labelled_ids(*annotations, root / (split + "2017_ids.txt"));
  auto format = std::make_shared<CocoLabels>(annotations);
  std::vector<SamplePaths> samples;
  size_t index = 0;
  for (const int64_t id : ids) {  // both in ascending order
    while (annotations->images()[index].id != id) ++index;
    const fs::path image = images / annotations->images()[index].file_name;
    samples.push_back({image.string(), file.string(), image.lexically_relative(root).string()});
    format->add(samples.back().name, index);
  }
  require_files(samples, split, missing);
  return {root.string(), split, std::move(samples), std::move(labels), std::move(classes), std::move(format)};
}

}  // namespace convoy
