#include "comm/arrival_counter.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <climits>
#include <ctime>

#include "engine/error.h"

namespace convoy {
namespace {

// How long a rank sleeps before it looks whether the run has failed.
constexpr timespec kSleep{.tv_sec = 0, .tv_nsec = 50'000'000};
constexpr std::chrono::nanoseconds kSpin{100'000};

// The kernel reads the word itself, so that an arrival between our look and our sleep is not missed. Without
// FUTEX_PRIVATE_FLAG, since the word may be shared with other processes.
void futex_wait(std::atomic<uint32_t>& word, uint32_t seen) {
  syscall(SYS_futex, &word, FUTEX_WAIT, seen, &kSleep, nullptr, 0);
}
void futex_wake_all(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void pause_core() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

void throw_if_failed(const Liveness& liveness) {
  if (liveness.failed()) throw Error(liveness.failure());
}

void ArrivalCounter::arrive(uint32_t full) {
  if (count_.fetch_add(1, std::memory_order_acq_rel) + 1 == full) futex_wake_all(count_);
}

void ArrivalCounter::wait(uint32_t full, const Liveness& liveness, bool spin, const std::function<bool()>& idle) {
  if (this->full(full)) return;
  if (spin) {
    const auto end = std::chrono::steady_clock::now() + kSpin;
    do {
      if (!idle || !idle()) pause_core();
      if (this->full(full)) return;
    } while (std::chrono::steady_clock::now() < end);
  }
  for (;;) {
    const uint32_t seen = count_.load(std::memory_order_acquire);
    if (static_cast<int32_t>(seen - full) >= 0) return;
    throw_if_failed(liveness);
    if (idle && idle()) continue;
    futex_wait(count_, seen);
  }
}

}  // namespace convoy
