#include "io/report_data.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "engine/error.h"
#include "io/file.h"
#include "io/metrics_file.h"

namespace convoy {
namespace fs = std::filesystem;
namespace {

// A number, NaN for null (a loss that was not finite), nothing when the key is absent or something else.
template <class Json>
std::optional<double> number(const Json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end()) return std::nullopt;
  if (found->is_null()) return ReportData::kAbsent;
  if (!found->is_number()) return std::nullopt;
  return found->template get<double>();
}

void add_point(ReportData::Points& points, const nlohmann::ordered_json& object, double step, const char* key) {
  if (const auto value = number(object, key)) points.emplace_back(step, *value);
}

std::string yaml_text(const YAML::Node& root, const char* section, const char* key) {
  if (!root.IsMap() || !root[section] || !root[section].IsMap()) return "";
  const YAML::Node value = root[section][key];
  return value && value.IsScalar() ? value.Scalar() : "";
}

double whole_number(const std::string& text) {
  try {
    return std::stod(text);
  } catch (const std::exception&) {
    return 0;
  }
}

// Reads config.yaml; returns the global batch, 0 when it is not known.
double read_config(const fs::path& file, ReportData& data) {
  std::error_code ignored;
  if (!fs::exists(file, ignored)) {
    data.remarks.push_back("config.yaml is missing");
    return 0;
  }
  try {
    data.config = read_text_file(file);
    const YAML::Node root = YAML::Load(data.config);
    data.network = yaml_text(root, "MODEL", "MODEL_NAME");
    const std::string backbone = yaml_text(root, "MODEL", "BACKBONE");
    if (!backbone.empty()) data.network += (data.network.empty() ? "" : " / ") + backbone;
    data.dataset = yaml_text(root, "DATASET", "NAME");
    const double global = whole_number(yaml_text(root, "TRAIN", "GLOBAL_BATCH"));
    if (global > 0) return global;
    const auto ranks = number(data.manifest, "ranks");
    return whole_number(yaml_text(root, "TRAIN", "BATCH_SIZE")) * (ranks && *ranks > 0 ? *ranks : 1);
  } catch (const std::exception& error) {
    data.remarks.push_back(std::string("config.yaml: ") + error.what());
    return 0;
  }
}

void read_manifest(const fs::path& file, ReportData& data) {
  std::error_code ignored;
  if (!fs::exists(file, ignored)) {
    data.remarks.push_back("manifest.json is missing");
    return;
  }
  auto json = nlohmann::json::parse(read_text_file(file), nullptr, false);
  if (json.is_object()) {
    data.manifest = std::move(json);
  } else {
    data.remarks.push_back("manifest.json is damaged");
  }
}

void add_evaluation(const nlohmann::ordered_json& object, double step, ReportData& data) {
  add_point(data.pixel_accuracy, object, step, "pixel_accuracy");
  add_point(data.miou, object, step, "miou");
  add_point(data.miou_present, object, step, "miou_present");
  const auto how = object.find("prediction");
  data.prediction = how != object.end() && how->is_string() ? how->get<std::string>() : "";
  const auto iou = object.find("iou");
  if (iou == object.end() || !iou->is_object() || iou->empty()) return;
  data.iou_step = static_cast<int64_t>(step);
  data.iou.clear();
  for (const auto& [name, value] : iou->items())
    if (value.is_number() || value.is_null())
      data.iou.push_back({name, value.is_number() ? value.get<double>() : ReportData::kAbsent});
}

void add_training(const nlohmann::ordered_json& object, double step, double global_batch, ReportData& data) {
  add_point(data.loss, object, step, "loss");
  add_point(data.learning_rate, object, step, "lr");
  add_point(data.images_per_second, object, step, "images_per_second");
  add_point(data.wait_ms, object, step, "data_wait_ms");
  const auto wait = number(object, "data_wait_ms"), rate = number(object, "images_per_second");
  const auto share_of_step = [&](double ms) { return std::clamp(ms * *rate / (1000 * global_batch), 0.0, 1.0); };
  const bool step_time_known = rate && *rate > 0 && global_batch > 0;
  if (wait && step_time_known) data.wait_share.emplace_back(step, share_of_step(*wait));
  const auto exchanges = number(object, "comm_wait_ms");  // 0 on one rank, which exchanges nothing
  if (exchanges && *exchanges > 0 && step_time_known) data.exchange_share.emplace_back(step, share_of_step(*exchanges));
  if (const auto epoch = number(object, "epoch")) data.last_epoch = *epoch;
}

void add_metrics(const fs::path& file, double global_batch, ReportData& data) {
  int64_t damaged = 0;
  const auto objects = read_metrics(file, &damaged);
  if (objects.empty()) data.remarks.push_back("metrics.jsonl is missing or empty");
  if (damaged > 0) data.remarks.push_back(fmt::format("metrics.jsonl: {} damaged lines were left out", damaged));
  for (const auto& object : objects) {
    const auto step = number(object, "step");
    if (!step || !std::isfinite(*step)) continue;
    const auto evaluation = object.find("eval");
    if (evaluation != object.end() && evaluation->is_boolean() && evaluation->get<bool>()) {
      add_evaluation(object, *step, data);
    } else {
      add_training(object, *step, global_batch, data);
    }
    if (!(data.last_step >= *step)) data.last_step = *step;
    if (const auto memory = number(object, "peak_memory_bytes"); memory && !(data.peak_memory >= *memory))
      data.peak_memory = *memory;
  }
  const auto by_step = [](const auto& a, const auto& b) { return a.first < b.first; };
  for (auto* points : {&data.loss, &data.learning_rate, &data.images_per_second, &data.wait_share, &data.wait_ms,
                       &data.pixel_accuracy, &data.miou, &data.miou_present})
    std::stable_sort(points->begin(), points->end(), by_step);
}

void add_pictures(const fs::path& directory, ReportData& data) {
  static constexpr std::array kKinds = {"image", "input", "label", "truth", "prediction", "pred", "overlay"};
  const auto rank = [](const ReportData::Picture& picture) {
    return std::find(kKinds.begin(), kKinds.end(), picture.kind) - kKinds.begin();
  };
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(directory, error)) {
    if (entry.path().extension() != ".png") continue;
    ReportData::Picture picture{entry.path().stem().string(), "", entry.path()};
    const size_t cut = picture.sample.rfind('_');
    if (cut != std::string::npos && cut > 0) {
      const std::string tail = picture.sample.substr(cut + 1);
      if (std::find(kKinds.begin(), kKinds.end(), tail) != kKinds.end()) {
        picture.kind = tail;
        picture.sample.resize(cut);
      }
    }
    data.pictures.push_back(std::move(picture));
  }
  std::sort(data.pictures.begin(), data.pictures.end(), [&](const auto& a, const auto& b) {
    return std::tuple(a.sample, rank(a), a.path) < std::tuple(b.sample, rank(b), b.path);
  });
  if (data.pictures.empty()) data.remarks.push_back("predictions/ holds no pictures");
}

}  // namespace

ReportData gather_report_data(const fs::path& run_directory) {
  ReportData data;
  const fs::path full = fs::absolute(run_directory).lexically_normal();
  data.run_name = (full.has_filename() ? full : full.parent_path()).filename().string();
  read_manifest(run_directory / "manifest.json", data);
  const double global_batch = read_config(run_directory / "config.yaml", data);
  add_metrics(run_directory / "metrics.jsonl", global_batch, data);
  add_pictures(run_directory / "predictions", data);
  return data;
}

}  // namespace convoy
