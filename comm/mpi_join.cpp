// How ranks that MPI has started find each other.
#ifdef CONVOY_WITH_MPI
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <thread>

#include "comm/join.h"
#include "comm/mpi_communicator.h"
#include "engine/error.h"

namespace convoy {

namespace {

/// Of this rank, and which of the hosts every rank is on. Hosts are numbered by their first rank.
struct Hosts {
  int host = 0, local_rank = 0, local_size = 1;
  std::vector<std::vector<int>> ranks;  ///< of each host
};

class LocalComm {
 public:
  LocalComm(MPI_Comm comm, int rank) {
    check_mpi(MPI_Comm_split_type(comm, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &comm_), "MPI_Comm_split_type");
  }
  LocalComm(MPI_Comm comm, int rank, int host) {
    check_mpi(MPI_Comm_split(comm, host, rank, &comm_), "MPI_Comm_split");
  }
  ~LocalComm() { MPI_Comm_free(&comm_); }
  LocalComm(const LocalComm&) = delete;
  LocalComm& operator=(const LocalComm&) = delete;
  MPI_Comm get() const { return comm_; }

 private:
  MPI_Comm comm_ = MPI_COMM_NULL;
};

int rank_of(MPI_Comm comm) {
  int rank = 0;
  check_mpi(MPI_Comm_rank(comm, &rank), "MPI_Comm_rank");
  return rank;
}

int size_of(MPI_Comm comm) {
  int size = 1;
  check_mpi(MPI_Comm_size(comm, &size), "MPI_Comm_size");
  return size;
}

Hosts number_hosts(MPI_Comm comm, MPI_Comm local) {
  Hosts hosts{.local_rank = rank_of(local), .local_size = size_of(local)};
  int first = rank_of(comm);
  check_mpi(MPI_Bcast(&first, 1, MPI_INT, 0, local), "MPI_Bcast");
  std::vector<int> first_of(static_cast<size_t>(size_of(comm)));
  check_mpi(MPI_Allgather(&first, 1, MPI_INT, first_of.data(), 1, MPI_INT, comm), "MPI_Allgather");
  std::map<int, std::vector<int>> ranks_by_first;
  for (size_t rank = 0; rank < first_of.size(); ++rank)
    ranks_by_first[first_of[rank]].push_back(static_cast<int>(rank));
  for (const auto& [its_first, ranks] : ranks_by_first) {
    if (its_first == first) hosts.host = static_cast<int>(hosts.ranks.size());
    hosts.ranks.push_back(ranks);
  }
  return hosts;
}

/// The text of rank 0, cut to what fits.
std::string from_rank_0(const std::string& text, MPI_Comm comm) {
  std::array<char, 4096> buffer{};
  std::copy_n(text.data(), std::min(text.size(), buffer.size() - 1), buffer.data());
  check_mpi(MPI_Bcast(buffer.data(), buffer.size(), MPI_CHAR, 0, comm), "MPI_Bcast");
  return buffer.data();
}

/// The error of the first rank that has one, on all ranks; empty: none has.
std::string any_error(const std::string& error, MPI_Comm comm) {
  const int rank = error.empty() ? size_of(comm) : rank_of(comm);
  int first = rank;
  check_mpi(MPI_Allreduce(&rank, &first, 1, MPI_INT, MPI_MIN, comm), "MPI_Allreduce");
  if (first == size_of(comm)) return {};
  std::array<char, 4096> buffer{};
  if (rank_of(comm) == first) std::copy_n(error.data(), std::min(error.size(), buffer.size() - 1), buffer.data());
  check_mpi(MPI_Bcast(buffer.data(), buffer.size(), MPI_CHAR, first, comm), "MPI_Bcast");
  return fmt::format("rank {}: {}", first, buffer.data());
}

/// Memory that the ranks of `local` share, of a name made up by the first. Throws the same Error on all ranks of `comm`
/// where any has failed.
HostMemory meet(MPI_Comm comm, MPI_Comm local, int ranks, std::string& job) {
  HostMemory memory;
  std::string error;
  try {
    if (rank_of(local) == 0) memory = HostMemory::create(job = random_token(), ranks);
  } catch (const Error& e) {
    error = e.what();
  }
  job = from_rank_0(job, local);
  error = any_error(error, comm);
  if (error.empty()) {
    try {
      if (rank_of(local) != 0) memory = HostMemory::open(job, ranks);
    } catch (const Error& e) {
      error = e.what();
    }
    error = any_error(error, comm);
  }
  if (rank_of(local) == 0 && memory.slots) memory.remove_names(job);
  CONVOY_CHECK(error.empty(), "{}", error);
  return memory;
}

/// The leaders of the hosts, each the first rank of its own, connect to that of the first host; others get nothing.
/// Throws the same Error on all ranks.
std::unique_ptr<HostLink> link_hosts(MPI_Comm comm, const Hosts& hosts, const std::shared_ptr<Liveness>& liveness,
                                     const RanksOptions& options) {
  const int rank = rank_of(comm);
  const bool leader = hosts.ranks[static_cast<size_t>(hosts.host)].front() == rank;
  HostLinkOptions link_options{
      .host = hosts.host, .ranks_of_hosts = hosts.ranks, .timeout_seconds = options.timeout_seconds};
  link_options.token = std::stoull(from_rank_0(rank == 0 ? random_token() : "", comm), nullptr, 16);
  std::unique_ptr<HostLink> link;
  std::string error;
  auto make = [&](bool mine) {
    try {
      if (mine) link = std::make_unique<HostLink>(liveness, link_options);
    } catch (const Error& e) {
      error = e.what();
    }
    error = any_error(error, comm);
    CONVOY_CHECK(error.empty(), "{}", error);
  };
  make(rank == 0);
  link_options.address = from_rank_0(rank == 0 ? link->address() : "", comm);
  make(leader && rank != 0);
  return link;
}

std::string library_version() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  MPI_Get_library_version(text.data(), &length);
  std::string version;
  for (const char c : std::string(text.data())) {
    if (c == ',' || c == '\n') break;
    if (!isspace(static_cast<unsigned char>(c))) {
      version += c;
    } else if (!version.empty() && version.back() != ' ') {
      version += ' ';
    }
  }
  const std::string label = " Version:";  // MPICH writes "MPICH Version: 4.0.2"
  const size_t at = version.find(label);
  return at == version.npos ? version : version.erase(at, label.size());
}

const char* thread_level() {
  int level = MPI_THREAD_SINGLE;
  MPI_Query_thread(&level);
  return level == MPI_THREAD_MULTIPLE ? "thread multiple" : "one thread: no sums in the background";
}

std::shared_ptr<Communicator> communicator_of(MPI_Comm comm, const RanksOptions& options, bool pretend, bool owns_mpi,
                                              std::vector<std::string>& notes) {
  const int rank = rank_of(comm), ranks = size_of(comm);
  const LocalComm real(comm, rank);
  std::unique_ptr<LocalComm> pretended;
  if (const char* text = pretend ? std::getenv("CONVOY_PRETEND_HOSTS") : nullptr) {
    int count = 0;
    const char* end = text + std::strlen(text);
    const auto read = std::from_chars(text, end, count);
    CONVOY_CHECK(read.ec == std::errc() && read.ptr == end && count >= 1 && count <= ranks,
                 "CONVOY_PRETEND_HOSTS='{}' is no number of hosts of {} ranks", text, ranks);
    pretended = std::make_unique<LocalComm>(comm, rank, rank * count / ranks);
  }
  const Hosts here = number_hosts(comm, real.get());
  MPI_Comm local = pretended ? pretended->get() : real.get();
  Hosts hosts = pretended ? number_hosts(comm, local) : here;

  std::string job, no_memory;
  HostMemory memory;
  try {
    memory = meet(comm, local, ranks, job);
  } catch (const Error& error) {
    no_memory = error.what();  // the same on all ranks
  }
  if (no_memory.empty() && hosts.ranks.size() == 1) {
    notes.insert(notes.begin(), fmt::format("{} ranks on one host: shared memory", ranks));
    auto process = host_rank(memory, job, rank, ranks, options);
    process->owns_mpi = owns_mpi;
    return {process, process->communicator.get()};
  }

  const size_t shown = hosts.ranks.size();
  // Without shared memory each rank is a host of its own: the hosts' link keeps the liveness tables alike.
  std::unique_ptr<LocalComm> alone;
  if (!no_memory.empty()) {
    alone = std::make_unique<LocalComm>(comm, rank, rank);
    hosts = number_hosts(comm, alone->get());
    memory.liveness = SharedMemory::in_process(Liveness::bytes(ranks));
  }
  auto process = std::make_shared<ProcessRank>();
  process->owns_mpi = owns_mpi;
  process->liveness = std::make_shared<Liveness>(memory.liveness, rank, ranks);
  process->link = link_hosts(comm, hosts, process->liveness, options);
  watch(*process, options);
  process->communicator = std::make_unique<MpiCommunicator>(comm, here.local_rank, here.local_size, process->liveness);
  notes.insert(notes.begin(), fmt::format("{} ranks on {} host{}: MPI, {}, {}{}", ranks, shown, shown == 1 ? "" : "s",
                                          library_version(), thread_level(),
                                          no_memory.empty() ? "" : "; no shared memory: " + no_memory));
  return {process, process->communicator.get()};
}

/// The masks of the ranks of a host, and what the first one's launcher may use.
int place(MPI_Comm comm, std::vector<std::string>& notes) {
  using Bits = std::array<uint64_t, 16>;
  auto pack = [](const CoreMask& mask) {
    Bits bits{};
    for (const int cpu : mask) bits[static_cast<size_t>(cpu) / 64] |= uint64_t{1} << (cpu % 64);
    return bits;
  };
  auto unpack = [](const Bits& bits) {
    CoreMask mask;
    for (int cpu = 0; cpu < 1024; ++cpu) {
      if (bits[static_cast<size_t>(cpu) / 64] >> (cpu % 64) & 1) mask.push_back(cpu);
    }
    return mask;
  };
  const LocalComm local(comm, rank_of(comm));
  const Bits own = pack(own_mask());
  Bits widest = pack(bound_by_default() ? launcher_mask() : CoreMask());
  std::vector<Bits> all(static_cast<size_t>(size_of(local.get())));
  check_mpi(MPI_Allgather(&own, sizeof own, MPI_BYTE, all.data(), sizeof own, MPI_BYTE, local.get()), "MPI_Allgather");
  check_mpi(MPI_Bcast(&widest, sizeof widest, MPI_BYTE, 0, local.get()), "MPI_Bcast");
  std::vector<CoreMask> masks;
  for (const Bits& bits : all) masks.push_back(unpack(bits));
  return take_place(masks, rank_of(local.get()), unpack(widest), notes);
}

/// What stays after a failure until this process ends.
struct FailedRank {
  std::shared_ptr<Liveness> liveness;
  std::unique_ptr<HostLink> link;
  std::unique_ptr<Watchdog> watchdog;  ///< kills stopped ranks when it goes, which alarms the launcher
};
FailedRank failed_rank;

/// A launcher of MPI ends all ranks as soon as one ends with an error: the others are to have said why by then.
void wait_for_others() {
  Liveness& liveness = *failed_rank.liveness;
  said_why = true;
  liveness.leave_run();
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(4);
  auto all_finished = [&] {
    for (int rank = 0; rank < liveness.ranks(); ++rank) {
      if (!liveness.record(rank).finished) return false;
    }
    return true;
  };
  while (!all_finished() && std::chrono::steady_clock::now() < until) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(300));  // HostCommunicator says goodbye before the last line
  failed_rank.link.reset();
  failed_rank.watchdog.reset();
}

}  // namespace

