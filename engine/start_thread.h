// Threads of the library's own.
#pragma once
#include <pthread.h>
#include <signal.h>

#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "engine/error.h"

namespace convoy {

/// A thread that takes no signals, so that handlers run on the threads of the program. `what` it does completes "a
/// thread to ...". Throws Error where the system gives no more threads.
template <class Function>
std::thread start_thread(const char* what, Function&& function) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread;
  std::optional<std::system_error> error;
  try {
    thread = std::thread(std::forward<Function>(function));
  } catch (const std::system_error& e) {
    error = e;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (error)
    fail("a thread to {} cannot be started: {}; a limit of processes (ulimit -u) or memory (ulimit -v) may be reached",
         what, error->code().message());
  return thread;
}

}  // namespace convoy
