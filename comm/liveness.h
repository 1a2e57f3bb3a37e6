// What each rank tells the others outside the collectives: that it is alive, which collective it waits in, what it does
// and which data file it took last; and the one message with which all end when something is wrong.
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "comm/shared_memory.h"

namespace convoy {

enum class Channel : uint8_t { kInline, kGradient };

/// The table of all ranks of a run, in memory that the ranks of one host share. The watchdog (comm/watchdog.h) keeps
/// its own rank's heartbeat going, mirrors the records of other hosts into it, and finds ranks that are dead or late.
/// All members may be called from any thread of the rank.
class Liveness {
 public:
  /// Bytes of shared memory for a table of `ranks` ranks.
  static size_t bytes(int ranks);
  /// `memory` is zeroed at first and the same for all ranks of the host.
  Liveness(std::shared_ptr<SharedMemory> memory, int rank, int ranks);

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }

  /// This rank has come to its next collective on the channel. Returns its number, counted from 1 on every rank alike.
  uint64_t enter(Channel channel, std::string_view name);
  /// The collective is complete for this rank.
  void leave(Channel channel);
  void set_activity(std::string_view what);
  void set_data_file(std::string_view file);

  /// Ends the run for all ranks: the first message wins. `at_fault` is the rank that the message is about, -1: none.
  void fail(const std::string& message, int at_fault = -1);
  /// Whether some rank has failed: one atomic load, for loops that wait.
  bool failed() const;
  /// The message of the failure; throws nothing. Empty when there is none.
  std::string failure() const;

 private:
  struct Table;
  friend class Watchdog;
  std::shared_ptr<SharedMemory> memory_;
  Table* table_;
  int rank_, ranks_;
};

}  // namespace convoy
