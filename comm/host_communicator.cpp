#include "comm/host_communicator.h"

#include <sched.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <exception>

#include "comm/nccl_communicator.h"
#include "comm/nccl_stand_in.h"
#include "comm/reduce.h"
#include "comm/watchdog.h"
#include "engine/error.h"
#include "kernels/device_runtime.h"

namespace convoy {
namespace {

constexpr size_t kSlotBytes = size_t{128} << 10;  // a longer message goes in pieces

std::byte* bytes_of(const std::shared_ptr<SharedMemory>& memory) {
  return static_cast<std::byte*>(memory->data());
}

}  // namespace

size_t HostCommunicator::slot_bytes(int ranks) {
  return SlotExchange::bytes(ranks, kSlotBytes) + GradientChannel::bytes(ranks);
}

HostCommunicator::HostCommunicator(std::shared_ptr<SharedMemory> slots, std::shared_ptr<Liveness> liveness,
                                   std::string window_name)
    : memory_(std::move(slots)),
      liveness_(std::move(liveness)),
      window_name_(std::move(window_name)),
      rank_(liveness_->rank()),
      ranks_(liveness_->ranks()),
      inline_(bytes_of(memory_), rank_, ranks_, kSlotBytes),
      gradients_(bytes_of(memory_) + SlotExchange::bytes(ranks_, kSlotBytes), *liveness_) {
  CONVOY_CHECK(memory_->bytes() >= slot_bytes(ranks_), "slots of {} ranks: {} bytes given, {} needed", ranks_,
               memory_->bytes(), slot_bytes(ranks_));
}

HostCommunicator::~HostCommunicator() {
  if (std::uncaught_exceptions() == 0) {
    liveness_->leave_run();
  } else {
    liveness_->fail(fmt::format("rank {} has ended with an error", rank_), rank_);
  }
}

void HostCommunicator::compare_headers() {
  const CollectiveHeader& first = inline_.header(0);
  for (int rank = 1; rank < ranks_; ++rank) {
    const CollectiveHeader& other = inline_.header(rank);
    if (other == first) continue;
    liveness_->fail(
        fmt::format("ranks are in different collectives: rank 0 is in {}, rank {} in {}; do all ranks run the same "
                    "program with the same configuration?",
                    describe(first), rank, describe(other)));
    throw Error(liveness_->failure());
  }
}

// put(slot, offset, size) fills this rank's slot with the piece of `bytes` at offset; take(offset, size) reads the
// parts of all ranks. A collective without bytes is one empty piece.
template <class Put, class Take>
void HostCommunicator::exchange(CollectiveKind kind, int detail, size_t bytes, const std::string& name, Put put,
                                Take take) {
  throw_if_failed(*liveness_);
  liveness_->enter(Channel::kInline, name);
  const auto idle = [this] { return gradients_.step(); };
  size_t offset = 0;
  do {
    const size_t size = std::min(kSlotBytes, bytes - offset);
    std::byte* slot = inline_.begin();
    if (offset == 0) inline_.header() = CollectiveHeader(kind, detail, bytes, name);
    put(slot, offset, size);
    inline_.arrive();
    inline_.wait(*liveness_, spin_, idle);
    if (offset == 0) compare_headers();
    take(offset, size);
    offset += size;
  } while (offset < bytes);
  liveness_->leave(Channel::kInline);
}

template <class T>
void HostCommunicator::reduce(CollectiveKind kind, std::span<T> data, ReduceOp op, const std::string& name) {
  auto* bytes = reinterpret_cast<std::byte*>(data.data());
  const auto put = [&](std::byte* slot, size_t offset, size_t size) {
    if (size > 0) std::memcpy(slot, bytes + offset, size);
  };
  const auto take = [&](size_t offset, size_t size) {
    if (size == 0) return;
    std::memcpy(bytes + offset, inline_.part(0), size);
    T* to = data.data() + offset / sizeof(T);
    for (int rank = 1; rank < ranks_; ++rank) {
      auto* part = reinterpret_cast<const T*>(inline_.part(rank));
      if (op == ReduceOp::kSum) {
        combine(to, part, size / sizeof(T), Sum());
      } else {
        combine(to, part, size / sizeof(T), Maximum());
      }
    }
  };
  exchange(kind, static_cast<int>(op), data.size_bytes(), name, put, take);
}

void HostCommunicator::all_reduce(std::span<float> data, ReduceOp op, const std::string& name) {
  reduce(CollectiveKind::kAllReduceFloat, data, op, name);
}

void HostCommunicator::all_reduce(std::span<int64_t> data, ReduceOp op, const std::string& name) {
  reduce(CollectiveKind::kAllReduceInt64, data, op, name);
}

void HostCommunicator::all_gather(const void* part, size_t bytes, void* all, const std::string& name) {
  const auto put = [&](std::byte* slot, size_t offset, size_t size) {
    if (size > 0) std::memcpy(slot, static_cast<const std::byte*>(part) + offset, size);
  };
  const auto take = [&](size_t offset, size_t size) {
    if (size == 0) return;
    for (int rank = 0; rank < ranks_; ++rank) {
      std::memcpy(static_cast<std::byte*>(all) + rank * bytes + offset, inline_.part(rank), size);
    }
  };
  exchange(CollectiveKind::kAllGather, 0, bytes, name, put, take);
}

void HostCommunicator::broadcast(void* data, size_t bytes, int root, const std::string& name) {
  CONVOY_CHECK(root >= 0 && root < ranks_, "broadcast '{}' from rank {} of {}", name, root, ranks_);
  const auto put = [&](std::byte* slot, size_t offset, size_t size) {
    if (rank_ == root && size > 0) std::memcpy(slot, static_cast<const std::byte*>(data) + offset, size);
  };
  const auto take = [&](size_t offset, size_t size) {
    if (rank_ != root && size > 0) std::memcpy(static_cast<std::byte*>(data) + offset, inline_.part(root), size);
  };
  exchange(CollectiveKind::kBroadcast, root, bytes, name, put, take);
}

void HostCommunicator::barrier(const std::string& name) {
  exchange(
      CollectiveKind::kBarrier, 0, 0, name, [](std::byte*, size_t, size_t) {}, [](size_t, size_t) {});
}

// The error of the first rank that has one, on all ranks alike; empty when none has.
std::string HostCommunicator::agree_on_error(const std::string& error, const std::string& name) {
  char mine[256];
  copy_text(mine, sizeof(mine), error);
  std::vector<char> all(sizeof(mine) * static_cast<size_t>(ranks_));
  all_gather(mine, sizeof(mine), all.data(), name);
  for (int rank = 0; rank < ranks_; ++rank) {
    const char* text = all.data() + static_cast<size_t>(rank) * sizeof(mine);
    if (*text != 0) return fmt::format("rank {}: {}", rank, text);
  }
  return {};
}

// A segment for each rank, made by itself (its pages are then near its cores) and mapped by all. Empty, or what went
// wrong, alike on all ranks.
std::string HostCommunicator::map_parts(GradientWindow& window, size_t bytes) {
  const std::string what = fmt::format("exchange_memory of {} bytes", bytes);
  const auto segment_name = [&](int rank) { return fmt::format("{}-window{}-{}", window_name_, window.number, rank); };
  const bool threads = window_name_.empty();
  std::shared_ptr<SharedMemory> own;
  std::string error;
  try {
    own = threads ? SharedMemory::in_process(bytes) : SharedMemory::create(segment_name(rank_), bytes);
  } catch (const Error& e) {
    error = e.what();
  }
  error = agree_on_error(error, what + ": create");
  if (!error.empty()) return error;

  window.parts.resize(static_cast<size_t>(ranks_));
  if (threads) {
    const std::shared_ptr<SharedMemory>* mine = &own;
    std::vector<const std::shared_ptr<SharedMemory>*> all(static_cast<size_t>(ranks_));
    all_gather(&mine, sizeof(void*), all.data(), what + ": parts");
    for (int rank = 0; rank < ranks_; ++rank) window.parts[rank] = *all[rank];
  } else {
    try {
      for (int rank = 0; rank < ranks_; ++rank) {
        window.parts[rank] = rank == rank_ ? own : SharedMemory::open(segment_name(rank), bytes);
      }
    } catch (const Error& e) {
      error = e.what();
    }
  }
  error = agree_on_error(error, what + ": open");  // all have taken what they need of `own`, and of its name
  own->unlink();
  if (!error.empty()) window.parts.clear();
  return error;
}

// Only ranks that have a core each may look for each other without taking one away.
void HostCommunicator::agree_on_spinning() {
  cpu_set_t own, all;
  if (sched_getaffinity(0, sizeof own, &own) != 0) CPU_ZERO(&own);
  std::vector<cpu_set_t> masks(static_cast<size_t>(ranks_));
  all_gather(&own, sizeof own, masks.data(), "cores of the ranks");
  CPU_ZERO(&all);
  for (const cpu_set_t& mask : masks) CPU_OR(&all, &all, &mask);
  spin_ = CPU_COUNT(&all) >= ranks_;
  gradients_.set_spin(spin_);
}

std::shared_ptr<Storage> HostCommunicator::exchange_memory(size_t bytes) {
  agree_on_spinning();
  auto window = std::make_shared<GradientWindow>();
  window->number = windows_made_++;
  // Segments may be empty, shared memory may not.
  const std::string error = map_parts(*window, std::max<size_t>(bytes, 1));
  if (error.empty()) {
    window->storage = {.data = window->parts[rank_]->data(), .bytes = bytes};
  } else {
    if (rank_ == 0) {
      fmt::print(stderr, "convoy: gradients are summed through messages, which is slower than shared windows ({})\n",
                 error);
    }
    window->own_memory = default_allocator()->allocate(bytes);
    std::memset(window->own_memory->data, 0, bytes);
    window->storage = {.data = window->own_memory->data, .bytes = bytes};
  }
  gradients_.add(window);
  return {window, &window->storage};
}

void HostCommunicator::start_sum(std::vector<std::span<float>> segments, const std::string& name) {
  throw_if_failed(*liveness_);
  // Come to, but not waited in: others are late only for finish_sums.
  liveness_->enter(Channel::kGradient, name);
  liveness_->leave(Channel::kGradient);
  gradients_.start(segments, name);
  while (gradients_.step()) {
  }
}

void HostCommunicator::finish_sums() {
  throw_if_failed(*liveness_);
  liveness_->enter(Channel::kGradient, "finish_sums");
  gradients_.finish();
  liveness_->leave(Channel::kGradient);
}

std::unique_ptr<DeviceCommunicator> HostCommunicator::on_device(DeviceRuntime& runtime) {
  if (&runtime != &emulated::device_runtime()) return nullptr;
  return std::make_unique<NcclCommunicator>(
      nccl::nccl_stand_in(), *this, runtime,
      NcclOptions{.enter = [this](const std::string& name) { liveness_->enter(Channel::kInline, name); },
                  .leave = [this] { liveness_->leave(Channel::kInline); }});
}

std::vector<std::shared_ptr<Communicator>> thread_communicators(int ranks, double timeout_seconds) {
  CONVOY_CHECK(ranks >= 1, "{} ranks wanted; at least one is needed", ranks);
  const auto slots = SharedMemory::in_process(HostCommunicator::slot_bytes(ranks));
  const auto table = SharedMemory::in_process(Liveness::bytes(ranks));
  std::vector<std::shared_ptr<Liveness>> members;
  for (int rank = 0; rank < ranks; ++rank) members.push_back(std::make_shared<Liveness>(table, rank, ranks));
  // One looks after all, for as long as there is a communicator.
  const auto watchdog = std::make_shared<Watchdog>(
      members[0], WatchdogOptions{.late_seconds = timeout_seconds, .processes = false, .end_process = {}});
  std::vector<std::shared_ptr<Communicator>> all;
  for (const auto& member : members) {
    all.emplace_back(new HostCommunicator(slots, member, ""), [watchdog](HostCommunicator* it) { delete it; });
  }
  return all;
}

}  // namespace convoy