void keep_until_exit(ProcessRank& process) {
  failed_rank = {process.liveness, std::move(process.link), std::move(process.watchdog)};
  std::atexit(wait_for_others);
}

JoinedRanks join_mpi(const RanksOptions& options, int processes) {
  int initialized = 0;
  MPI_Initialized(&initialized);
  if (!initialized) {
    int provided = 0;
    check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided), "MPI_Init_thread");
  }
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  const int joined_processes = size_of(MPI_COMM_WORLD);
  CONVOY_CHECK(joined_processes == processes || processes == kUnknownProcesses,
               "the environment tells of {} processes, and MPI ({}) has brought together {}: they were started by the "
               "launcher of another MPI (use this one's mpirun, or srun --mpi with what it needs), or the variables "
               "are left from an earlier one (OMPI_COMM_WORLD_SIZE, PMI_SIZE or SLURM_STEP_NUM_TASKS)",
               processes, library_version(), joined_processes);
  JoinedRanks joined;
  joined.threads = place(MPI_COMM_WORLD, joined.notes);
  joined.communicator = communicator_of(MPI_COMM_WORLD, options, true, !initialized, joined.notes);
  return joined;
}

std::shared_ptr<Communicator> make_mpi_communicator(MPI_Comm comm, const RanksOptions& options) {
  int initialized = 0, finalized = 0;
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  CONVOY_CHECK(initialized && !finalized && comm != MPI_COMM_NULL,
               "make_mpi_communicator needs MPI to be initialised and a communicator");
  std::vector<std::string> notes;
  return communicator_of(comm, options, false, false, notes);
}

}  // namespace convoy
#endif
