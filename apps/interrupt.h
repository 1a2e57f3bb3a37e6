// Signals that ask a run to stop in good order.
#pragma once

namespace convoy {

/// While it lives, SIGTERM, SIGINT and SIGUSR1 set a flag instead of ending the process. A second SIGINT ends it.
/// Afterwards they are ignored: the process is about to end, and its exit code is to tell how the run went.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  /// Name of the signal that came, nullptr when none has.
  static const char* received();
};

}  // namespace convoy
