#include "io/config.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <numeric>

#include "engine/error.h"
#include "io/config_schema.h"
#include "io/image.h"

namespace convoy {
namespace {

const char* const kModelNames[] = {"DeepLabV3_Plus", "PointRend", "FCN",    "PSPNet",   "DANet",     "OCNet",  "EncNet",
                                   "DenseASPP",      "DUNet",     "ICNet",  "BiSeNet",  "RefineNet", "HRNet",  "DFANet",
                                   "UNet",           "FastSCNN",  "CGNet",  "LEDNet",   "HardNet",   "DABNet", "FPENet",
                                   "ContextNet",     "ENet",      "EDANet", "ESPNetV2", "CCNet"};
const char* const kDatasetNames[] = {"cityscape", "camvid", "ade20k", "pascal_voc", "pascal_aug",
                                     "coco",      "sbu",    "lip",    "folder"};

/// Lower case, letters and digits only.
std::string squash(const std::string& name) {
  std::string out;
  for (const char c : name) {
    if (std::isalnum(static_cast<unsigned char>(c))) {
      out += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    }
  }
  return out;
}

int64_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<int64_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (size_t i = 0; i < a.size(); ++i) {
    int64_t diagonal = row[0]++;
    for (size_t j = 0; j < b.size(); ++j) {
      const int64_t substituted = diagonal + (a[i] != b[j]);
      diagonal = row[j + 1];
      row[j + 1] = std::min({substituted, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

std::string upper(const std::string& text) {
  std::string out = text;
  for (char& c : out) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return out;
}

/// Aliases can make a small document exponentially large, or endless: counts the values as a reader will meet them.
void check_extent(const YAML::Node& node, const std::string& name, int64_t& left, int depth = 0) {
  constexpr int kMaxDepth = 32;
  CONVOY_CHECK(depth <= kMaxDepth && --left >= 0,
               "{}:{}: too many values, or nested deeper than {}; does an alias (*name) contain itself?", name,
               node.Mark().line + 1, kMaxDepth);
  for (const auto& entry : node) {
    if (node.IsMap()) {
      check_extent(entry.first, name, left, depth + 1);
      check_extent(entry.second, name, left, depth + 1);
    } else {
      check_extent(entry, name, left, depth + 1);
    }
  }
}

/// Sets fields one by one, remembering where each was set.
class ConfigReader {
 public:
  explicit ConfigReader(Config& config) : config_(config) {}

  void set(const std::string& written_key, const ConfigValue& value, const std::string& place) {
    const ConfigField& field = find(written_key, place);
    Config changed = config_;
    if (!field.set(changed, value)) {
      const auto* word = value.get_if<std::string>();
      fail("{}: {} expects {}, found {}{}", place, field.key, field.expected, describe(value),
           word ? nearest_hint(*word, field.choices) : "");
    }
    config_ = std::move(changed);
    if (!field.note.empty()) places_[field.key] = place;
  }

  void read_map(const YAML::Node& map, const std::string& prefix, const std::string& file) {
    std::map<std::string, int> lines;
    for (const auto& entry : map) {
      const std::string place = fmt::format("{}:{}", file, entry.first.Mark().line + 1);
      CONVOY_CHECK(entry.first.IsScalar(), "{}: a key must be a word", place);
      const std::string key = prefix + entry.first.Scalar();
      const auto [known, inserted] = lines.emplace(key, entry.first.Mark().line + 1);
      CONVOY_CHECK(inserted, "{}: {} is set twice, first in line {}", place, key, known->second);
      if (entry.second.IsMap()) {
        if (!is_group(key)) {
          const ConfigField& field = find(key, place);
          fail("{}: {} expects {}, found a group of keys", place, field.key, field.expected);
        }
        read_map(entry.second, key + ".", file);
      } else if (entry.second.IsNull() && is_group(key)) {
        continue;  // a group with nothing under it
      } else {
        CONVOY_CHECK(!is_group(key), "{}: {} is a group of keys, found {}", place, key,
                     describe(value_of(entry.second)));
        set(key, value_of(entry.second), place);
      }
    }
  }

  /// Lists settings that differ from the default and have no effect.
  void add_notes() {
    const Config defaults;
    for (const ConfigField& field : config_schema()) {
      const auto place = places_.find(field.key);
      if (place != places_.end() && field.dump(config_) != field.dump(defaults)) {
        config_.notes.push_back(fmt::format("{}: {} has no effect; {}", place->second, field.key, field.note));
      }
    }
  }

 private:
  static bool is_group(const std::string& key) {
    const std::string prefix = key + ".";
    return std::any_of(config_schema().begin(), config_schema().end(),
                       [&](const ConfigField& field) { return field.key.starts_with(prefix); });
  }

  static std::string unknown_key(const std::string& key, const std::string& place) {
    std::string hint = nearest_hint(key, config_keys());
    if (hint.empty()) {  // a key without its group
      std::vector<std::string> whole;
      for (const std::string& known : config_keys())
        if (known.ends_with("." + upper(key))) whole.push_back(known);
      if (!whole.empty()) hint = fmt::format("; there is {}", fmt::join(whole, " and "));
    }
    return fmt::format("{}: unknown key {}{}", place, key, hint);
  }

  static const ConfigField& find(const std::string& written, const std::string& place) {
    std::string key = written;
    for (const auto& [alias, target] : config_key_aliases()) {
      if (key == alias) key = target;
    }
    for (const ConfigField& field : config_schema()) {
      if (field.key == key) return field;
    }
    for (const ConfigField& field : config_schema())
      CONVOY_CHECK(!field.key.starts_with(written + "."), "{}: {} is a group of keys; name one of them, as in {}",
                   place, written, field.key);
    fail("{}", unknown_key(written, place));
  }

  static ConfigValue value_of(const YAML::Node& node) {
    if (node.IsNull()) return {ConfigValue::None{}, ""};
    if (node.IsScalar()) {
      // A quoted text goes through the literal rules too, as in the reference: "(512, 1024)" is a tuple.
      return node.Tag() == "!" ? parse_python_literal(node.Scalar()) : parse_plain_scalar(node.Scalar());
    }
    if (node.IsMap()) return {std::string("a group of keys"), "a group of keys"};
    ConfigValue::List items;
    std::string source;
    for (const YAML::Node& item : node) {
      items.push_back(value_of(item));
      source += (source.empty() ? "" : ", ") + items.back().source;
    }
    return {std::move(items), "[" + source + "]"};
  }

  Config& config_;
  std::map<std::string, std::string> places_;
};

std::string resolve(const std::string& name, const char* const* first, const char* const* last) {
  for (; first != last; ++first) {
    if (squash(*first) == squash(name)) return *first;
  }
  return name;
}

}  // namespace

Config parse_config(const std::string& text, const std::string& name, const std::vector<std::string>& overrides) {
  CONVOY_CHECK(overrides.size() % 2 == 0, "command line: overrides come as KEY VALUE pairs; {} has no value",
               overrides.empty() ? "" : overrides.back());
  Config config;
  ConfigReader reader(config);
  YAML::Node root;
  try {
    root = YAML::Load(text);
  } catch (const YAML::Exception& error) {
    fail("{}:{}: not valid YAML: {}", name, error.mark.line + 1, error.msg);
  }
  int64_t values_left = 100'000;
  check_extent(root, name, values_left);
  CONVOY_CHECK(root.IsMap() || root.IsNull() || !root.IsDefined(), "{}: a configuration is a map of keys", name);
  if (root.IsMap()) reader.read_map(root, "", name);
  for (size_t i = 0; i < overrides.size(); i += 2) {
    reader.set(overrides[i], parse_python_literal(overrides[i + 1]), "command line");
  }
  reader.add_notes();
  config.model.model_name = resolve_model_name(config.model.model_name);
  config.model.pointrend.base_model = resolve_model_name(config.model.pointrend.base_model);
  config.dataset.name = resolve_dataset_name(config.dataset.name);
  return config;
}

Config load_config(const std::string& path, const std::vector<std::string>& overrides) {
  if (path.empty()) return parse_config("", "", overrides);
  const std::vector<uint8_t> bytes = read_file_bytes(path);
  return parse_config(std::string(bytes.begin(), bytes.end()), path, overrides);
}

std::string dump_yaml(const Config& config) {
  std::string text;
  std::vector<std::string> open;
  for (const ConfigField& field : config_schema()) {
    std::vector<std::string> parts;
    for (size_t start = 0, dot = 0; dot != std::string::npos; start = dot + 1) {
      dot = field.key.find('.', start);
      parts.push_back(field.key.substr(start, dot == std::string::npos ? dot : dot - start));
    }
    size_t shared = 0;
    while (shared + 1 < parts.size() && shared < open.size() && parts[shared] == open[shared]) ++shared;
    for (size_t depth = shared; depth + 1 < parts.size(); ++depth) {
      text += std::string(2 * depth, ' ') + parts[depth] + ":\n";
    }
    open.assign(parts.begin(), parts.end() - 1);
    text += std::string(2 * open.size(), ' ') + parts.back() + ": " + field.dump(config) + "\n";
  }
  return text;
}

std::vector<std::string> config_keys() {
  std::vector<std::string> keys;
  for (const ConfigField& field : config_schema()) keys.push_back(field.key);
  return keys;
}

std::string resolve_model_name(const std::string& name) {
  return resolve(name, std::begin(kModelNames), std::end(kModelNames));
}

std::string resolve_dataset_name(const std::string& name) {
  if (squash(name) == "cityscapes") return "cityscape";
  return resolve(name, std::begin(kDatasetNames), std::end(kDatasetNames));
}

std::string nearest_name(const std::string& name, const std::vector<std::string>& candidates) {
  std::string best;
  int64_t best_distance = static_cast<int64_t>(name.size()) / 2 + 1;
  for (const std::string& candidate : candidates) {
    const int64_t distance = edit_distance(upper(name), upper(candidate));
    if (distance < best_distance) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

std::string nearest_hint(const std::string& name, const std::vector<std::string>& candidates) {
  const std::string nearest = nearest_name(name, candidates);
  return nearest.empty() ? "" : fmt::format("; the nearest is '{}'", nearest);
}

}  // namespace convoy
