#include "comm/ranks.h"

#include <sys/random.h>
#include <unistd.h>
#ifdef CONVOY_WITH_MPI
#include <mpi.h>
#endif

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <optional>

#include "comm/host_communicator.h"
#include "comm/join.h"
#include "engine/error.h"

namespace convoy {

namespace {

std::optional<int> number_from(const char* variable) {
  const char* text = std::getenv(variable);
  if (!text) return std::nullopt;
  char* end = nullptr;
  errno = 0;
  const long value = std::strtol(text, &end, 10);
  CONVOY_CHECK(*text != '\0' && *end == '\0' && errno == 0 && value >= 0 && value <= 1'000'000,
               "environment variable {}='{}' is no number of ranks", variable, text);
  return static_cast<int>(value);
}

/// The number of processes that a launcher of MPI has started with this one, or kUnknownProcesses; 0 when there is no
/// such launcher.
int mpi_processes() {
  if (const auto size = number_from("OMPI_COMM_WORLD_SIZE")) return *size;  // Open MPI
  if (const auto size = number_from("PMI_SIZE")) return *size;              // MPICH, srun --mpi=pmi2
  if (std::getenv("SLURM_PROCID")) {                                        // srun
    if (const auto size = number_from("SLURM_STEP_NUM_TASKS")) return *size;
  }
  return std::getenv("PMIX_RANK") ? kUnknownProcesses : 0;
}

struct OwnRank {
  int rank, ranks;
  std::string job;
};

/// What start_ranks has put into the environment.
std::optional<OwnRank> own_rank() {
  const auto rank = number_from("CONVOY_RANK");
  if (!rank) return std::nullopt;
  const auto ranks = number_from("CONVOY_RANKS");
  const char* job = std::getenv("CONVOY_JOB");
  CONVOY_CHECK(
      ranks && job && *rank < *ranks,
      "CONVOY_RANK={} in the environment without fitting CONVOY_RANKS and CONVOY_JOB; these are set by --ranks, "
      "unset them",
      *rank);
  return OwnRank{*rank, *ranks, job};
}

JoinedRanks join_own(const OwnRank& own, const RanksOptions& options) {
  sigset_t held;
  sigemptyset(&held);
  for (const int signal : kHeldUntilJoined) sigaddset(&held, signal);
  ::sigprocmask(SIG_UNBLOCK, &held, nullptr);
  std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);  // a pipe to the launcher, which wants lines
  JoinedRanks joined;
  const std::vector<CoreMask> masks(static_cast<size_t>(own.ranks), own_mask());
  joined.threads = take_place(masks, own.rank, {}, joined.notes);
  HostMemory memory;
  try {
    memory = HostMemory::open(own.job, own.ranks);
  } catch (const Error& error) {
    fail(
        "rank {} of {} does not find the others: {}. Has their launcher ended? CONVOY_RANK, CONVOY_RANKS and "
        "CONVOY_JOB "
        "are set by --ranks; if they are left from an earlier run, unset them",
        own.rank, own.ranks, error.what());
  }
  const auto process = host_rank(memory, own.job, own.rank, own.ranks, options);
  joined.communicator = {process, process->communicator.get()};
  joined.communicator->barrier("start");
  if (own.rank == 0) {
    memory.remove_names(own.job);
    joined.notes.insert(joined.notes.begin(),
                        fmt::format("{} rank{} on one host: shared memory", own.ranks, own.ranks == 1 ? "" : "s"));
  }
  return joined;
}

}  // namespace

std::string random_token() {
  uint64_t bits = 0;
  CONVOY_CHECK(::getrandom(&bits, sizeof bits, 0) == sizeof bits, "the system gives no random numbers: {}",
               std::strerror(errno));
  return fmt::format("{:016x}", bits);
}

HostMemory HostMemory::create(const std::string& job, int ranks) {
  HostMemory memory;
  memory.liveness = SharedMemory::create(liveness_name(job), Liveness::bytes(ranks));
  memory.slots = SharedMemory::create(slots_name(job), HostCommunicator::slot_bytes(ranks));
  return memory;
}

HostMemory HostMemory::open(const std::string& job, int ranks) {
  return {.liveness = SharedMemory::open(liveness_name(job), Liveness::bytes(ranks)),
          .slots = SharedMemory::open(slots_name(job), HostCommunicator::slot_bytes(ranks))};
}

void HostMemory::remove_names(const std::string& job) const {
  std::error_code error;
  for (const std::string& name : {liveness_name(job), slots_name(job)}) {
    std::filesystem::remove("/dev/shm/" + name, error);
  }
}

