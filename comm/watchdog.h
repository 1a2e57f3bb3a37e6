// The thread that keeps this rank's heartbeat and looks after the others'.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/liveness.h"

namespace convoy {

struct WatchdogOptions {
  double late_seconds = 60;  ///< a rank that others have waited for so long is named
  double dead_seconds = 10;  ///< the longest until a rank that is gone is named
  bool processes = true;     ///< ranks are processes: their ends are noticed
  /// Called on this thread when the run has failed and the rank has not ended by itself within two seconds; ends the
  /// process (exit code 1, or MPI_Abort). Empty: nothing is forced (ranks as threads).
  std::function<void(const std::string& message)> end_process;
};

/// Ten times a second: this rank's heartbeat, a look at all others, and Liveness::fail with the first cause found
/// (comm/diagnosis.h). A rank of this host that is at fault and stopped, so that it could not end by itself, is killed
/// when this rank ends.
class Watchdog {
 public:
  Watchdog(std::shared_ptr<Liveness> liveness, WatchdogOptions options);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace convoy
