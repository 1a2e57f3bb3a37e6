// A duplicated communicator of MPI and how a rank waits on it.
#pragma once
#include <mpi.h>

#include <cstddef>
#include <memory>
#include <string>

#include "comm/liveness.h"
#include "comm/slot_exchange.h"

namespace convoy {

/// Throws Error with MPI's text and `name` unless `code` is MPI_SUCCESS.
void check_mpi(int code, const std::string& name);

/// Messages of more bytes go in pieces: MPI counts in int.
constexpr size_t kMpiPieceBytes = size_t{64} << 20;

class MpiChannel {
 public:
  /// Duplicates `comm`; errors of MPI become Error.
  MpiChannel(MPI_Comm comm, std::shared_ptr<Liveness> liveness);
  /// Frees the communicator unless the run has failed: others may not come to free theirs.
  ~MpiChannel();
  MpiChannel(const MpiChannel&) = delete;
  MpiChannel& operator=(const MpiChannel&) = delete;

  MPI_Comm comm() const { return comm_; }
  int rank() const { return rank_; }
  int size() const { return size_; }

  /// Waits for a non-blocking collective; throws Error when the run fails meanwhile.
  void wait(MPI_Request request, const std::string& name) const;
  /// Exchanges what the ranks are about to do. Where they differ, all fail with the same Error.
  void compare(const CollectiveHeader& header) const;

 private:
  std::shared_ptr<Liveness> liveness_;
  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0, size_ = 1;
};

}  // namespace convoy