ProcessRank::~ProcessRank() {
  if (!liveness) return;
  communicator.reset();
  if (std::uncaught_exceptions() > 0) {
    liveness->fail(fmt::format("rank {} has ended with an error", liveness->rank()), liveness->rank());
  }
#ifdef CONVOY_WITH_MPI
  if (owns_mpi && liveness->failed()) {
    keep_until_exit(*this);
    return;
  }
#endif
  liveness->leave_run();
  link.reset();
#ifdef CONVOY_WITH_MPI
  if (owns_mpi) MPI_Finalize();
#endif
}

void watch(ProcessRank& process, const RanksOptions& options) {
  process.watchdog = std::make_unique<Watchdog>(process.liveness,
                                                WatchdogOptions{.late_seconds = options.timeout_seconds,
                                                                .dead_seconds = std::min(10.0, options.timeout_seconds),
                                                                .end_process = end_process});
}

std::shared_ptr<ProcessRank> host_rank(const HostMemory& memory, const std::string& job, int rank, int ranks,
                                       const RanksOptions& options) {
  auto process = std::make_shared<ProcessRank>();
  process->liveness = std::make_shared<Liveness>(memory.liveness, rank, ranks);
  watch(*process, options);
  process->communicator =
      std::make_unique<HostCommunicator>(memory.slots, process->liveness, HostMemory::prefix(job) + "-window");
  return process;
}

std::atomic<bool> said_why{false};

void end_process(const std::string& message) {
  if (said_why) return;
  std::fflush(stdout);
  std::fprintf(stderr, "error: %s\n", message.c_str());
  ::_exit(1);
}

int take_place(const std::vector<CoreMask>& masks, int local_rank, const CoreMask& widest,
               std::vector<std::string>& notes) {
  CoreMask all = widest;
  for (const CoreMask& mask : masks) all.insert(all.end(), mask.begin(), mask.end());
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  const Placement placement = place_rank(describe_cores(all), masks, local_rank, widest);
  apply(placement);
  if (!placement.note.empty()) notes.push_back(placement.note);
  return placement.threads;
}

bool is_rank() {
  return std::getenv("CONVOY_RANK") || mpi_processes() > 0;
}

JoinedRanks join_ranks(const RanksOptions& options) {
  CONVOY_CHECK(options.timeout_seconds > 0, "the timeout of ranks must be more than 0 seconds, not {}",
               options.timeout_seconds);
  if (const auto own = own_rank()) return join_own(*own, options);
  const int processes = mpi_processes();
  if (processes > 1) {
#ifdef CONVOY_WITH_MPI
    return join_mpi(options, processes);
#else
    fail(
        "started as one of several processes by a launcher of MPI, but this build has no MPI: use --ranks N on one "
        "host, or build with CONVOY_MPI=ON and an MPI library");
#endif
  }
  JoinedRanks alone{.communicator = std::make_shared<NullCommunicator>()};
  if (processes == 1 && bound_by_default()) alone.threads = take_place({own_mask()}, 0, launcher_mask(), alone.notes);
  return alone;
}

std::string rank_table(Communicator& communicator, const std::string& device, int threads) {
  struct Record {
    std::array<char, 64> host{}, device{}, nodes{}, cores{};
    int32_t pid = 0, threads = 0;
  };
  auto put = [](std::array<char, 64>& to, const std::string& text) {
    std::copy_n(text.data(), std::min(text.size(), to.size() - 1), to.data());
  };
  Record own{.pid = ::getpid(), .threads = threads};
  const CoreMask mask = own_mask();
  ::gethostname(own.host.data(), own.host.size() - 1);
  put(own.device, device);
  put(own.nodes, numa_nodes(mask));
  put(own.cores, format_mask(mask));
  std::vector<Record> records(static_cast<size_t>(communicator.size()));
  communicator.all_gather(&own, sizeof own, records.data(), "rank table");

  std::vector<std::array<std::string, 7>> rows{{"rank", "host", "process", "device", "NUMA", "cores", "threads"}};
  for (size_t rank = 0; rank < records.size(); ++rank) {
    const Record& record = records[rank];
    rows.push_back({std::to_string(rank), record.host.data(), std::to_string(record.pid), record.device.data(),
                    record.nodes.data(), record.cores.data(), std::to_string(record.threads)});
  }
  std::string table;
  for (const auto& row : rows) {
    std::string line;
    for (size_t column = 0; column < row.size(); ++column) {
      size_t width = 0;
      for (const auto& other : rows) width = std::max(width, other[column].size());
      line += fmt::format("{:<{}}  ", row[column], width);
    }
    table += line.substr(0, line.find_last_not_of(' ') + 1) + '\n';
  }
  return table;
}

}  // namespace convoy
