#ifdef CONVOY_WITH_MPI
#include "comm/mpi_channel.h"

#include <sched.h>

#include <chrono>
#include <thread>
#include <vector>

#include "engine/error.h"

namespace convoy {

void check_mpi(int code, const std::string& name) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING + 1] = {};
  int length = 0;
  MPI_Error_string(code, text, &length);
  fail("MPI: {}: {}", name, text);
}

MpiChannel::MpiChannel(MPI_Comm comm, std::shared_ptr<Liveness> liveness) : liveness_(std::move(liveness)) {
  check_mpi(MPI_Comm_dup(comm, &comm_), "MPI_Comm_dup");
  check_mpi(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  check_mpi(MPI_Comm_rank(comm_, &rank_), "MPI_Comm_rank");
  check_mpi(MPI_Comm_size(comm_, &size_), "MPI_Comm_size");
}

MpiChannel::~MpiChannel() {
  if (!liveness_->failed()) MPI_Comm_free(&comm_);
}

void MpiChannel::wait(MPI_Request request, const std::string& name) const {
  constexpr int kEager = 1000;  // tests before the wait takes naps
  for (int tests = 0;; ++tests) {
    int done = 0;
    check_mpi(MPI_Test(&request, &done, MPI_STATUS_IGNORE), name);
    if (done) return;
    if (liveness_->failed()) throw Error(liveness_->failure());
    if (tests < kEager) {
      ::sched_yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }
}

void MpiChannel::compare(const CollectiveHeader& header) const {
  std::vector<CollectiveHeader> all(static_cast<size_t>(size_));
  MPI_Request request;
  check_mpi(MPI_Iallgather(&header, sizeof header, MPI_BYTE, all.data(), sizeof header, MPI_BYTE, comm_, &request),
            header.name);
  wait(request, header.name);
  for (int rank = 1; rank < size_; ++rank) {
    const CollectiveHeader& other = all[static_cast<size_t>(rank)];
    if (other == all[0]) continue;
    liveness_->fail(
        fmt::format("ranks are in different collectives: rank 0 is in {}, rank {} in {}; do all ranks run the same "
                    "program with the same configuration?",
                    describe(all[0]), rank, describe(other)));
    throw Error(liveness_->failure());
  }
}

}  // namespace convoy
#endif
