#include "io/chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace convoy {
namespace {

using Points = std::vector<std::pair<double, double>>;

constexpr double kWidth = 640, kHeight = 300, kLeft = 64, kRight = 24, kTop = 34, kBottom = 44;
constexpr size_t kMaxPoints = 1000, kMaxDots = 60;

struct Axis {
  double low = 0, high = 1, step = 0.2;
};

// Round limits and a tick distance of 1, 2 or 5 times a power of ten.
Axis nice_axis(double low, double high, int ticks, bool keep_limits) {
  if (high <= low) {
    const double margin = low == 0 ? 1 : std::abs(low) * 0.1;
    low -= margin;
    high += margin;
  }
  const double raw = (high - low) / ticks;
  const double power = std::pow(10, std::floor(std::log10(raw)));
  const double factor = raw / power;
  Axis axis;
  axis.step = power * (factor <= 1 ? 1 : factor <= 2 ? 2 : factor <= 5 ? 5 : 10);
  axis.low = keep_limits ? low : std::floor(low / axis.step) * axis.step;
  axis.high = keep_limits ? high : std::ceil(high / axis.step) * axis.step;
  return axis;
}

// Counted, since adding a small step to a large value may not change it.
std::vector<double> ticks(const Axis& axis) {
  std::vector<double> values;
  const double first = std::ceil(axis.low / axis.step) * axis.step;
  for (int i = 0; i < 16; ++i) {
    const double value = first + i * axis.step;
    if (value <= axis.high + axis.step * 1e-6) values.push_back(value);
  }
  return values;
}

// Each of kMaxPoints / 2 equal pieces keeps its lowest and highest point, so that spikes stay visible.
Points thinned(const Points& points) {
  if (points.size() <= kMaxPoints) return points;
  Points out;
  const size_t pieces = kMaxPoints / 2;
  for (size_t piece = 0; piece < pieces; ++piece) {
    const size_t begin = piece * points.size() / pieces, end = (piece + 1) * points.size() / pieces;
    size_t low = end, high = end, gap = end;
    for (size_t i = begin; i < end; ++i) {
      if (!std::isfinite(points[i].second)) {
        gap = i;
        continue;
      }
      if (low == end || points[i].second < points[low].second) low = i;
      if (high == end || points[i].second > points[high].second) high = i;
    }
    for (size_t i : {low, high, gap})
      if (i != end) out.push_back(points[i]);
  }
  std::stable_sort(out.begin(), out.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  return out;
}

struct Range {
  double low = std::numeric_limits<double>::infinity(), high = -low;
  void add(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
};

std::string tick_text(double value, const Axis& axis, bool percent) {
  if (std::abs(value) < axis.step * 1e-6) value = 0;
  return percent ? fmt::format("{:.{}f}%", value * 100, axis.step < 0.0095 ? 1 : 0) : short_number(value);
}

// The names of the series at the upper right, from an estimate of the width of a letter.
std::string legend(const LineChart& chart) {
  constexpr double kLetter = 6.8, kBox = 15, kGap = 16;
  if (chart.series.size() == 1) return "";
  double x = kWidth - kRight + kGap;
  for (const auto& series : chart.series)
    if (!series.faint) x -= kBox + kGap + kLetter * static_cast<double>(series.name.size());
  std::string out;
  for (const auto& series : chart.series) {
    if (series.faint) continue;
    out += fmt::format("<rect class=\"dot-{}\" x=\"{:.0f}\" y=\"9\" width=\"10\" height=\"10\" rx=\"2\"/>",
                       series.colour, x);
    out += fmt::format("<text class=\"legend\" x=\"{:.0f}\" y=\"18\">{}</text>\n", x + kBox, html_escape(series.name));
    x += kBox + kGap + kLetter * static_cast<double>(series.name.size());
  }
  return out;
}

}  // namespace

std::string html_escape(std::string_view text) {
  std::string out;
  for (char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string short_number(double value) {
  const double size = std::abs(value);
  if (!std::isfinite(value)) return fmt::format("{}", value);
  if (size >= 1e15) return fmt::format("{:.3g}", value);
  if (size >= 1e9) return fmt::format("{:.4g}G", value / 1e9);
  if (size >= 1e6) return fmt::format("{:.4g}M", value / 1e6);
  if (size >= 1e4) return fmt::format("{:.4g}k", value / 1e3);
  if (size >= 1e3) return fmt::format("{:.0f}", value);
  if (size == 0 || size >= 1e-3) return fmt::format("{:.4g}", value);
  const int exponent = static_cast<int>(std::floor(std::log10(size)));
  return fmt::format("{:.3g}e{}", value / std::pow(10, exponent), exponent);
}

Points smoothed(const Points& points, double window) {
  const double keep = 1 - 2 / (std::max(window, 1.0) + 1);
  Points out;
  double mean = 0, weight = 0;
  for (const auto& [x, y] : points) {
    if (!std::isfinite(y)) {
      out.emplace_back(x, y);
      continue;
    }
    mean = keep * mean + (1 - keep) * y;
    weight = keep * weight + (1 - keep);
    out.emplace_back(x, mean / weight);
  }
  return out;
}

std::string line_chart_svg(const LineChart& chart) {
  Range xs, ys;
  for (const auto& series : chart.series) {
    for (const auto& [x, y] : series.points) {
      if (!std::isfinite(x) || !std::isfinite(y)) continue;
      xs.add(x);
      ys.add(y);
    }
  }
  std::string out = fmt::format("<svg class=\"chart\" viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\">\n", kWidth,
                                kHeight, html_escape(chart.title));
  out += fmt::format("<text class=\"chart-title\" x=\"{}\" y=\"18\">{}</text>\n", kLeft, html_escape(chart.title));
  if (xs.low > xs.high) {
    return out + fmt::format("<text class=\"tick\" x=\"{}\" y=\"{}\" text-anchor=\"middle\">no data</text></svg>\n",
                             kWidth / 2, kHeight / 2);
  }
  if (chart.from_zero) ys.add(0);
  if (chart.y_range) ys = {chart.y_range->first, chart.y_range->second};
  const Axis x_axis = nice_axis(xs.low, xs.high, 6, true);
  const Axis y_axis = nice_axis(ys.low, ys.high, 5, chart.y_range.has_value());
  const auto px = [&](double x) {
    return kLeft + (x - x_axis.low) / (x_axis.high - x_axis.low) * (kWidth - kLeft - kRight);
  };
  const auto py = [&](double y) {
    const double share = std::clamp((y - y_axis.low) / (y_axis.high - y_axis.low), 0.0, 1.0);
    return kHeight - kBottom - share * (kHeight - kTop - kBottom);
  };

  for (double y : ticks(y_axis)) {
    out += fmt::format("<line class=\"grid\" x1=\"{}\" x2=\"{}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/>", kLeft, kWidth - kRight,
                       py(y), py(y));
    out += fmt::format("<text class=\"tick\" x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>\n", kLeft - 7,
                       py(y) + 4, tick_text(y, y_axis, chart.percent));
  }
  for (double x : ticks(x_axis)) {
    out += fmt::format("<text class=\"tick\" x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n", px(x),
                       kHeight - kBottom + 16, tick_text(x, x_axis, false));
  }
  out += fmt::format("<line class=\"axis\" x1=\"{}\" x2=\"{}\" y1=\"{}\" y2=\"{}\"/>\n", kLeft, kWidth - kRight,
                     kHeight - kBottom, kHeight - kBottom);
  out += fmt::format("<text class=\"tick\" x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n",
                     (kLeft + kWidth - kRight) / 2, kHeight - 8, html_escape(chart.x_label));

  for (const auto& series : chart.series) {
    const Points points = thinned(series.points);
    std::string path;
    bool pen_down = false;
    for (const auto& [x, y] : points) {
      if (std::isfinite(y)) path += fmt::format("{}{:.1f} {:.1f}", pen_down ? 'L' : 'M', px(x), py(y));
      pen_down = std::isfinite(y);
    }
    const std::string style = fmt::format("series series-{}{}", series.colour, series.faint ? " faint" : "");
    out += fmt::format("<path class=\"{}\" d=\"{}\"/>\n", style, path);
    if (!series.faint && points.size() <= kMaxDots) {
      for (const auto& [x, y] : points) {
        if (!std::isfinite(y)) continue;
        out += fmt::format(
            "<circle class=\"dot-{}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\"><title>{} {}: {}</title></circle>\n",
            series.colour, px(x), py(y), html_escape(chart.x_label), short_number(x),
            chart.percent ? fmt::format("{:.2f}%", y * 100) : short_number(y));
      }
    }
  }
  return out + legend(chart) + "</svg>\n";
}

}  // namespace convoy
