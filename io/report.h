// report.html of a run: one file that shows everything and needs nothing else.
#pragma once
#include <filesystem>

namespace convoy {

/// Writes report.html into a run's directory from its metrics.jsonl, config.yaml, manifest.json and predictions/*.png
/// and returns its path. Whatever is missing or damaged there is left out and said in the report. Pictures named
/// <sample>_image.png, <sample>_label.png, <sample>_prediction.png, <sample>_overlay.png form one row. Throws Error
/// when the directory does not exist or the report cannot be written.
std::filesystem::path write_report(const std::filesystem::path& run_directory);

}  // namespace convoy
