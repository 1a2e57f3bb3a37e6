// Ranks of one host: collectives through memory that all of them map. Waiting sleeps (futex), so that ranks that share
// cores do not take them from each other.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "comm/liveness.h"
#include "engine/communicator.h"

namespace convoy {

/// Ranks are processes of one host, or threads of one process.
///
/// Inline channel: each rank has two slots, used in turns; a collective copies its part into its slot, counts itself
/// in, waits for all and reads the others' parts. Nobody can be two collectives ahead, so two slots are enough.
/// Gradient channel: the segments lie in a window that all ranks map; when all have come to a bucket, rank r sums the
/// r-th part of it over all windows, in the order of ranks, and writes the sum into every window.
class HostCommunicator : public Communicator {
 public:
  /// Bytes of `slots` for that many ranks.
  static size_t slot_bytes(int ranks);
  /// `slots` is zeroed at first and shared by all ranks, as is the liveness table. `window_name`: prefix for windows in
  /// /dev/shm; empty: ranks are threads, and windows come from a registry inside `slots`' process.
  HostCommunicator(std::shared_ptr<SharedMemory> slots, std::shared_ptr<Liveness> liveness, std::string window_name);
  ~HostCommunicator() override;
};

/// Communicators of `ranks` ranks that are threads of this process: element r is for the thread that plays rank r.
std::vector<std::shared_ptr<Communicator>> thread_communicators(int ranks, double timeout_seconds = 60);

}  // namespace convoy
