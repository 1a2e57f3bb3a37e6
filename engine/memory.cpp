#include "engine/memory.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>

#include "engine/error.h"

namespace convoy {

namespace {
constexpr size_t kAlignment = 64;
// Small sizes are rounded to a cache line, large ones to an eighth of their power of two: at most 12.5 % waste.
size_t rounded(size_t bytes) {
  size_t step = kAlignment;
  while (step * 16 < bytes) step *= 2;
  return std::max(kAlignment, (bytes + step - 1) / step * step);
}
}  // namespace

MemorySource host_memory() {
  return {.name = "memory",
          .allocate = [](size_t bytes) { return std::aligned_alloc(kAlignment, bytes); },
          .free = [](void* data) { std::free(data); }};
}

Allocator::~Allocator() {
  trim();
}

std::shared_ptr<Storage> Allocator::allocate(size_t bytes) {
  CONVOY_CHECK(bytes <= size_t{PTRDIFF_MAX} / 2, "{} bytes of memory were asked for: a size is wrong", bytes);
  const size_t size = rounded(bytes);
  void* data = nullptr;
  {
    const std::lock_guard lock(mutex_);
    if (const auto it = free_blocks_.find(size); it != free_blocks_.end()) {
      data = it->second;
      free_blocks_.erase(it);
      use_.cached -= size;
    }
  }
  if (!data) {
    data = source_.allocate(size);
    if (!data) {
      trim();
      data = source_.allocate(size);
    }
    CONVOY_CHECK(data, "out of {}: {} bytes were asked for while {} are in use; use a smaller batch or crop",
                 source_.name, size, use().in_use);
  }
  const std::lock_guard lock(mutex_);
  use_.in_use += size;
  use_.peak = std::max(use_.peak, use_.in_use);
  return {new Storage{data, size}, [self = shared_from_this()](Storage* block) { self->release(block); }};
}

void Allocator::release(Storage* block) {
  const std::lock_guard lock(mutex_);
  free_blocks_.emplace(block->bytes, block->data);
  use_.in_use -= block->bytes;
  use_.cached += block->bytes;
  delete block;
}

MemoryUse Allocator::use() const {
  const std::lock_guard lock(mutex_);
  return use_;
}

void Allocator::reset_peak() {
  const std::lock_guard lock(mutex_);
  use_.peak = use_.in_use;
}

void Allocator::trim() {
  const std::lock_guard lock(mutex_);
  for (const auto& [size, data] : free_blocks_) source_.free(data);
  free_blocks_.clear();
  use_.cached = 0;
}

const std::shared_ptr<Allocator>& default_allocator() {
  static const std::shared_ptr<Allocator> allocator = Allocator::create();
  return allocator;
}

}  // namespace convoy
