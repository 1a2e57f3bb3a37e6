// Sums of gradients by MPI in the background.
#pragma once
#include <mpi.h>

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm/liveness.h"
#include "comm/mpi_channel.h"

namespace convoy {

/// A thread that sums one bucket after the other by blocking calls on a communicator of its own: MPI makes no progress
/// with non-blocking ones while nobody calls it. Without MPI_THREAD_MULTIPLE sums are formed at once, on the caller's
/// thread.
class MpiGradients {
 public:
  MpiGradients(MPI_Comm comm, std::shared_ptr<Liveness> liveness);
  ~MpiGradients();
  MpiGradients(const MpiGradients&) = delete;
  MpiGradients& operator=(const MpiGradients&) = delete;

  void start(std::vector<std::span<float>> segments, const std::string& name);
  void finish();

 private:
  struct State;
  std::shared_ptr<State> state_;  ///< the thread's, too: after a failure it may be stuck inside MPI
};

}  // namespace convoy
