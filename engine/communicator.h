// The engine's idea of the other ranks. comm/ implements it; one rank needs nothing.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/memory.h"

namespace convoy {

class DeviceCommunicator;
class DeviceRuntime;

enum class ReduceOp : uint8_t { kSum, kMax };

/// A group of ranks that run the same program.
///
/// Two channels. The inline channel works on the calling thread: all_reduce, all_gather, broadcast, barrier. The
/// gradient channel sums in the background: start_sum, finish_sums. On each channel every rank makes the same calls in
/// the same order; calls of one channel may come at any place between those of the other. `name` identifies a
/// collective in messages about late or missing ranks. Sums are formed in the order of ranks where all ranks share a
/// host, so that a run repeated on the same ranks gives the same bits.
///
/// A collective that cannot complete (a rank is dead, late by more than the timeout, or has failed) throws Error with a
/// message that is the same on every rank.
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual int local_rank() const = 0;  ///< among the ranks of this host
  virtual int local_size() const = 0;

  /// In place.
  virtual void all_reduce(std::span<float> data, ReduceOp op, const std::string& name) = 0;
  virtual void all_reduce(std::span<int64_t> data, ReduceOp op, const std::string& name) = 0;
  /// `all` holds size() * bytes: the parts in the order of ranks. Every rank gives the same number of bytes.
  virtual void all_gather(const void* part, size_t bytes, void* all, const std::string& name) = 0;
  virtual void broadcast(void* data, size_t bytes, int root, const std::string& name) = 0;
  virtual void barrier(const std::string& name) = 0;

  /// Zeroed memory of which start_sum takes its segments: between ranks of one host a shared window where that has
  /// room. Every rank asks for the same number of bytes (collective on the inline channel). The communicator must
  /// outlive it.
  virtual std::shared_ptr<Storage> exchange_memory(size_t bytes) = 0;
  /// Sums the segments (each inside one exchange_memory, at the same places on every rank) over the ranks, in place,
  /// while the caller goes on. They must be left alone until finish_sums() has returned.
  virtual void start_sum(std::vector<std::span<float>> segments, const std::string& name) = 0;
  /// Waits until everything that was started is summed.
  virtual void finish_sums() = 0;

  /// The same ranks for data in the device's memory (collective on the inline channel); null where they can only
  /// exchange by way of the host. This communicator and the runtime must outlive it.
  virtual std::unique_ptr<DeviceCommunicator> on_device(DeviceRuntime& runtime);

  /// What this rank is doing outside collectives ("waiting for data") and the data file it took last, for the messages
  /// that other ranks print when they wait for it. A new activity is a sign of progress: the timeout counts from it, so
  /// that ranks may do unequal work between two collectives if they report it piece by piece. Cheap; any thread.
  virtual void set_activity(std::string_view what) = 0;
  virtual void set_data_file(std::string_view file) = 0;

  /// Tells all ranks to end with this message (an error on this rank). Returns once they know or are gone.
  virtual void fail_all(const std::string& message) = 0;
  /// The message with which all ranks end, the first one given; empty while there is none.
  virtual std::string failure() const { return {}; }
};

/// One rank: every collective returns at once.
class NullCommunicator : public Communicator {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  int local_rank() const override { return 0; }
  int local_size() const override { return 1; }
  void all_reduce(std::span<float>, ReduceOp, const std::string&) override {}
  void all_reduce(std::span<int64_t>, ReduceOp, const std::string&) override {}
  void all_gather(const void* part, size_t bytes, void* all, const std::string&) override;
  void broadcast(void*, size_t, int, const std::string&) override {}
  void barrier(const std::string&) override {}
  std::shared_ptr<Storage> exchange_memory(size_t bytes) override;
  void start_sum(std::vector<std::span<float>>, const std::string&) override {}
  void finish_sums() override {}
  void set_activity(std::string_view) override {}
  void set_data_file(std::string_view) override {}
  void fail_all(const std::string&) override {}
};

/// The part of a global batch that one rank trains on: images [first, first + count) of `global`.
struct BatchShard {
  int64_t global = 1, first = 0, count = 1;
};
/// As even as it can be: the first (global % ranks) ranks take one image more; some get none when ranks > global.
BatchShard shard_of(int64_t global_batch, int rank, int ranks);

}  // namespace convoy
