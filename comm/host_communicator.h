// Ranks of one host: collectives through memory that all of them map. Waiting sleeps (futex), so that ranks that share
// cores do not take them from each other.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "comm/gradient_channel.h"
#include "comm/liveness.h"
#include "comm/slot_exchange.h"
#include "engine/communicator.h"

namespace convoy {

/// Ranks are processes of one host, or threads of one process. One thread of each rank calls the collectives.
///
/// Inline channel: each rank puts its part into its slot, waits for all and reads the others' parts (SlotExchange).
/// Every rank forms all sums itself, float by float in the order of ranks. A maximum is NaN where a part is.
/// Gradient channel: see GradientChannel. A rank that waits in an inline collective sums gradients meanwhile.
/// Collectives of different names, kinds or sizes are never mixed up: every rank throws Error naming two of them.
class HostCommunicator : public Communicator {
 public:
  /// Bytes of `slots` for that many ranks.
  static size_t slot_bytes(int ranks);
  /// `slots` is zeroed at first and shared by all ranks, as is the liveness table. `window_name`: prefix for windows in
  /// /dev/shm; empty: ranks are threads of one process. Throws Error when `slots` is too small.
  HostCommunicator(std::shared_ptr<SharedMemory> slots, std::shared_ptr<Liveness> liveness, std::string window_name);
  /// Says goodbye to the other ranks, unless an exception ends this one.
  ~HostCommunicator() override;

  int rank() const override { return rank_; }
  int size() const override { return ranks_; }
  int local_rank() const override { return rank_; }
  int local_size() const override { return ranks_; }

  void all_reduce(std::span<float> data, ReduceOp op, const std::string& name) override;
  void all_reduce(std::span<int64_t> data, ReduceOp op, const std::string& name) override;
  void all_gather(const void* part, size_t bytes, void* all, const std::string& name) override;
  void broadcast(void* data, size_t bytes, int root, const std::string& name) override;
  void barrier(const std::string& name) override;

  /// Without room in /dev/shm for the windows, all ranks take ordinary memory and rank 0 says so on stderr.
  std::shared_ptr<Storage> exchange_memory(size_t bytes) override;
  void start_sum(std::vector<std::span<float>> segments, const std::string& name) override;
  void finish_sums() override;

  std::unique_ptr<DeviceCommunicator> on_device(DeviceRuntime& runtime) override;

  void set_activity(std::string_view what) override { liveness_->set_activity(what); }
  void set_data_file(std::string_view file) override { liveness_->set_data_file(file); }
  void fail_all(const std::string& message) override { liveness_->fail(message, rank_); }
  std::string failure() const override { return liveness_->failure(); }

 private:
  template <class Put, class Take>
  void exchange(CollectiveKind kind, int detail, size_t bytes, const std::string& name, Put put, Take take);
  template <class T>
  void reduce(CollectiveKind kind, std::span<T> data, ReduceOp op, const std::string& name);
  void compare_headers();
  std::string agree_on_error(const std::string& error, const std::string& name);
  void agree_on_spinning();
  std::string map_parts(GradientWindow& window, size_t bytes);

  std::shared_ptr<SharedMemory> memory_;
  std::shared_ptr<Liveness> liveness_;
  std::string window_name_;
  int rank_, ranks_;
  bool spin_ = false;
  SlotExchange inline_;
  GradientChannel gradients_;
  int windows_made_ = 0;
};

/// Communicators of `ranks` ranks that are threads of this process: element r is for the thread that plays rank r.
/// A collective that a rank does not come to within the timeout fails on all.
std::vector<std::shared_ptr<Communicator>> thread_communicators(int ranks, double timeout_seconds = 60);

}  // namespace convoy
