#include "io/synth.h"

#include <atomic>
#include <exception>
#include <filesystem>
#include <mutex>
#include <thread>
#include <vector>

#include "engine/error.h"
#include "engine/start_thread.h"
#include "io/dataset.h"
#include "io/synth_scene.h"

namespace convoy {
namespace {

namespace fs = std::filesystem;

bool is_val(int64_t index, int64_t images) {
  return index % 5 == std::min<int64_t>(4, images - 1) && images > 1;
}

void make_folder(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path, error);
  CONVOY_CHECK(!error, "{}: cannot be created: {}", path.string(), error.message());
}

void write_text_file(const fs::path& path, const std::string& text) {
  write_file_bytes(path.string(), {reinterpret_cast<const uint8_t*>(text.data()), text.size()});
}

/// PASCAL VOC counts pixels from 1.
std::string voc_xml(const Scene& scene, const std::string& folder, const std::string& file) {
  std::string text = fmt::format(
      "<annotation>\n  <folder>{}</folder>\n  <filename>{}</filename>\n  <size>\n    <width>{}</width>\n"
      "    <height>{}</height>\n    <depth>3</depth>\n  </size>\n  <segmented>1</segmented>\n",
      folder, file, scene.image.width, scene.image.height);
  for (const SceneBox& box : scene.boxes) {
    text += fmt::format(
        "  <object>\n    <name>{}</name>\n    <truncated>{}</truncated>\n    <difficult>{}</difficult>\n    <bndbox>\n"
        "      <xmin>{}</xmin>\n      <ymin>{}</ymin>\n      <xmax>{}</xmax>\n      <ymax>{}</ymax>\n    </bndbox>\n"
        "  </object>\n",
        box.name, int{box.truncated}, int{box.difficult}, box.xmin + 1, box.ymin + 1, box.xmax + 1, box.ymax + 1);
  }
  return text + "</annotation>\n";
}

}  // namespace

SynthSummary synthesize(const std::string& folder, const SynthOptions& options) {
  CONVOY_CHECK(options.images > 0, "the number of images must be positive, found {}", options.images);
  const fs::path root(folder);
  for (const std::string kind : {"leftImg8bit", "gtFine"}) {
    for (const std::string split : {"train", "val"}) make_folder(root / kind / split / options.city);
  }
  make_folder(root / "Annotations");
  make_folder(root / "ImageSets" / "Main");

  SynthSummary summary;
  int64_t void_pixels = 0;
  std::atomic<int64_t> next = 0;
  std::mutex mutex;
  std::exception_ptr error;
  const auto work = [&] {
    for (int64_t index = next++; index < options.images; index = next++) {
      try {
        const Scene scene = render_scene(options.height, options.width, options.seed, static_cast<uint64_t>(index));
        const std::string split = is_val(index, options.images) ? "val" : "train";
        const std::string name = fmt::format("{}_000000_{:06}", options.city, index);
        const std::string image_folder = "leftImg8bit/" + split + "/" + options.city;
        write_png((root / image_folder / (name + "_leftImg8bit.png")).string(), scene.image);
        write_png_gray((root / "gtFine" / split / options.city / (name + "_gtFine_labelIds.png")).string(),
                       scene.labels);
        write_text_file(root / "Annotations" / (name + ".xml"),
                        voc_xml(scene, image_folder, name + "_leftImg8bit.png"));
        const std::lock_guard lock(mutex);
        ++(split == "val" ? summary.val : summary.train);
        summary.boxes += static_cast<int64_t>(scene.boxes.size());
        for (const int32_t id : scene.labels.data) {
          void_pixels += cityscapes_train_ids()[static_cast<size_t>(id)] == kIgnoreLabel;
        }
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!error) error = std::current_exception();
        next = options.images;
      }
    }
  };
  const unsigned cores = std::max(1u, std::thread::hardware_concurrency());
  const int64_t threads = options.threads > 0 ? options.threads : static_cast<int64_t>(cores);
  std::vector<std::thread> workers;
  try {
    for (int64_t i = 1; i < std::min(threads, options.images); ++i)
      workers.push_back(start_thread("draw scenes", work));
  } catch (const Error&) {
    // Those that there are, and this one, do all the work.
  }
  work();
  for (std::thread& worker : workers) worker.join();
  if (error) std::rethrow_exception(error);

  std::string train, val;
  for (int64_t index = 0; index < options.images; ++index) {
    (is_val(index, options.images) ? val : train) += fmt::format("{}_000000_{:06}\n", options.city, index);
  }
  write_text_file(root / "ImageSets" / "Main" / "train.txt", train);
  write_text_file(root / "ImageSets" / "Main" / "val.txt", val);
  summary.void_share =
      static_cast<double>(void_pixels) / static_cast<double>(options.images * options.height * options.width);
  return summary;
}

}  // namespace convoy
