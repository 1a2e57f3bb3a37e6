#include "io/coco_annotations.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_map>
#include <unordered_set>

#include "engine/error.h"
#include "io/checksum.h"
#include "io/coco_mask.h"
#include "io/file.h"

namespace convoy {

/// Takes the parser's events. Levels: 1 the file's object, 2 the arrays "images" and "annotations", 3 one record,
/// 4 its segmentation (a list of polygons, or an object), 5 one polygon, or counts and size of the object.
class CocoReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  CocoReader(CocoAnnotations& out, const std::vector<int64_t>& categories)
      : out_(out), categories_(categories.begin(), categories.end()) {}

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t value) override { return number(static_cast<double>(value)); }
  bool number_unsigned(number_unsigned_t value) override { return number(static_cast<double>(value)); }
  bool number_float(number_float_t value, const string_t&) override { return number(value); }
  bool binary(binary_t&) override { return true; }

  bool string(string_t& value) override {
    if (level_ == 3 && in_images() && key_[3] == "file_name") image_.file_name = value;
    if (level_ == 4 && in_segmentation() && instance_.run_lengths && key_[4] == "counts") {
      try {
        counts_ = unpack_run_lengths(value);
      } catch (const Error& error) {
        fault("{}", error.what());
      }
    }
    return true;
  }

  bool key(string_t& value) override {
    if (level_ < key_.size()) key_[level_] = value;
    return true;
  }

  bool start_object(size_t) override {
    ++level_;
    if (level_ == 3) {
      image_ = {.id = -1};
      instance_ = {.id = -1, .image = -1, .category = -1};
      points_.clear();
      ends_.clear();
      counts_.clear();
      size_.clear();
    }
    if (level_ == 4 && in_segmentation()) instance_.run_lengths = true;
    return true;
  }

  bool end_object() override {
    if (level_ == 3 && in_images()) keep_image();
    if (level_ == 3 && in_annotations()) keep_instance();
    --level_;
    return true;
  }

  bool start_array(size_t) override {
    ++level_;
    return true;
  }

  bool end_array() override {
    if (level_ == 5 && in_segmentation() && !instance_.run_lengths) ends_.push_back(points_.size());
    --level_;
    return true;
  }

  bool parse_error(size_t position, const std::string&, const nlohmann::json::exception& error) override {
    fail("{}: damaged JSON at byte {}: {}", out_.path_, position, error.what());
  }

 private:
  static constexpr double kLargest = 1 << 20;

  bool in_images() const { return key_[1] == "images"; }
  bool in_annotations() const { return key_[1] == "annotations"; }
  bool in_segmentation() const { return in_annotations() && level_ > 3 && key_[3] == "segmentation"; }

  template <class... Args>
  [[noreturn]] void fault(fmt::format_string<Args...> text, Args&&... args) const {
    fail("{}: annotation {}: {}", out_.path_, instance_.id, fmt::format(text, std::forward<Args>(args)...));
  }

  /// A value that has to be whole.
  int64_t whole(double value) const {
    CONVOY_CHECK(value == std::floor(value) && std::abs(value) < 9e15, "{}: {} is {}, needs a whole number", out_.path_,
                 key_[3], value);
    return static_cast<int64_t>(value);
  }

  bool number(double value) {
    if (level_ == 3 && in_images()) {
      if (key_[3] == "id") image_.id = whole(value);
      if (key_[3] == "height") image_.height = whole(value);
      if (key_[3] == "width") image_.width = whole(value);
    } else if (level_ == 3 && in_annotations()) {
      if (key_[3] == "id") instance_.id = whole(value);
      if (key_[3] == "image_id") instance_.image = whole(value);
      if (key_[3] == "category_id") instance_.category = whole(value);
    } else if (level_ == 5 && in_segmentation()) {
      if (!instance_.run_lengths) {
        if (!(std::abs(value) < kLargest)) fault("a polygon's coordinate is {}", value);
        points_.push_back(value);
      } else if (key_[4] == "counts") {
        if (!(value >= 0 && value <= UINT32_MAX)) fault("a run length is {}", value);
        counts_.push_back(static_cast<uint32_t>(whole(value)));
      } else if (key_[4] == "size") {
        size_.push_back(whole(value));
      }
    }
    return true;
  }

  void keep_image() {
    CONVOY_CHECK(image_.id >= 0 && !image_.file_name.empty(), "{}: image {} lacks id or file_name", out_.path_,
                 out_.images_.size());
    const bool sound = image_.height > 0 && image_.width > 0 && image_.height < kLargest && image_.width < kLargest &&
                       image_.height * image_.width <= kMaxImagePixels;
    CONVOY_CHECK(sound, "{}: image {} has the size {} x {}", out_.path_, image_.id, image_.height, image_.width);
    out_.images_.push_back(image_);
  }

  void keep_instance() {
    if (instance_.image < 0 || instance_.category < 0) fault("image_id or category_id is missing");
    if (!categories_.contains(instance_.category)) return;
    if (instance_.run_lengths) {
      if (size_.size() != 2) fault("its run lengths have no size");
      instance_.height = size_[0];
      instance_.width = size_[1];
      instance_.first = out_.run_lengths_.size();
      out_.run_lengths_.insert(out_.run_lengths_.end(), counts_.begin(), counts_.end());
      instance_.last = out_.run_lengths_.size();
    } else {
      instance_.first = out_.polygons_.size() - 1;
      size_t begin = 0;
      for (const size_t end : ends_) {
        const size_t values = end - begin;
        if (values < 6 || values % 2 != 0) fault("a polygon has {} coordinates, needs three points", values);
        out_.polygons_.push_back(out_.polygons_.back() + values);
        begin = end;
      }
      out_.coordinates_.insert(out_.coordinates_.end(), points_.begin(), points_.end());
      instance_.last = out_.polygons_.size() - 1;
    }
    out_.instances_.push_back(instance_);
  }

  CocoAnnotations& out_;
  std::unordered_set<int64_t> categories_;
  size_t level_ = 0;
  std::array<std::string, 6> key_;  // the key last seen on each level
  CocoImage image_;
  CocoAnnotations::Instance instance_;
  std::vector<double> points_;
  std::vector<size_t> ends_;
  std::vector<uint32_t> counts_;
  std::vector<int64_t> size_;
};

