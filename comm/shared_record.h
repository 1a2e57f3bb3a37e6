// A small piece of plain data in shared memory that is read while others write it, never torn.
#pragma once
#include <atomic>
#include <cstdint>
#include <cstring>
#include <thread>
#include <type_traits>

namespace convoy {

/// A sequence lock: odd while someone writes. All zero is a valid state. Readers never block a writer. A writer that
/// dies or is stopped in the middle leaves the sequence odd; readers give up after a while.
template <class T>
class SharedRecord {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) % sizeof(uint64_t) == 0);
  static_assert(std::atomic<uint64_t>::is_always_lock_free);
  static constexpr size_t kWords = sizeof(T) / sizeof(uint64_t);

 public:
  void write(const T& value) {
    const uint64_t sequence = lock();
    store(value);
    sequence_.store(sequence + 2, std::memory_order_release);
  }

  /// Applies change(T&) to the present value.
  template <class Change>
  void update(Change change) {
    const uint64_t sequence = lock();
    T value = load();
    change(value);
    store(value);
    sequence_.store(sequence + 2, std::memory_order_release);
  }

  /// A value that was written whole; T{} when a writer has been at it all the time.
  T read() const {
    for (int attempt = 0; attempt < 1000; ++attempt) {
      const uint64_t before = sequence_.load(std::memory_order_acquire);
      if (before % 2 == 0) {
        const T value = load();
        if (sequence_.load(std::memory_order_relaxed) == before) return value;
      }
      if (attempt % 8 == 7) std::this_thread::yield();
    }
    return T{};
  }

 private:
  uint64_t lock() {
    for (;;) {
      uint64_t sequence = sequence_.load(std::memory_order_relaxed);
      if (sequence % 2 == 0 && sequence_.compare_exchange_weak(sequence, sequence + 1, std::memory_order_acquire)) {
        return sequence;
      }
      std::this_thread::yield();
    }
  }

  // Words are released and acquired one by one, so that whoever sees a new word sees the odd sequence before it.
  void store(const T& value) {
    uint64_t words[kWords];
    memcpy(words, &value, sizeof value);
    for (size_t i = 0; i < kWords; ++i) words_[i].store(words[i], std::memory_order_release);
  }

  T load() const {
    uint64_t words[kWords];
    for (size_t i = 0; i < kWords; ++i) words[i] = words_[i].load(std::memory_order_acquire);
    T value;
    memcpy(static_cast<void*>(&value), words, sizeof value);
    return value;
  }

  std::atomic<uint64_t> sequence_;
  std::atomic<uint64_t> words_[kWords];
};

}  // namespace convoy
