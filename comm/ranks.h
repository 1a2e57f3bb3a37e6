// How a program becomes a rank: under mpirun or srun, under our own launcher, or alone.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "engine/communicator.h"

namespace convoy {

struct RanksOptions {
  double timeout_seconds = 60;  ///< --comm-timeout
};

struct JoinedRanks {
  std::shared_ptr<Communicator> communicator;
  int threads = 0;                 ///< for ContextOptions::threads where the user gave none
  std::vector<std::string> notes;  ///< what the log should tell: transport, cores
};

/// Makes this process a rank: by MPI where a launcher of MPI has started it, by shared memory where `start_ranks` has,
/// else one rank without any (MPI is not even initialised). Ranks that were given the same cores divide them; a core
/// mask that Open MPI narrowed to one core without being asked is widened before. To be called before OpenMP starts
/// threads, once. Throws Error where the ranks cannot find each other, within the timeout.
///
/// The communicator must be gone before main() returns, unless that ends with an error. The environment variable
/// CONVOY_PRETEND_HOSTS=K is for tests: under MPI the ranks act as if they were on K hosts, rank r on host r*K/size.
JoinedRanks join_ranks(const RanksOptions& options);

/// A line per rank: rank, host, process, device, NUMA node, cores, threads. Collective.
std::string rank_table(Communicator& communicator, const std::string& device, int threads);

/// What it means that ranks' standard output cannot be written any more: an error where it is the answer, nothing where
/// it is the log of something that goes on.
enum class LostOutput { kIsError, kIsIgnored };

/// Runs this program again as `ranks` processes of this host (`convoy train --ranks N`) and waits for them. Their lines
/// come out prefixed by rank, none outlives the launcher, even one that is killed. SIGTERM, SIGINT and SIGUSR1 are
/// passed on; a rank gets them from join_ranks on, before which it is to install its handlers. Returns the exit code
/// for all: 0 when all succeeded, 1 when any failed, 75 when all that ended otherwise were interrupted and can resume.
int start_ranks(int ranks, LostOutput lost_output = LostOutput::kIsError);
/// Whether this process is a rank of `start_ranks` or of an MPI launcher already.
bool is_rank();

}  // namespace convoy
