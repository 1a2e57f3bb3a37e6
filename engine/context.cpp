#include "engine/context.h"

#include <sched.h>

#include <algorithm>

#include "engine/error.h"
#include "engine/plan_cache.h"

namespace convoy {

const char* device_name(DeviceKind device) {
  return device == DeviceKind::kCpu ? "cpu" : device == DeviceKind::kCuda ? "cuda" : "emulated";
}

int available_cores() {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  if (sched_getaffinity(0, sizeof mask, &mask) != 0) return 1;
  return std::max(1, CPU_COUNT(&mask));
}

Context::Context(const ContextOptions& options, std::shared_ptr<Communicator> communicator)
    : options_(options),
      communicator_(communicator ? std::move(communicator) : std::make_shared<NullCommunicator>()),
      device_(options.device == DeviceKind::kCpu ? nullptr : std::make_unique<Device>(options.device)),
      plans_(std::make_unique<PlanCache>()) {
  CONVOY_CHECK(options.threads >= 0, "threads must be 0 (all cores) or more, not {}", options.threads);
  if (options_.threads == 0) options_.threads = available_cores();
}

Context::~Context() = default;

DeviceCommunicator* Context::device_communicator() {
  if (!device_communicator_asked_ && device_) device_communicator_ = communicator_->on_device(device_->runtime());
  device_communicator_asked_ = true;
  return device_communicator_.get();
}

void* Context::claim_arena(size_t bytes, const void* user) {
  if (!arena_ || arena_->bytes < bytes) {
    arena_.reset();  // before the larger one is there, so that both are never held at once
    const std::shared_ptr<Allocator>& memory = device_ ? device_->memory() : default_allocator();
    memory->trim();
    arena_ = memory->allocate(bytes);
  }
  arena_user_ = user;
  return arena_->data;
}

}  // namespace convoy
