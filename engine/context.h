// What a graph runs in: the device, its threads, the ranks it belongs to, and the plans made so far. Passed around;
// nothing here is global.
#pragma once
#include <memory>
#include <string>

#include "engine/communicator.h"
#include "engine/device.h"
#include "engine/device_communicator.h"
#include "engine/memory.h"
#include "engine/profiler.h"

namespace convoy {

class PlanCache;

enum class DeviceKind : uint8_t { kCpu, kCuda, kEmulated };
const char* device_name(DeviceKind device);

struct ContextOptions {
  DeviceKind device = DeviceKind::kCpu;
  int threads = 0;            ///< 0: all cores that this process may use
  bool direct_conv = false;   ///< dense convolutions by our own plain kernel
  bool exact_ranks = false;   ///< sums over samples as integers: the same bits on any number of ranks (slow)
  bool check_values = false;  ///< debug interpreter: poisoned memory, guards and finite values, node by node
  /// Of gradients that ranks sum together; the first such bucket is smaller.
  size_t bucket_bytes = size_t{25} << 20;
};

class Context {
 public:
  explicit Context(const ContextOptions& options = {}, std::shared_ptr<Communicator> communicator = nullptr);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  const ContextOptions& options() const { return options_; }
  int threads() const { return options_.threads; }
  Communicator& communicator() const { return *communicator_; }
  /// Null on `cpu`, whose memory is the host's.
  Device* device() const { return device_.get(); }
  /// The ranks as the device reaches them; null where they exchange by way of the host. All ranks ask for it at the
  /// same place among their collectives.
  DeviceCommunicator* device_communicator();
  Profiler& profiler() { return profiler_; }
  PlanCache& plans() { return *plans_; }

  /// The memory in which plans run, one after the other: the same for all sessions, as large as the largest needs.
  /// `user` takes it over; what an earlier user left there is lost.
  void* claim_arena(size_t bytes, const void* user);
  /// Whether `user` was the last to claim the arena.
  bool holds_arena(const void* user) const { return arena_user_ == user; }
  size_t arena_bytes() const { return arena_ ? arena_->bytes : 0; }
  void leave_arena(const void* user) {
    if (arena_user_ == user) arena_user_ = nullptr;
  }

 private:
  ContextOptions options_;
  std::shared_ptr<Communicator> communicator_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<DeviceCommunicator> device_communicator_;
  bool device_communicator_asked_ = false;
  Profiler profiler_;
  std::unique_ptr<PlanCache> plans_;
  std::shared_ptr<Storage> arena_;
  const void* arena_user_ = nullptr;
};

/// Cores in this process's affinity mask.
int available_cores();

}  // namespace convoy
