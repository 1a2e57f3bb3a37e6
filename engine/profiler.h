// Where a step's time goes: one span per launch, written as a Chrome trace (chrome://tracing, Perfetto).
#pragma once
#include <chrono>
#include <mutex>
#include <string>
#include <vector>

namespace convoy {

struct ProfileSpan {
  std::string name;      ///< module path and operator
  std::string category;  ///< operator, or "data", "optimizer", ...
  double start_us = 0, duration_us = 0;
  int lane = 0;
};

class Profiler {
 public:
  bool enabled() const { return enabled_; }
  void enable(bool on) { enabled_ = on; }
  /// Microseconds since this profiler was made.
  double now_us() const;
  void add(ProfileSpan span);
  const std::vector<ProfileSpan>& spans() const { return spans_; }
  void clear() { spans_.clear(); }
  /// Throws Error naming the path when it cannot be written.
  void write_chrome_trace(const std::string& path) const;

 private:
  bool enabled_ = false;
  std::chrono::steady_clock::time_point origin_ = std::chrono::steady_clock::now();
  std::mutex mutex_;
  std::vector<ProfileSpan> spans_;
};

}  // namespace convoy
