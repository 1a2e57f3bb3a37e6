#include "apps/pictures.h"

#include <algorithm>
#include <set>

#include "engine/error.h"
#include "io/file.h"
#include "io/resize.h"

namespace convoy {
namespace fs = std::filesystem;
namespace {

constexpr const char* kTemporaryEnding = ".tmp";  // of a file that write_file_bytes has not finished

/// The absolute path without links; where links lead in a circle, the path as it is spelt.
fs::path place_of(const fs::path& path) {
  std::error_code error;
  const fs::path place = fs::weakly_canonical(fs::absolute(path, error), error);
  return error ? fs::absolute(path, error).lexically_normal() : place;
}

}  // namespace

Image color_picture(const LabelMap& labels, const std::vector<Color>& palette) {
  Image picture{labels.height, labels.width, 3, std::vector<uint8_t>(labels.data.size() * 3)};
  for (size_t i = 0; i < labels.data.size(); ++i)
    if (labels.data[i] >= 0)
      std::copy_n(palette[static_cast<size_t>(labels.data[i])].data(), 3, picture.data.data() + 3 * i);
  return picture;
}

Image overlay_picture(const Image& image, const LabelMap& labels, const std::vector<Color>& palette, double alpha) {
  Image picture = image;
  for (size_t i = 0; i < labels.data.size(); ++i) {
    if (labels.data[i] < 0) continue;
    const Color& color = palette[static_cast<size_t>(labels.data[i])];
    for (size_t c = 0; c < 3; ++c)
      picture.data[3 * i + c] =
          static_cast<uint8_t>((1 - alpha) * picture.data[3 * i + c] + alpha * static_cast<double>(color[c]) + 0.5);
  }
  return picture;
}

Image shrunk(const Image& image, int64_t width) {
  int64_t h = image.height, w = image.width;
  while (w > width && h > 1) {
    h = (h + 1) / 2;
    w = (w + 1) / 2;
  }
  return w == image.width ? image : resize_bilinear(image, h, w);
}

std::vector<std::string> output_names(const std::vector<fs::path>& paths) {
  std::vector<fs::path> whole;
  std::map<std::string, int> times;
  const auto without_ending = [](const fs::path& path) { return (path.parent_path() / path.stem()).string(); };
  for (const fs::path& path : paths) {
    fs::path inside;
    for (const fs::path& part : path.relative_path().lexically_normal())
      if (part != "..") inside /= part;
    ++times[without_ending(inside)];
    whole.push_back(std::move(inside));
  }
  std::vector<std::string> names;
  std::set<std::string> used;
  for (const fs::path& path : whole) {
    const std::string stem = without_ending(path), wanted = times[stem] == 1 ? stem : path.string();
    std::string name = wanted;
    for (int i = 2; (name != stem && times.contains(name)) || !used.insert(name).second; ++i)
      name = fmt::format("{}-{}", wanted, i);
    names.push_back(name);
  }
  return names;
}

const std::vector<std::string>& PictureWriter::kinds_known() {
  static const std::vector<std::string> kinds = {"index", "palette", "overlay"};
  return kinds;
}

PictureWriter::PictureWriter(fs::path directory, ClassTable classes, Options options)
    : directory_(std::move(directory)), classes_(std::move(classes)), options_(std::move(options)) {
  for (const std::string& kind : options_.kinds)
    CONVOY_CHECK(std::count(kinds_known().begin(), kinds_known().end(), kind),
                 "there is no kind of prediction '{}'; known are {}", kind, fmt::join(kinds_known(), ", "));
  make_directories(directory_);
}

void PictureWriter::write_index(const std::string& file, const LabelMap& labels) const {
  LabelMap values = labels;
  if (options_.file_values) classes_.to_file_values(values);
  const auto& table = classes_.file_values;
  const bool own = options_.file_values && !table.empty();
  const int64_t most = own ? *std::max_element(table.begin(), table.end()) : std::ssize(classes_.names) - 1;
  write_png_gray(file, values, most <= 255 ? 8 : 16);
}

std::string PictureWriter::file_of(const std::string& name, const std::string& kind) const {
  return fmt::format("{}_{}.png", (directory_ / name).string(), kind);
}

void PictureWriter::require_apart(const std::vector<std::string>& names, const std::vector<fs::path>& inputs) const {
  std::map<fs::path, fs::path> by_place;
  for (const fs::path& input : inputs) by_place.emplace(place_of(input), input);
  for (const std::string& name : names)
    for (const std::string& kind : options_.kinds) {
      const std::string file = file_of(name, kind);
      for (const std::string& written : {file, file + kTemporaryEnding}) {
        const auto input = by_place.find(place_of(written));
        CONVOY_CHECK(input == by_place.end(), "the output {} would replace the input {}; choose another output folder",
                     written, input->second.string());
      }
    }
}

void PictureWriter::prepare(const std::string& name) const {
  make_directories((directory_ / name).parent_path());
  for (const std::string& kind : options_.kinds) {
    const std::string file = file_of(name, kind);
    std::error_code error;
    static_cast<void>(fs::symlink_status(file + kTemporaryEnding, error));  // asks the file system for its limit
    CONVOY_CHECK(error != std::errc::filename_too_long, "the output {} has too long a name: {}", file, error.message());
  }
}

std::map<std::string, std::string> PictureWriter::write(const std::string& name, const Image& image,
                                                        const LabelMap& labels) const {
  const bool few = classes_.names.size() <= 256;
  prepare(name);
  std::map<std::string, std::string> files;
  for (const std::string& kind : options_.kinds) {
    const std::string file = file_of(name, kind);
    if (kind == "index")
      write_index(file, labels);
    else if (kind == "overlay")
      write_png(file, overlay_picture(image, labels, classes_.colors, options_.alpha));
    else if (few)
      write_png_palette(file, labels, classes_.colors);
    else
      write_png(file, color_picture(labels, classes_.colors));
    files[kind] = file;
  }
  return files;
}

}  // namespace convoy
