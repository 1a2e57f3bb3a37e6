// The steps of join_ranks.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "comm/placement.h"
#include "comm/ranks.h"
#include "comm/shared_memory.h"

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

/// A token for the names of one run.
std::string random_token();

/// The communicator of processes that all run on this host, with its watchdog around it.
std::shared_ptr<Communicator> host_communicator(const HostMemory& memory, const std::string& job, int rank, int ranks,
                                                const RanksOptions& options);

/// Ends this process because the run has failed and it did not end by itself: prints the message, exit code 1.
[[noreturn]] void end_process(const std::string& message);

/// Places this rank among those of its host (place_rank) and returns Placement::threads.
int take_place(const std::vector<CoreMask>& masks, int local_rank, const CoreMask& widest,
               std::vector<std::string>& notes);

/// Under a launcher of MPI. Only in builds with MPI.
JoinedRanks join_mpi(const RanksOptions& options);

}  // namespace convoy
