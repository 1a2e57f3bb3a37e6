#include "engine/profiler.h"

#include <fstream>
#include <nlohmann/json.hpp>

#include "engine/error.h"

namespace convoy {

double Profiler::now_us() const {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - origin_).count();
}

void Profiler::add(ProfileSpan span) {
  const std::lock_guard lock(mutex_);
  spans_.push_back(std::move(span));
}

void Profiler::write_chrome_trace(const std::string& path) const {
  auto events = nlohmann::json::array();
  for (const ProfileSpan& s : spans_)
    events.push_back({{"name", s.name},
                      {"cat", s.category},
                      {"ph", "X"},
                      {"ts", s.start_us},
                      {"dur", s.duration_us},
                      {"pid", 0},
                      {"tid", s.lane}});
  std::ofstream file(path);
  file << nlohmann::json{{"traceEvents", events}, {"displayTimeUnit", "ms"}};
  file.close();
  CONVOY_CHECK(file, "the trace file '{}' cannot be written", path);
}

}  // namespace convoy
