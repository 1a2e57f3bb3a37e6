#include "comm/slot_exchange.h"

#include <algorithm>
#include <cstring>

#include "engine/communicator.h"
#include "engine/error.h"
#include "engine/rng.h"

namespace convoy {

void copy_text(char* to, size_t size, std::string_view text) {
  const size_t length = std::min(text.size(), size - 1);
  std::memcpy(to, text.data(), length);
  std::memset(to + length, 0, size - length);
}

uint64_t hash_bytes(const void* data, size_t bytes, uint64_t hash) {
  return fnv1a({static_cast<const char*>(data), bytes}, hash);
}

CollectiveHeader::CollectiveHeader(CollectiveKind kind, int detail, size_t bytes, std::string_view name)
    : kind(kind), detail(detail), bytes(bytes), name_hash(hash_bytes(name.data(), name.size())) {
  copy_text(this->name, sizeof(this->name), name);
}

bool operator==(const CollectiveHeader& a, const CollectiveHeader& b) {
  return a.kind == b.kind && a.detail == b.detail && a.bytes == b.bytes && a.name_hash == b.name_hash;
}

std::string describe(const CollectiveHeader& header) {
  const char* operation = header.detail == static_cast<int>(ReduceOp::kSum) ? "sum" : "maximum";
  std::string what;
  switch (header.kind) {
    case CollectiveKind::kAllReduceFloat:
      what = fmt::format("all_reduce ({} of float)", operation);
      break;
    case CollectiveKind::kAllReduceInt64:
      what = fmt::format("all_reduce ({} of int64)", operation);
      break;
    case CollectiveKind::kAllGather:
      what = "all_gather";
      break;
    case CollectiveKind::kBroadcast:
      what = fmt::format("broadcast from rank {}", header.detail);
      break;
    case CollectiveKind::kBarrier:
      what = "barrier";
      break;
  }
  return fmt::format("{} '{}', {} bytes", what, header.name, header.bytes);
}

SlotExchange::SlotExchange(std::byte* memory, int rank, int ranks, size_t slot_bytes)
    : counter_(reinterpret_cast<ArrivalCounter*>(memory)),
      slots_(memory + sizeof(ArrivalCounter)),
      rank_(rank),
      ranks_(ranks),
      slot_bytes_(slot_bytes) {}

size_t SlotExchange::bytes(int ranks, size_t slot_bytes) {
  return sizeof(ArrivalCounter) + static_cast<size_t>(ranks) * 2 * (sizeof(CollectiveHeader) + slot_bytes);
}

CollectiveHeader* SlotExchange::header_of(int rank) const {
  const size_t slot = static_cast<size_t>(rank) * 2 + round_ % 2;
  return reinterpret_cast<CollectiveHeader*>(slots_ + slot * (sizeof(CollectiveHeader) + slot_bytes_));
}

std::byte* SlotExchange::begin() {
  ++round_;
  full_ += static_cast<uint32_t>(ranks_);
  return reinterpret_cast<std::byte*>(header_of(rank_) + 1);
}

}  // namespace convoy
