#include "io/report.h"

#include <algorithm>
#include <cmath>

#include "engine/error.h"
#include "io/base64.h"
#include "io/chart.h"
#include "io/file.h"
#include "io/report_data.h"
#include "io/report_style.h"

namespace convoy {
namespace fs = std::filesystem;
namespace {

using Points = ReportData::Points;

constexpr size_t kMaxPictures = 48;
constexpr uint64_t kMaxPictureBytes = 32u << 20;

double last_value(const Points& points) {
  return points.empty() ? ReportData::kAbsent : points.back().second;
}

double median_of_second_half(const Points& points) {
  std::vector<double> values;
  for (size_t i = points.size() / 2; i < points.size(); ++i)
    if (std::isfinite(points[i].second)) values.push_back(points[i].second);
  if (values.empty()) return ReportData::kAbsent;
  std::nth_element(values.begin(), values.begin() + static_cast<ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

double best_value(const Points& points) {
  double best = ReportData::kAbsent;
  for (const auto& point : points)
    if (std::isfinite(point.second) && !(best >= point.second)) best = point.second;
  return best;
}

std::string percent(double share) {
  return fmt::format("{:.2f} %", share * 100);
}

std::string text_of(const nlohmann::json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) return "";
  return found->is_string() ? found->get<std::string>() : found->dump();
}

class Rows {
 public:
  void add(std::string_view name, const std::string& value) {
    if (!value.empty()) rows_ += fmt::format("<tr><th>{}</th><td>{}</td></tr>\n", name, html_escape(value));
  }
  template <class Format>
  void add(std::string_view name, double value, Format format) {
    if (std::isfinite(value)) add(name, format(value));
  }
  std::string table() const { return rows_.empty() ? "" : "<table class=\"summary\">\n" + rows_ + "</table>\n"; }

 private:
  std::string rows_;
};

std::string command_text(const nlohmann::json& manifest) {
  const auto command = manifest.find("command_line");
  if (command == manifest.end() || !command->is_array()) return "";
  std::vector<std::string> words;
  for (const auto& word : *command)
    if (word.is_string()) words.push_back(word.get<std::string>());
  return fmt::format("{}", fmt::join(words, " "));
}

double smoothing_window(const Points& points) {
  return std::clamp(static_cast<double>(points.size()) / 20, 1.0, 200.0);
}

std::string summary_section(const ReportData& data) {
  Rows results, run;
  const auto plain = [](double value) { return short_number(value); };
  results.add("steps", data.last_step, [](double value) { return fmt::format("{:.0f}", value); });
  results.add("epoch", data.last_epoch, plain);
  results.add("final loss", last_value(data.loss), plain);
  results.add("final loss, smoothed", last_value(smoothed(data.loss, smoothing_window(data.loss))), plain);
  results.add("mIoU, last", last_value(data.miou), percent);
  results.add("mIoU, best", best_value(data.miou), percent);
  results.add("mIoU of present classes, last", last_value(data.miou_present), percent);
  results.add("pixel accuracy, last", last_value(data.pixel_accuracy), percent);
  results.add("predictions of evaluations", data.prediction);
  results.add("images/s", median_of_second_half(data.images_per_second), plain);
  const auto of_the_step = [](double share) { return percent(share) + " of the step"; };
  results.add("data wait", median_of_second_half(data.wait_share), of_the_step);
  results.add("exchanges", median_of_second_half(data.exchange_share), of_the_step);
  results.add("peak memory", data.peak_memory,
              [](double bytes) { return fmt::format("{:.2f} GiB", bytes / (1024.0 * 1024 * 1024)); });
  run.add("network", data.network);
  run.add("dataset", data.dataset);
  run.add("dataset hash", text_of(data.manifest, "dataset_hash"));
  for (const char* key : {"device", "ranks", "threads", "host", "version"}) run.add(key, text_of(data.manifest, key));
  run.add("started", text_of(data.manifest, "time"));
  run.add("command", command_text(data.manifest));
  return "<section class=\"pair\">\n" + results.table() + run.table() + "</section>\n";
}

// The values faintly and their moving average over them; few values alone.
LineChart noisy_chart(const char* title, const Points& points) {
  LineChart chart{title, "step", {{title, points, 0, false}}, {}, false, false};
  const double window = smoothing_window(points);
  if (window < 2) return chart;
  chart.series[0].faint = true;
  chart.series.push_back({"smoothed", smoothed(points, window), 0, false});
  return chart;
}

std::string chart_section(const ReportData& data) {
  std::vector<LineChart> charts;
  if (!data.loss.empty()) charts.push_back(noisy_chart("Training loss", data.loss));
  if (!data.miou.empty() || !data.miou_present.empty() || !data.pixel_accuracy.empty()) {
    LineChart chart{"Evaluation", "step", {}, std::pair(0.0, 1.0), true, false};
    if (!data.miou.empty()) chart.series.push_back({"mIoU", data.miou, 0, false});
    if (!data.miou_present.empty()) chart.series.push_back({"mIoU present", data.miou_present, 1, false});
    if (!data.pixel_accuracy.empty()) chart.series.push_back({"pixel accuracy", data.pixel_accuracy, 2, false});
    charts.push_back(std::move(chart));
  }
  if (!data.learning_rate.empty())
    charts.push_back({"Learning rate", "step", {{"lr", data.learning_rate, 0, false}}, {}, false, true});
  if (!data.images_per_second.empty()) {
    charts.push_back(noisy_chart("Images per second", data.images_per_second));
    charts.back().from_zero = true;
  }
  if (!data.wait_share.empty()) {
    charts.push_back(noisy_chart("Share of the step spent waiting for data", data.wait_share));
    charts.back().percent = charts.back().from_zero = true;
  } else if (!data.wait_ms.empty()) {
    charts.push_back(noisy_chart("Waiting for data, ms per step", data.wait_ms));
    charts.back().from_zero = true;
  }
  if (!data.exchange_share.empty()) {
    charts.push_back(noisy_chart("Share of the step spent in exchanges with other ranks", data.exchange_share));
    charts.back().percent = charts.back().from_zero = true;
  }
  if (charts.empty()) return "";
  std::string out = "<section class=\"charts\">\n";
  for (const auto& chart : charts) out += "<figure>" + line_chart_svg(chart) + "</figure>\n";
  return out + "</section>\n";
}

std::string iou_section(const ReportData& data) {
  if (data.iou.empty()) return "";
  std::string out = fmt::format("<h2>IoU by class <small>step {}</small></h2>\n<table class=\"iou\">\n", data.iou_step);
  const auto row = [&](const std::string& name, double iou, const char* style) {
    if (std::isfinite(iou)) {
      out += fmt::format("<tr{}><th>{}</th><td class=\"bar\"><i style=\"width:{:.2f}%\"></i></td><td>{}</td></tr>\n",
                         style, html_escape(name), std::clamp(iou, 0.0, 1.0) * 100, percent(iou));
    } else {
      out += fmt::format("<tr{}><th>{}</th><td class=\"bar\"></td><td>absent</td></tr>\n", style, html_escape(name));
    }
  };
  for (const auto& item : data.iou) row(item.name, item.iou, "");
  constexpr const char* kTotal = " class=\"total\"";
  if (std::isfinite(last_value(data.miou))) row("mIoU, absent classes count as 0", last_value(data.miou), kTotal);
  if (std::isfinite(last_value(data.miou_present)))
    row("mIoU of the classes that occur", last_value(data.miou_present), kTotal);
  return out + "</table>\n";
}

std::string picture_section(const ReportData& data, std::vector<std::string>& remarks) {
  std::string out;
  const std::string* sample = nullptr;
  uint64_t bytes = 0;
  size_t shown = 0, left_out = 0;
  for (const auto& picture : data.pictures) {
    if (shown == kMaxPictures || bytes > kMaxPictureBytes) {
      ++left_out;
      continue;
    }
    std::string png;
    try {
      png = read_text_file(picture.path, kMaxPictureBytes);
    } catch (const Error& error) {
      remarks.push_back(error.what());
      continue;
    }
    if (!png.starts_with("\x89PNG\r\n\x1a\n")) {
      remarks.push_back(picture.path.filename().string() + " is no PNG file");
      continue;
    }
    if (!sample || *sample != picture.sample) {
      out += fmt::format("{}<h3>{}</h3>\n<div class=\"pictures\">\n", sample ? "</div>\n" : "",
                         html_escape(picture.sample));
      sample = &picture.sample;
    }
    const std::string caption = html_escape(picture.kind.empty() ? picture.sample : picture.kind);
    out += fmt::format(
        "<figure><img alt=\"{0}: {1}\" src=\"data:image/png;base64,{2}\"><figcaption>{1}</figcaption></figure>\n",
        html_escape(picture.sample), caption, base64(png));
    bytes += png.size();
    ++shown;
  }
  if (left_out > 0) remarks.push_back(fmt::format("{} further pictures are in predictions/", left_out));
  return out.empty() ? "" : "<h2>Predictions</h2>\n" + out + "</div>\n";
}

}  // namespace

fs::path write_report(const fs::path& run_directory) {
  std::error_code ignored;
  CONVOY_CHECK(fs::is_directory(run_directory, ignored), "{}: there is no such run directory", run_directory.string());
  const ReportData data = gather_report_data(run_directory);
  std::vector<std::string> remarks = data.remarks;

  const std::string title = html_escape(data.run_name);
  std::string subtitle = html_escape(data.network);
  if (!data.dataset.empty()) subtitle += (subtitle.empty() ? "" : " on ") + html_escape(data.dataset);
  std::string page = fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<title>{0} - Convoy report</title>\n<style>{1}</style>\n</head>\n<body>\n<h1>{0}</h1>\n"
      "<p class=\"subtitle\">{2}</p>\n",
      title, kReportStyle, subtitle);
  page += summary_section(data);
  page += chart_section(data);
  page += iou_section(data);
  page += picture_section(data, remarks);
  if (!data.config.empty())
    page +=
        "<details><summary>Resolved configuration</summary>\n<pre>" + html_escape(data.config) + "</pre></details>\n";
  if (!remarks.empty()) {
    page += "<h2>Remarks</h2>\n<ul>\n";
    for (const auto& remark : remarks) page += "<li>" + html_escape(remark) + "</li>\n";
    page += "</ul>\n";
  }
  page += "</body>\n</html>\n";
  const fs::path file = run_directory / "report.html";
  write_text_file(file, page);
  return file;
}

}  // namespace convoy
