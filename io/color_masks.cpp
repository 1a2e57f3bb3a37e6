#include "io/color_masks.h"

#include <algorithm>
#include <cctype>
#include <sstream>
#include <unordered_map>

#include "engine/error.h"
#include "io/file.h"

namespace convoy {
namespace {

namespace fs = std::filesystem;

/// Digits, perhaps with a sign before them.
bool is_integer(const std::string& word) {
  const size_t first = word[0] == '-' || word[0] == '+' ? 1 : 0;
  return word.size() > first && std::all_of(word.begin() + static_cast<ptrdiff_t>(first), word.end(),
                                            [](unsigned char c) { return std::isdigit(c); });
}

bool is_byte(const std::string& word) {
  return word.size() <= 3 && std::isdigit(static_cast<unsigned char>(word[0])) && std::stoi(word) <= 255;
}

uint32_t key_of(const uint8_t* rgb) {
  return static_cast<uint32_t>(rgb[0]) << 16 | static_cast<uint32_t>(rgb[1]) << 8 | rgb[2];
}

struct Meaning {
  int32_t file_value = kIgnoreLabel;
  std::string name;
};

class ColorMasks : public LabelFormat {
 public:
  explicit ColorMasks(std::string table) : table_(std::move(table)) {}

  void add(const Color& color, const Meaning& meaning) {
    const auto [known, inserted] = meanings_.emplace(key_of(color.data()), meaning);
    CONVOY_CHECK(inserted || known->second.file_value == meaning.file_value,
                 "{}: the colour ({}, {}, {}) stands for {} and for {}", table_, color[0], color[1], color[2],
                 known->second.name, meaning.name);
  }
  bool empty() const { return meanings_.empty(); }

  LabelMap read(const SamplePaths& sample) const override {
    const std::vector<uint8_t> bytes = read_file_bytes(sample.label);
    const ImageHeader header = decode_image_header(bytes, sample.label);
    if (header.format != ImageFormat::png || header.color == ColorKind::gray)
      return decode_label_map(bytes, sample.label);
    const Image image = decode_image_rgb(bytes, sample.label);
    LabelMap labels{image.height, image.width, std::vector<int32_t>(static_cast<size_t>(image.height * image.width))};
    uint32_t last = UINT32_MAX;  // neighbours mostly agree
    int32_t value = 0;
    for (size_t i = 0; i < labels.data.size(); ++i) {
      const uint8_t* rgb = image.data.data() + 3 * i;
      if (key_of(rgb) != last) {
        const auto known = meanings_.find(key_of(rgb));
        if (known == meanings_.end()) refuse(sample.label, rgb, static_cast<int64_t>(i), labels.width);
        value = known->second.file_value;
        last = key_of(rgb);
      }
      labels.data[i] = value;
    }
    return labels;
  }

  SizeHW size(const SamplePaths& sample) const override {
    const ImageHeader header = read_image_header(sample.label);
    return {header.height, header.width};
  }

 private:
  [[noreturn]] void refuse(const std::string& path, const uint8_t* rgb, int64_t at, int64_t width) const {
    const auto distance = [rgb](uint32_t key) {
      const int r = static_cast<int>(key >> 16) - rgb[0], g = static_cast<int>(key >> 8 & 255) - rgb[1],
                b = static_cast<int>(key & 255) - rgb[2];
      return std::pair(r * r + g * g + b * b, key);
    };
    const auto nearest = std::min_element(meanings_.begin(), meanings_.end(), [&](const auto& a, const auto& b) {
      return distance(a.first) < distance(b.first);
    });
    const uint32_t key = nearest->first;
    fail(
        "{}: label value of the colour ({}, {}, {}) at pixel (x {}, y {}) is not in {}; "
        "the nearest known colour is ({}, {}, {}), {}",
        path, rgb[0], rgb[1], rgb[2], at % width, at / width, table_, key >> 16, key >> 8 & 255, key & 255,
        nearest->second.name);
  }

  std::string table_;
  std::unordered_map<uint32_t, Meaning> meanings_;
};

}  // namespace

std::vector<NamedColor> read_named_colors(const fs::path& path) {
  std::vector<NamedColor> lines;
  int64_t number = 0;
  for (const std::string& text : read_lines(path)) {
    ++number;
    CONVOY_CHECK(is_utf8(text), "{}:{}: is not UTF-8; save the file in that encoding", path.string(), number);
    std::vector<std::string> words;
    std::istringstream stream(text);
    for (std::string word; stream >> word;) words.push_back(word);
    if (words.empty()) continue;
    NamedColor line{{}, {}, number};
    if (words.size() > 3 && std::all_of(words.end() - 3, words.end(), is_integer)) {
      CONVOY_CHECK(std::all_of(words.end() - 3, words.end(), is_byte),
                   "{}:{}: the colour ({}) is to have red, green and blue from 0 to 255", path.string(), number,
                   fmt::join(words.end() - 3, words.end(), ", "));
      line.color.emplace();
      for (size_t k = 0; k < 3; ++k) (*line.color)[k] = static_cast<uint8_t>(std::stoi(words[words.size() - 3 + k]));
      words.resize(words.size() - 3);
    }
    line.name = fmt::format("{}", fmt::join(words, " "));
    lines.push_back(std::move(line));
  }
  return lines;
}

std::shared_ptr<const LabelFormat> color_masks(const DatasetParts& parts, const std::string& table) {
  const ClassTable& classes = parts.classes;
  const auto meaning_of = [&](size_t c) {
    return Meaning{classes.file_values.empty() ? static_cast<int32_t>(c) : classes.file_values[c], classes.names[c]};
  };
  if (table == "classes") {
    auto masks = std::make_shared<ColorMasks>("the classes' colours (DATASET.MASK_COLORS)");
    for (size_t c = 0; c < classes.names.size(); ++c) masks->add(classes.colors[c], meaning_of(c));
    for (const Color& color : parts.ignore_colors) masks->add(color, {kIgnoreLabel, "ignore"});
    return masks;
  }
  const fs::path path = fs::path(parts.root) / table;
  auto masks = std::make_shared<ColorMasks>(path.string());
  for (const NamedColor& line : read_named_colors(path)) {
    CONVOY_CHECK(line.color, "{}:{}: needs a class and its red, green and blue (0 to 255), found '{}'", path.string(),
                 line.number, line.name);
    const auto known = std::find(classes.names.begin(), classes.names.end(), line.name);
    const bool ignored = known == classes.names.end() && line.name == "ignore";
    CONVOY_CHECK(ignored || known != classes.names.end(), "{}:{}: '{}' is no class{}", path.string(), line.number,
                 line.name, nearest_hint(line.name, classes.names));
    masks->add(*line.color, ignored ? Meaning{kIgnoreLabel, "ignore"}
                                    : meaning_of(static_cast<size_t>(known - classes.names.begin())));
  }
  CONVOY_CHECK(!masks->empty(), "{}: lists no colours", path.string());
  return masks;
}

}  // namespace convoy
