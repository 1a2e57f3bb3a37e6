// Line charts as inline SVG. Colours come from the page's CSS (classes "series-0".. and "axis"), so that they follow
// its light or dark scheme.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace convoy {

struct ChartSeries {
  std::string name;
  std::vector<std::pair<double, double>> points;  ///< x ascending; a y that is not finite leaves a gap
  int colour = 0;                                 ///< 0-3
  bool faint = false;                             ///< background of another series; not in the legend
};

struct LineChart {
  std::string title, x_label;
  std::vector<ChartSeries> series;
  std::optional<std::pair<double, double>> y_range;  ///< from the values when absent
  bool percent = false;                              ///< y is a share, 1 = 100 %
  bool from_zero = false;                            ///< y starts at 0 at the latest
};

/// The chart as an <svg> element, 640x300 units, as wide as its container. More than about 1000 points a series are
/// thinned to the extremes of equal pieces. Without any finite point: a box that says "no data".
std::string line_chart_svg(const LineChart& chart);

/// Text with &, <, > and quotes escaped for HTML and attributes.
std::string html_escape(std::string_view text);

/// A number for people: 1200000 -> "1.2M", 0.00031 -> "3.1e-4", 12.5 -> "12.5".
std::string short_number(double value);

/// Exponential moving average over about `window` points, corrected for its start (Kingma & Ba 2015, section 3);
/// values that are not finite are passed through and do not enter.
std::vector<std::pair<double, double>> smoothed(const std::vector<std::pair<double, double>>& points, double window);

}  // namespace convoy
