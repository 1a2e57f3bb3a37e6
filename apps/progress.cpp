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

namespace {

constexpr size_t kUnknown = size_t{1} << 62;

/// The number behind `word` in a file, or at its beginning where `word` is empty.
size_t number_in(const std::string& file, const std::string& word) {
  std::ifstream text(file);
  for (std::string line; std::getline(text, line);) {
    if (!line.starts_with(word)) continue;
    const size_t at = line.find_first_of("0123456789", word.size());
    if (at == std::string::npos || line.size() - at > 18) return kUnknown;
    return std::stoull(line.substr(at));
  }
  return kUnknown;
}

/// What a cgroup's limit leaves; files in the page cache give way.
size_t left_in_group(const std::string& limit_file, const std::string& use_file, const std::string& stat_file,
                     const std::string& cache) {
  const size_t limit = number_in(limit_file, ""), use = number_in(use_file, "");
  if (limit == kUnknown || use == kUnknown) return kUnknown;
  const size_t cached = number_in(stat_file, cache);
  const size_t taken = use - std::min(use, cached == kUnknown ? 0 : cached);
  return limit - std::min(limit, taken);
}

}  // namespace

size_t available_memory_bytes() {
  const size_t kibibytes = number_in("/proc/meminfo", "MemAvailable:");
  const std::string v2 = "/sys/fs/cgroup/", v1 = "/sys/fs/cgroup/memory/";
  return std::min({kibibytes == kUnknown ? kUnknown : kibibytes * 1024,
                   left_in_group(v2 + "memory.max", v2 + "memory.current", v2 + "memory.stat", "inactive_file "),
                   left_in_group(v1 + "memory.limit_in_bytes", v1 + "memory.usage_in_bytes", v1 + "memory.stat",
                                 "total_inactive_file ")});
}

}  // namespace convoy
