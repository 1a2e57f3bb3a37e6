// metrics.jsonl: one JSON object per logged step, appended and cut back.
#pragma once
#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

namespace convoy {

/// Appends objects to a metrics.jsonl. A line is handed to the system by one write, so a killed process loses none;
/// a torn last line (power loss, full disk) is cut off when the file is opened.
class MetricsFile {
 public:
  explicit MetricsFile(std::filesystem::path path);
  ~MetricsFile();
  MetricsFile(const MetricsFile&) = delete;
  MetricsFile& operator=(const MetricsFile&) = delete;

  /// `object` has an integer "step"; NaN and infinity become null. Throws Error when the line cannot be written
  /// completely; then the file is as before.
  void append(const nlohmann::ordered_json& object);

  struct Cut {
    int64_t kept = 0, removed = 0;  ///< objects
    int64_t damaged = 0;            ///< lines that were no object with a step; dropped too
  };
  /// Removes the objects of steps after `step`, durably, so that a run that goes on from there repeats none.
  Cut truncate_after(int64_t step);

 private:
  void open();

  std::filesystem::path path_;
  int descriptor_ = -1;
};

/// The objects of a metrics.jsonl in order; lines that are no JSON object are left out and counted in `damaged` when
/// given. An absent file gives none; an unreadable one is an Error.
std::vector<nlohmann::ordered_json> read_metrics(const std::filesystem::path& path, int64_t* damaged = nullptr);

}  // namespace convoy
