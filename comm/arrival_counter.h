// A counter in shared memory: ranks count themselves in, and sleep until all have come.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>

#include "comm/liveness.h"

namespace convoy {

/// Only ever grows (and wraps): `full` is the value at which a round is complete. Zeroed memory is a counter at 0. What
/// a rank wrote before it arrived is visible to whoever has seen the counter full.
class ArrivalCounter {
 public:
  /// Counts the caller in. Whoever makes it full wakes those that wait.
  void arrive(uint32_t full);
  bool full(uint32_t full) const { return static_cast<int32_t>(count_.load(std::memory_order_acquire) - full) >= 0; }

  /// Waits until it is full; throws Error with the failure's message when the run fails meanwhile. `idle` does a piece
  /// of other work and returns whether it had any; the wait sleeps only when it had none. `spin`: look for a tenth of a
  /// millisecond before sleeping, which is what waking up costs; for when each rank has a core of its own.
  void wait(uint32_t full, const Liveness& liveness, bool spin, const std::function<bool()>& idle = {});

 private:
  // One to a cache line: ranks that wait for different things do not disturb each other.
  alignas(64) std::atomic<uint32_t> count_{0};
};
static_assert(std::atomic<uint32_t>::is_always_lock_free && sizeof(ArrivalCounter) == 64);

/// Throws Error with the failure's message when the run has failed.
void throw_if_failed(const Liveness& liveness);

}  // namespace convoy
