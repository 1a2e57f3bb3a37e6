// The steps of join_ranks.
#pragma once
#include <atomic>
#include <csignal>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "comm/host_link.h"
#include "comm/liveness.h"
#include "comm/placement.h"
#include "comm/ranks.h"
#include "comm/shared_memory.h"
#include "comm/watchdog.h"

namespace convoy {

/// The segments of /dev/shm through which the ranks of one host meet. All names of a job start alike.
struct HostMemory {
  std::shared_ptr<SharedMemory> liveness, slots;

  static std::string prefix(const std::string& job) { return "convoy-" + job; }
  static std::string liveness_name(const std::string& job) { return prefix(job) + "-liveness"; }
  static std::string slots_name(const std::string& job) { return prefix(job) + "-slots"; }
  static HostMemory create(const std::string& job, int ranks);
  static HostMemory open(const std::string& job, int ranks);
  /// Once all have opened them.
  void remove_names(const std::string& job) const;
};

/// Signals that the ranks of our launcher start with blocked and let through in join_ranks: until then a program has
/// had time to say what it does with them.
constexpr int kHeldUntilJoined[] = {SIGTERM, SIGINT, SIGUSR1};

/// A token for the names of one run.
std::string random_token();

/// What belongs to a rank that is a process, in the order in which it is made.
struct ProcessRank {
  std::shared_ptr<Liveness> liveness;
  std::unique_ptr<HostLink> link;  ///< leaders of several hosts
  std::unique_ptr<Watchdog> watchdog;
  std::unique_ptr<Communicator> communicator;
  bool owns_mpi = false;  ///< MPI was initialised by join_ranks

  ~ProcessRank();
};

/// A rank of a run that all happens on this host.
std::shared_ptr<ProcessRank> host_rank(const HostMemory& memory, const std::string& job, int rank, int ranks,
                                       const RanksOptions& options);
/// Starts the watchdog over the rank's liveness table.
void watch(ProcessRank& process, const RanksOptions& options);

/// Ends this process because the run has failed and it did not end by itself: prints the message, exit code 1. Does
/// nothing when `said_why`: the process is ending then.
void end_process(const std::string& message);
/// This process is at its end and has printed what went wrong.
extern std::atomic<bool> said_why;

/// Places this rank among those of its host (place_rank) and returns Placement::threads.
int take_place(const std::vector<CoreMask>& masks, int local_rank, const CoreMask& widest,
               std::vector<std::string>& notes);

/// More than one, and the launcher does not tell how many.
inline constexpr int kUnknownProcesses = std::numeric_limits<int>::max();

// Only in builds with MPI.

/// Under a launcher of MPI that has started `processes`. Throws Error where MPI brings another number together.
JoinedRanks join_mpi(const RanksOptions& options, int processes);
/// After a failure: MPI must not be finalised, since others may not come to it, and this process is to wait at its end
/// for the others' last messages.
void keep_until_exit(ProcessRank& process);

}  // namespace convoy
