// Messages between the ranks of a host: each puts a part where all the others can read it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "comm/arrival_counter.h"

namespace convoy {

enum class CollectiveKind : uint32_t { kAllReduceFloat, kAllReduceInt64, kAllGather, kBroadcast, kBarrier };

/// What a rank believes the collective to be. Ranks that differ in any of it must not exchange data.
struct CollectiveHeader {
  CollectiveHeader() = default;
  CollectiveHeader(CollectiveKind kind, int detail, size_t bytes, std::string_view name);

  CollectiveKind kind;
  int32_t detail;  // operation of an all_reduce, root of a broadcast
  uint64_t bytes;
  uint64_t name_hash;  // of the whole name
  char name[104];      // its beginning
};
static_assert(sizeof(CollectiveHeader) == 128);

bool operator==(const CollectiveHeader& a, const CollectiveHeader& b);
/// "all_reduce (sum of float) 'loss', 8 bytes".
std::string describe(const CollectiveHeader& header);

/// Copies as much of `text` as fits into the `size` bytes at `to`, ended by a zero.
void copy_text(char* to, size_t size, std::string_view text);
/// FNV-1a, 64 bits, continued from `hash`.
uint64_t hash_bytes(const void* data, size_t bytes, uint64_t hash = 0xcbf29ce484222325);

/// Rounds of messages. In each, every rank fills its slot, arrives, and reads all slots once all have arrived. Every
/// rank has two slots, used in turns: who writes to a slot again has seen all ranks arrive at the round between, hence
/// past reading it.
class SlotExchange {
 public:
  /// Memory for `ranks` ranks, zeroed at first and shared.
  static size_t bytes(int ranks, size_t slot_bytes);
  SlotExchange(std::byte* memory, int rank, int ranks, size_t slot_bytes);

  size_t slot_bytes() const { return slot_bytes_; }

  /// Begins a round: this rank's slot. The round before must have been full.
  std::byte* begin();
  CollectiveHeader& header() { return *header_of(rank_); }
  void arrive() { counter_->arrive(full_); }

  bool full() const { return counter_->full(full_); }
  void wait(const Liveness& liveness, bool spin, const std::function<bool()>& idle = {}) {
    counter_->wait(full_, liveness, spin, idle);
  }
  /// Once the round is full.
  const CollectiveHeader& header(int rank) const { return *header_of(rank); }
  const std::byte* part(int rank) const { return reinterpret_cast<const std::byte*>(header_of(rank) + 1); }

 private:
  CollectiveHeader* header_of(int rank) const;

  ArrivalCounter* counter_;
  std::byte* slots_;
  int rank_, ranks_;
  size_t slot_bytes_;
  uint64_t round_ = 0;
  uint32_t full_ = 0;
};

}  // namespace convoy
