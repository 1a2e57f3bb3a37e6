// The engine's idea of the other ranks. comm/ implements it; one rank needs nothing.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

namespace convoy {

enum class ReduceOp : uint8_t { kSum, kMax };

/// A group of ranks that run the same program. All calls are collective, in the same order on every rank.
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual int local_rank() const = 0;
  /// In place. `name` identifies the collective in messages about late or missing ranks.
  virtual void all_reduce(float* data, size_t count, ReduceOp op, const std::string& name) = 0;
  virtual void all_reduce(int64_t* data, size_t count, ReduceOp op, const std::string& name) = 0;
  virtual void broadcast(void* data, size_t bytes, int root, const std::string& name) = 0;
  virtual void barrier(const std::string& name) = 0;
  /// Ends all ranks with the same message and exit code 1.
  [[noreturn]] virtual void abort(const std::string& message) = 0;
};

/// One rank: every collective returns at once.
class NullCommunicator : public Communicator {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  int local_rank() const override { return 0; }
  void all_reduce(float*, size_t, ReduceOp, const std::string&) override {}
  void all_reduce(int64_t*, size_t, ReduceOp, const std::string&) override {}
  void broadcast(void*, size_t, int, const std::string&) override {}
  void barrier(const std::string&) override {}
  [[noreturn]] void abort(const std::string& message) override;
};

}  // namespace convoy
