#include "engine/communicator.h"

#include <algorithm>
#include <cstring>

#include "engine/device_communicator.h"

namespace convoy {

std::unique_ptr<DeviceCommunicator> Communicator::on_device(DeviceRuntime&) {
  return nullptr;
}

void NullCommunicator::all_gather(const void* part, size_t bytes, void* all, const std::string&) {
  std::memcpy(all, part, bytes);
}

std::shared_ptr<Storage> NullCommunicator::exchange_memory(size_t bytes) {
  auto storage = default_allocator()->allocate(bytes);
  std::memset(storage->data, 0, bytes);
  return storage;
}

BatchShard shard_of(int64_t global_batch, int rank, int ranks) {
  const int64_t share = global_batch / ranks, more = global_batch % ranks;
  return {.global = global_batch,
          .first = rank * share + std::min<int64_t>(rank, more),
          .count = share + (rank < more ? 1 : 0)};
}

}  // namespace convoy
