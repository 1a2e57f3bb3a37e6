#include "apps/progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <string>

namespace convoy {

void Progress::add(double seconds, double data_wait_seconds, double comm_wait_seconds) {
  steps_.push_back({seconds, data_wait_seconds, comm_wait_seconds});
  if (steps_.size() > kWindow) steps_.pop_front();
}

double Progress::mean(double Step::*part) const {
  double sum = 0;
  for (const Step& step : steps_) sum += step.*part;
  return steps_.empty() ? 0 : sum / static_cast<double>(steps_.size());
}

double Progress::seconds_per_step() const {
  return mean(&Step::seconds);
}

double Progress::data_wait_seconds() const {
  return mean(&Step::data_wait);
}

double Progress::comm_wait_seconds() const {
  return mean(&Step::comm_wait);
}

double Progress::data_wait_share() const {
  return std::min(1.0, data_wait_seconds() / std::max(seconds_per_step(), 1e-9));
}

std::string duration_text(double seconds) {
  const auto whole = static_cast<int64_t>(std::max(0.0, seconds) + 0.5);
  const int64_t hours = whole / 3600, minutes = whole / 60 % 60;
  return hours ? fmt::format("{}:{:02}:{:02}", hours, minutes, whole % 60)
               : fmt::format("{}:{:02}", minutes, whole % 60);
}

int64_t peak_memory_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("VmHWM:")) return std::stoll(line.substr(6)) * 1024;
  return 0;
}

}  // namespace convoy
