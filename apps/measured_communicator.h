// A communicator that keeps account of what goes through another one.
#pragma once
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/communicator.h"

namespace convoy {

/// What this rank has exchanged. Seconds include waiting for the other ranks.
struct ExchangeAccount {
  struct Channel {
    int64_t messages = 0, bytes = 0;  ///< collectives, and what this rank gave to them
    double seconds = 0;
    std::vector<double> calls;  ///< seconds of each
  };
  Channel inline_channel;  ///< all_reduce, all_gather, broadcast, barrier; a rank that waits there sums gradients
  Channel gradients;       ///< start_sum and finish_sums; messages are buckets
};

/// Passes everything on to `inner`.
class MeasuredCommunicator : public Communicator {
 public:
  explicit MeasuredCommunicator(std::shared_ptr<Communicator> inner) : inner_(std::move(inner)) {}

  /// Since the last call.
  ExchangeAccount take_account() { return std::exchange(account_, {}); }

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  int local_rank() const override { return inner_->local_rank(); }
  int local_size() const override { return inner_->local_size(); }
  void all_reduce(std::span<float> data, ReduceOp op, const std::string& name) override;
  void all_reduce(std::span<int64_t> data, ReduceOp op, const std::string& name) override;
  void all_gather(const void* part, size_t bytes, void* all, const std::string& name) override;
  void broadcast(void* data, size_t bytes, int root, const std::string& name) override;
  void barrier(const std::string& name) override;
  std::shared_ptr<Storage> exchange_memory(size_t bytes) override { return inner_->exchange_memory(bytes); }
  void start_sum(std::vector<std::span<float>> segments, const std::string& name) override;
  void finish_sums() override;
  void set_activity(std::string_view what) override { inner_->set_activity(what); }
  void set_data_file(std::string_view file) override { inner_->set_data_file(file); }
  void fail_all(const std::string& message) override { inner_->fail_all(message); }
  std::string failure() const override { return inner_->failure(); }

 private:
  std::shared_ptr<Communicator> inner_;
  ExchangeAccount account_;
};

}  // namespace convoy
