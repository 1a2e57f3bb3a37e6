// Memory of tensors, arenas and parameter stores, of the host or of a device, with an exact account of what is in use.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace convoy {

/// One block of memory; it goes back to its allocator when the last owner drops it.
struct Storage {
  void* data = nullptr;
  size_t bytes = 0;
};

/// Bytes of tensors, arenas and stores: what is held now and the most that was held at once. Cached free blocks are
/// counted apart, since they are no tensor's.
struct MemoryUse {
  size_t in_use = 0;
  size_t peak = 0;
  size_t cached = 0;
};

/// Where an allocator's blocks come from. `allocate` gives null when there is none left.
struct MemorySource {
  std::string name;  ///< for messages: "memory", "memory of device emulated"
  std::function<void*(size_t bytes)> allocate;
  std::function<void(void*)> free;
};
/// Of the host, 64-byte aligned.
MemorySource host_memory();

/// Caching allocator. Blocks are 64-byte aligned or better; freed ones are kept for requests of the same rounded size,
/// so that a program that works line by line settles into a flat set of blocks. Thread-safe.
class Allocator : public std::enable_shared_from_this<Allocator> {
 public:
  static std::shared_ptr<Allocator> create(MemorySource source = host_memory()) {
    return std::shared_ptr<Allocator>(new Allocator(std::move(source)));
  }
  ~Allocator();

  /// Uninitialised memory of at least `bytes`. When the system has none left, the cached blocks are given back first;
  /// throws Error naming the bytes when that does not help.
  std::shared_ptr<Storage> allocate(size_t bytes);
  MemoryUse use() const;
  void reset_peak();
  /// Gives the cached blocks back to the system.
  void trim();

 private:
  explicit Allocator(MemorySource source) : source_(std::move(source)) {}
  void release(Storage* block);

  MemorySource source_;
  mutable std::mutex mutex_;
  std::multimap<size_t, void*> free_blocks_;
  MemoryUse use_;
};

/// The allocator of tensors that were made without one.
const std::shared_ptr<Allocator>& default_allocator();

}  // namespace convoy
