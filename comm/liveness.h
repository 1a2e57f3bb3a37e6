// What each rank tells the others outside the collectives: that it is alive, which collective it waits in, what it does
// and which data file it took last; and the one message with which all end when something is wrong.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/shared_memory.h"

namespace convoy {

enum class Channel : uint8_t { kInline, kGradient };
constexpr int kChannels = 2;

/// A channel as its rank sees it. Times are those of monotonic_ns() on the host that holds the record.
struct ChannelRecord {
  uint64_t number = 0;   ///< of the collective entered last; 0: none yet
  uint64_t waiting = 0;  ///< 1 inside that collective, 0 when it is complete
  int64_t since_ns = 0;  ///< when it was entered, or completed
  char name[120] = {};
};

struct ActivityRecord {
  uint64_t number = 0;  ///< counts what was said: a new number is a sign of progress
  int64_t since_ns = 0;
  char what[120] = {};
};

struct DataFileRecord {
  char file[256] = {};
};

struct ProcessRecord {
  int64_t pid = 0;             ///< 0: the rank has not joined yet
  uint64_t start_time = 0;     ///< of the process, in clock ticks since boot: tells a reused pid
  uint64_t pid_namespace = 0;  ///< pids mean the same only to processes of one namespace
  char host[64] = {};
};

/// All that is known of a rank. Plain data: what hosts send each other, too.
struct RankRecord {
  ProcessRecord process;
  int64_t heartbeat_ns = 0;
  uint32_t finished = 0;  ///< the rank has said goodbye
  uint32_t state = 0;     ///< letter of /proc/PID/stat that its host saw last; 0: not looked at
  uint32_t remote = 0;    ///< 0: of this host; else 1 + the number of its host, from which it is mirrored
  uint32_t reserved = 0;
  ChannelRecord channels[kChannels];
  ActivityRecord activity;
  DataFileRecord data_file;
};

/// A message that ends the run, and the ranks that it is about.
struct Failure {
  std::string message;
  std::vector<int> at_fault;
};

/// CLOCK_MONOTONIC in nanoseconds.
int64_t monotonic_ns();

/// The table of all ranks of a run, in memory that the ranks of one host share. The watchdog (comm/watchdog.h) keeps
/// its own rank's heartbeat going and finds ranks that are dead or late; HostLink (comm/host_link.h) mirrors the
/// records of other hosts into it. All members may be called from any thread of the rank; texts are never seen torn.
/// Texts that are too long are cut: names and activities after 119 bytes, files to their last 255, messages after 4095.
class Liveness {
 public:
  /// Bytes of shared memory for a table of `ranks` ranks.
  static size_t bytes(int ranks);
  /// `rank` of one that is no rank and only looks on (a launcher): it has no record, but may end the run.
  static constexpr int kObserver = -1;
  /// `memory` is zeroed at first and the same for all ranks of the host. Throws Error when it is too small.
  Liveness(std::shared_ptr<SharedMemory> memory, int rank, int ranks);

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }

  /// This rank has come to its next collective on the channel. Returns its number, counted from 1 on every rank alike.
  uint64_t enter(Channel channel, std::string_view name);
  /// The collective is complete for this rank.
  void leave(Channel channel);
  void set_activity(std::string_view what);
  void set_data_file(std::string_view file);
  /// Goodbye: this rank enters no further collective and its end is no failure.
  void leave_run();

  /// Ends the run for all ranks: the first message wins. `at_fault` is the rank that the message is about, -1: none.
  /// failed() is true afterwards.
  void fail(const std::string& message, int at_fault = -1);
  void fail(const Failure& failure);
  /// Whether some rank has failed: one atomic load, for loops that wait.
  bool failed() const;
  /// The message of the failure; throws nothing. Empty when there is none.
  std::string failure() const;
  /// Whether the failure is about that rank.
  bool at_fault(int rank) const;
  /// Looks now whether a rank of this host has ended without a goodbye: a signal that arrives then is the launcher's
  /// reaction to its death, not a wish to stop and resume.
  bool peer_is_gone() const;

  // For the watchdog and the link between hosts.

  RankRecord record(int rank) const;
  /// Writes the record of a rank of another host (record.remote is not 0).
  void mirror(int rank, const RankRecord& record);
  /// This rank's heartbeat: now.
  void beat();
  /// What /proc says of a rank of this host.
  void set_state(int rank, char letter);
  /// Whether failures are to be agreed on with other hosts, so that all end with the same message: fail() then only
  /// proposes, and waits for publish() for up to kArbitrationSeconds before it publishes what was proposed.
  void set_arbitrated(bool arbitrated);
  /// The failure that this host has proposed or published, the first one.
  std::optional<Failure> proposal() const;
  /// Makes `failure` the run's, unless one is published already. One thread per host.
  void publish(const Failure& failure);
  static constexpr double kArbitrationSeconds = 2;

 private:
  struct Header;
  struct Entry;
  struct Slot;
  uint32_t write_slot(int slot, const Failure& failure);
  void publish_slot(uint32_t slot_plus_one);

  std::shared_ptr<SharedMemory> memory_;
  Header* header_;
  Entry* entries_;  ///< by rank
  Slot* slots_;     ///< by rank, one for what hosts have agreed on, one for an observer
  int rank_, ranks_;
};

}  // namespace convoy
