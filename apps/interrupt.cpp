#include "apps/interrupt.h"

#include <csignal>
#include <cstring>

namespace convoy {
namespace {

// A signal handler can reach nothing but globals.
volatile std::sig_atomic_t received_signal = 0;
constexpr int kSignals[] = {SIGTERM, SIGINT, SIGUSR1};

void remember(int signal) {
  received_signal = signal;
}

}  // namespace

StopSignals::StopSignals() {
  received_signal = 0;
  std::signal(SIGPIPE, SIG_IGN);  // a reader of the log that goes away must not end the run
  for (const int signal : kSignals) {
    struct sigaction action {};
    action.sa_handler = remember;
    action.sa_flags = signal == SIGINT ? SA_RESTART | static_cast<int>(SA_RESETHAND) : SA_RESTART;
    sigaction(signal, &action, nullptr);
  }
}

StopSignals::~StopSignals() {
  for (const int signal : kSignals) std::signal(signal, SIG_IGN);
  std::signal(SIGPIPE, SIG_DFL);
}

const char* StopSignals::received() {
  switch (received_signal) {
    case 0:
      return nullptr;
    case SIGTERM:
      return "SIGTERM";
    case SIGINT:
      return "SIGINT";
    default:
      return "SIGUSR1";
  }
}

}  // namespace convoy
