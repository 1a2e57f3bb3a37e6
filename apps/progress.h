// How fast a run goes and how long it will still take.
#pragma once
#include <cstdint>
#include <deque>
#include <string>

namespace convoy {

/// Durations of the latest steps. Time outside the steps (evaluation, checkpoints) does not count.
class Progress {
 public:
  /// One step: its whole duration and the parts spent waiting for data and for other ranks.
  void add(double seconds, double data_wait_seconds, double comm_wait_seconds);
  double seconds_per_step() const;
  double data_wait_seconds() const;  ///< mean per step
  double comm_wait_seconds() const;  ///< mean per step
  double data_wait_share() const;    ///< of the steps' time, 0 to 1

 private:
  struct Step {
    double seconds, data_wait, comm_wait;
  };
  double mean(double Step::*part) const;
  static constexpr size_t kWindow = 50;
  std::deque<Step> steps_;
};

/// "2:03:04", "3:04"
std::string duration_text(double seconds);
/// Most memory that this process has held at once, in bytes (VmHWM of /proc/self/status).
int64_t peak_memory_bytes();
/// Memory that this process could still take without swapping: of the machine, and of the container's limit (cgroup).
/// 2^62 where the system does not say.
size_t available_memory_bytes();

}  // namespace convoy
