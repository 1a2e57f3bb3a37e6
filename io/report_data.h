// What a report shows, gathered from a run's directory.
#pragma once
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace convoy {

struct ReportData {
  using Points = std::vector<std::pair<double, double>>;  ///< (step, value); null values are NaN

  struct ClassIou {
    std::string name;
    double iou = 0;  ///< 0 to 1; NaN where the class occurs neither in labels nor in predictions
  };
  struct Picture {
    std::string sample, kind;  ///< kind: "image", "label", ...; empty when the name has none
    std::filesystem::path path;
  };

  std::string run_name, network, dataset, config;
  std::string prediction;  ///< how the last evaluation's predictions came about: scales, mirrored; empty: plainly
  nlohmann::json manifest = nlohmann::json::object();
  Points loss, learning_rate, images_per_second, wait_share, wait_ms, exchange_share, pixel_accuracy, miou,
      miou_present;
  double last_step = kAbsent, last_epoch = kAbsent, peak_memory = kAbsent;  ///< memory in bytes
  int64_t iou_step = 0;
  std::vector<ClassIou> iou;  ///< of the last evaluation that has it, in the order of the classes
  std::vector<Picture> pictures;
  std::vector<std::string> remarks;  ///< what was missing or damaged

  static constexpr double kAbsent = std::numeric_limits<double>::quiet_NaN();
};

ReportData gather_report_data(const std::filesystem::path& run_directory);

}  // namespace convoy
