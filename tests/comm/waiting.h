// Waiting in tests of what happens in other threads and processes.
#pragma once
#include <chrono>
#include <thread>

#include "comm/liveness.h"

namespace convoy::test {

inline constexpr double kLimit = 60;  ///< against hangs, seconds

inline void pause_for(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

/// Whether the condition comes true within kLimit.
template <class Condition>
bool wait_until(Condition condition) {
  const int64_t end = monotonic_ns() + static_cast<int64_t>(kLimit * 1e9);
  while (!condition()) {
    if (monotonic_ns() > end) return false;
    pause_for(0.01);
  }
  return true;
}

}  // namespace convoy::test
