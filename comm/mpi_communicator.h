// Ranks on several hosts: collectives by MPI. Only in builds with MPI (CONVOY_WITH_MPI).
#pragma once
#include <mpi.h>

#include <memory>
#include <string>

#include "comm/liveness.h"
#include "comm/mpi_gradients.h"
#include "comm/ranks.h"
#include "engine/communicator.h"

namespace convoy {

/// For programs that have initialised MPI themselves: the ranks of `comm` as a Communicator. Ranks that all share a
/// host exchange through shared memory, as under join_ranks. Collective over `comm`, which remains the caller's;
/// neither is MPI finalised. The communicator must be gone before MPI_Finalize.
std::shared_ptr<Communicator> make_mpi_communicator(MPI_Comm comm, const RanksOptions& options);

/// The inline channel waits for small non-blocking collectives, so that a failure elsewhere ends the wait; each is
/// preceded by a comparison of what the ranks believe it to be. Sums of up to kInOrderBytes are formed in the order of
/// ranks whatever MPI does; longer ones in MPI's. Gradients: see MpiGradients.
class MpiCommunicator : public Communicator {
 public:
  static constexpr size_t kInOrderBytes = size_t{64} << 10;

  /// Duplicates `comm`. `local_rank` of `local_size` as on this rank's host.
  MpiCommunicator(MPI_Comm comm, int local_rank, int local_size, std::shared_ptr<Liveness> liveness);
  ~MpiCommunicator() override;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  int local_rank() const override { return local_rank_; }
  int local_size() const override { return local_size_; }
  void all_reduce(std::span<float> data, ReduceOp op, const std::string& name) override;
  void all_reduce(std::span<int64_t> data, ReduceOp op, const std::string& name) override;
  void all_gather(const void* part, size_t bytes, void* all, const std::string& name) override;
  void broadcast(void* data, size_t bytes, int root, const std::string& name) override;
  void barrier(const std::string& name) override;
  std::shared_ptr<Storage> exchange_memory(size_t bytes) override;
  void start_sum(std::vector<std::span<float>> segments, const std::string& name) override;
  void finish_sums() override;
  void set_activity(std::string_view what) override { liveness_->set_activity(what); }
  void set_data_file(std::string_view file) override { liveness_->set_data_file(file); }
  void fail_all(const std::string& message) override { liveness_->fail(message, rank_); }
  std::string failure() const override { return liveness_->failure(); }

 private:
  template <class Work>
  void collective(const CollectiveHeader& header, Work work);
  void gather(const void* part, size_t bytes, void* all, const std::string& name);

  std::shared_ptr<Liveness> liveness_;
  int rank_ = 0, size_ = 1, local_rank_, local_size_;
  MpiChannel inline_;
  MpiGradients gradients_;
};

}  // namespace convoy
