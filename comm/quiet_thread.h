// Threads of the library's own that no signal interrupts.
#pragma once
#include <pthread.h>
#include <signal.h>

#include <thread>
#include <utility>

namespace convoy {

/// A thread that takes no signals, so that handlers run on the threads of the program.
template <class Function>
std::thread quiet_thread(Function&& function) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread(std::forward<Function>(function));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread;
}

}  // namespace convoy