CocoAnnotations::CocoAnnotations(const std::string& path, const std::vector<int64_t>& categories) : path_(path) {
  const MappedFile file(path);
  const auto* text = reinterpret_cast<const char*>(file.data());
  checksum_ = crc64(text, file.size());
  CocoReader reader(*this, categories);
  nlohmann::json::sax_parse(text, text + file.size(), &reader);
  CONVOY_CHECK(!images_.empty(), "{}: holds no images; needs COCO's instances file", path);
  arrange();
}

void CocoAnnotations::arrange() {
  std::sort(images_.begin(), images_.end(), [](const CocoImage& a, const CocoImage& b) { return a.id < b.id; });
  std::unordered_map<int64_t, int64_t> index;
  for (size_t i = 0; i < images_.size(); ++i)
    CONVOY_CHECK(index.emplace(images_[i].id, static_cast<int64_t>(i)).second, "{}: image {} is there twice", path_,
                 images_[i].id);
  image_instances_.assign(images_.size() + 1, 0);
  for (Instance& instance : instances_) {
    const auto image = index.find(instance.image);
    CONVOY_CHECK(image != index.end(), "{}: annotation {}: there is no image {}", path_, instance.id, instance.image);
    instance.image = image->second;
    ++image_instances_[static_cast<size_t>(instance.image) + 1];
  }
  for (size_t i = 0; i < images_.size(); ++i) image_instances_[i + 1] += image_instances_[i];
  std::stable_sort(instances_.begin(), instances_.end(),
                   [](const Instance& a, const Instance& b) { return a.image < b.image; });
}

LabelMap CocoAnnotations::rasterize(size_t image) const {
  const int64_t height = images_[image].height, width = images_[image].width;
  LabelMap labels{height, width, std::vector<int32_t>(static_cast<size_t>(height * width), 0)};
  const auto draw = [&](const std::vector<PixelRange>& ranges, int64_t category) {
    for (const PixelRange& range : ranges) {
      int64_t x = range.first / height, y = range.first % height;
      for (int64_t at = range.first; at < range.last; ++at) {
        int32_t& label = labels.at(y, x);
        if (label == 0) label = static_cast<int32_t>(category);
        if (++y == height) {
          y = 0;
          ++x;
        }
      }
    }
  };
  for (size_t i = image_instances_[image]; i < image_instances_[image + 1]; ++i) {
    const Instance& instance = instances_[i];
    if (!instance.run_lengths) {
      for (size_t p = instance.first; p < instance.last; ++p)
        draw(polygon_ranges({&coordinates_[polygons_[p]], polygons_[p + 1] - polygons_[p]}, height, width),
             instance.category);
      continue;
    }
    try {
      CONVOY_CHECK(instance.height == height && instance.width == width,
                   "its run lengths are of {} x {} pixels, not {} x {}", instance.height, instance.width, height,
                   width);
      draw(run_length_ranges({run_lengths_.data() + instance.first, instance.last - instance.first}, height, width),
           instance.category);
    } catch (const Error& error) {
      fail("{}: annotation {}: {}", path_, instance.id, error.what());
    }
  }
  return labels;
}

}  // namespace convoy
