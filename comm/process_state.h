// What /proc says of a process.
#pragma once
#include <cstdint>

namespace convoy {

struct ProcessState {
  char letter = 0;  ///< R, S, D, T (stopped), t (held by a debugger), Z, X; 0: there is no such process
  uint64_t start_time = 0;

  bool ended() const { return letter == 0 || letter == 'Z' || letter == 'X'; }
};

/// Throws nothing. Where /proc/PID/stat cannot be read for another reason than that the process is gone, the letter is
/// '?', which is not the letter of an ended process.
ProcessState process_state(int64_t pid);
/// The same, but of the process that started then: X when another one has its pid.
ProcessState process_state(int64_t pid, uint64_t start_time);
/// The identity of this process's pid namespace; 0 when it is unknown.
uint64_t pid_namespace();

}  // namespace convoy
