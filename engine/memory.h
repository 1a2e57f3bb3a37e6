// Host memory of tensors, arenas and parameter stores, with an exact account of what is in use.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
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

/// Caching allocator. Blocks are 64-byte aligned; freed ones are kept for requests of the same rounded size, so that a
/// program that works line by line settles into a flat set of blocks. Thread-safe.
class Allocator : public std::enable_shared_from_this<Allocator> {
 public:
  static std::shared_ptr<Allocator> create() { return std::shared_ptr<Allocator>(new Allocator); }
  ~Allocator();

  /// Uninitialised memory of at least `bytes`. When the system has none left, the cached blocks are given back first;
  /// throws Error naming the bytes when that does not help.
  std::shared_ptr<Storage> allocate(size_t bytes);
  MemoryUse use() const;
  void reset_peak();
  /// Gives the cached blocks back to the system.
  void trim();

 private:
  Allocator() = default;
  void release(Storage* block);

  mutable std::mutex mutex_;
  std::multimap<size_t, void*> free_blocks_;
  MemoryUse use_;
};

/// The allocator of tensors that were made without one.
const std::shared_ptr<Allocator>& default_allocator();

}  // namespace convoy
