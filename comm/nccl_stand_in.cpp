#include "comm/nccl_stand_in.h"

#include <unistd.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <vector>

#include <fmt/format.h>

#include "comm/reduce.h"
#include "comm/shared_memory.h"
#include "comm/slot_exchange.h"
#include "engine/error.h"
#include "kernels/emulator/emulator.h"

namespace convoy::nccl {
namespace {

constexpr size_t kSlotBytes = size_t{128} << 10;  // a longer message goes in pieces

/// At the head of a communicator's memory; zeroed at first.
struct Shared {
  std::atomic<int32_t> joined;
};

size_t memory_bytes(int ranks) {
  return 64 + SlotExchange::bytes(ranks, kSlotBytes);
}

/// A communicator as one rank has it. Queued collectives hold it, too, so it outlives its handle.
struct State {
  std::string name;
  int rank = 0, ranks = 1;
  std::shared_ptr<SharedMemory> memory;
  std::unique_ptr<SlotExchange> exchange;
  std::string label;
  uint64_t called = 0;
  std::atomic<uint64_t> next = 0;  ///< of the collectives that were called: the one that runs next
  std::atomic<bool> aborted = false;
  std::atomic<ncclResult_t> result = ncclInProgress;
  std::mutex lock;
  std::string text;  ///< of the failure

  Shared& shared() const { return *static_cast<Shared*>(memory->data()); }
  void fail(ncclResult_t what, const std::string& message) {
    const std::lock_guard guard(lock);
    if (text.empty()) text = message;
    result = what;
  }
};

struct Collective {
  CollectiveKind kind;
  int detail;  ///< operation or root
  const void* send;
  void* receive;
  size_t bytes;  ///< that this rank puts in
  std::string label;
  uint64_t number;
};

template <class T>
void reduce(const SlotExchange& exchange, int ranks, int op, void* to, size_t bytes) {
  std::memcpy(to, exchange.part(0), bytes);
  for (int rank = 1; rank < ranks; ++rank) {
    const T* part = reinterpret_cast<const T*>(exchange.part(rank));
    if (op == ncclSum)
      combine(static_cast<T*>(to), part, bytes / sizeof(T), Sum());
    else
      combine(static_cast<T*>(to), part, bytes / sizeof(T), Maximum());
  }
}

void take(const State& state, const Collective& c, size_t offset, size_t size) {
  char* to = static_cast<char*>(c.receive) + offset;
  switch (c.kind) {
    case CollectiveKind::kAllReduceFloat:
      return reduce<float>(*state.exchange, state.ranks, c.detail, to, size);
    case CollectiveKind::kAllReduceInt64:
      return reduce<int64_t>(*state.exchange, state.ranks, c.detail, to, size);
    case CollectiveKind::kAllGather:
      for (int rank = 0; rank < state.ranks; ++rank)
        std::memcpy(to + static_cast<size_t>(rank) * c.bytes, state.exchange->part(rank), size);
      return;
    default:
      std::memcpy(to, state.exchange->part(c.detail), size);
  }
}

// Empty when all ranks have come to the same collective.
std::string difference(const State& state) {
  const CollectiveHeader& first = state.exchange->header(0);
  for (int rank = 1; rank < state.ranks; ++rank) {
    const CollectiveHeader& other = state.exchange->header(rank);
    if (!(other == first))
      return fmt::format("ranks are in different collectives: rank 0 is in {}, rank {} in {}", describe(first), rank,
                         describe(other));
  }
  return {};
}

/// What the stream runs: one call after the other until the collective is complete. Never blocks.
class Steps {
 public:
  Steps(std::shared_ptr<State> state, Collective collective)
      : state_(std::move(state)), collective_(std::move(collective)) {}

  bool operator()() {
    State& state = *state_;
    const Collective& c = collective_;
    for (;;) {
      if (state.aborted) return true;
      if (state.result != ncclSuccess || state.next != c.number) return false;
      const size_t size = std::min(kSlotBytes, c.bytes - offset_);
      if (!put_) {
        std::byte* slot = state.exchange->begin();
        if (offset_ == 0) state.exchange->header() = CollectiveHeader(c.kind, c.detail, c.bytes, c.label);
        if (size > 0) std::memcpy(slot, static_cast<const char*>(c.send) + offset_, size);
        state.exchange->arrive();
        put_ = true;
      }
      if (!state.exchange->full()) return false;
      if (offset_ == 0)
        if (const std::string fault = difference(state); !fault.empty()) {
          state.fail(ncclInvalidUsage, fault);
          return false;
        }
      if (size > 0) take(state, c, offset_, size);
      put_ = false;
      offset_ += size;
      if (offset_ < c.bytes) continue;
      ++state.next;
      return true;
    }
  }

 private:
  std::shared_ptr<State> state_;
  Collective collective_;
  size_t offset_ = 0;
  bool put_ = false;
};

// Calls between ncclGroupStart and ncclGroupEnd.
thread_local int group_depth = 0;
thread_local std::vector<std::function<void()>> group;

std::string& last_error() {
  static thread_local std::string text;
  return text;
}

ncclResult_t invalid(const std::string& what) {
  last_error() = what;
  return ncclInvalidArgument;
}

// Rank 0 makes the memory, the others look for it until it is there.
void try_to_join(State& state) {
  if (state.result != ncclInProgress) return;
  if (!state.memory) {
    try {
      state.memory = state.rank == 0 ? SharedMemory::create(state.name, memory_bytes(state.ranks))
                                     : SharedMemory::open(state.name, memory_bytes(state.ranks));
    } catch (const Error& e) {
      const std::lock_guard guard(state.lock);
      state.text = e.what();
      if (state.rank == 0) state.result = ncclSystemError;
      return;
    }
    state.exchange = std::make_unique<SlotExchange>(static_cast<std::byte*>(state.memory->data()) + 64, state.rank,
                                                    state.ranks, kSlotBytes);
    ++state.shared().joined;
  }
  if (state.shared().joined < state.ranks) {
    const std::lock_guard guard(state.lock);
    state.text = fmt::format("{} of {} ranks have joined", state.shared().joined.load(), state.ranks);
    return;
  }
  state.memory->unlink();
  const std::lock_guard guard(state.lock);
  state.text.clear();
  state.result = ncclSuccess;
}

}  // namespace

struct ncclComm {
  std::shared_ptr<State> state;
};

namespace {

ncclResult_t get_unique_id(ncclUniqueId* id) {
  static std::atomic<int> made = 0;
  std::memset(id, 0, sizeof *id);
  copy_text(id->internal, sizeof id->internal, fmt::format("convoy-nccl-{}-{}", getpid(), made++));
  return ncclSuccess;
}

ncclResult_t init_rank(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t* config) {
  if (ranks < 1 || rank < 0 || rank >= ranks) return invalid(fmt::format("rank {} of {}", rank, ranks));
  if (config->blocking != 0) return invalid("the stand-in has non-blocking communicators only");
  auto state = std::make_shared<State>();
  state->name = id.internal;
  state->rank = rank;
  state->ranks = ranks;
  *comm = new ncclComm{state};
  try_to_join(*state);
  return state->result;
}

ncclResult_t get_async_error(ncclComm_t comm, ncclResult_t* error) {
  try_to_join(*comm->state);
  *error = comm->state->result;
  return ncclSuccess;
}

ncclResult_t abort(ncclComm_t comm) {
  comm->state->aborted = true;
  delete comm;
  return ncclSuccess;
}

ncclResult_t destroy(ncclComm_t comm) {
  delete comm;
  return ncclSuccess;
}

ncclResult_t call(ncclComm_t comm, cudaStream_t stream, CollectiveKind kind, int detail, const char* function,
                  const void* send, void* receive, size_t bytes) {
  const std::shared_ptr<State>& state = comm->state;
  if (state->result == ncclInProgress) return invalid(fmt::format("{} before the communicator is ready", function));
  if (state->result != ncclSuccess) return state->result;
  if (bytes > 0 && (!send || !receive))
    return invalid(fmt::format("{} of {} bytes at a null pointer", function, bytes));
  Collective collective{kind, detail, send, receive, bytes, state->label, state->called++};
  const size_t received = kind == CollectiveKind::kAllGather ? bytes * static_cast<size_t>(state->ranks) : bytes;
  auto enqueue = [=, name = fmt::format("{} '{}' of {} bytes", function, state->label, bytes)] {
    emulator::enqueue_steps(stream, Steps(state, collective), {{send, bytes, false}, {receive, received, true}}, name);
  };
  if (group_depth > 0) {
    group.push_back(std::move(enqueue));
    return ncclSuccess;
  }
  try {
    enqueue();
  } catch (const std::exception& e) {
    last_error() = e.what();
    return ncclUnhandledCudaError;
  }
  return ncclSuccess;
}

ncclResult_t all_reduce(const void* send, void* receive, size_t count, ncclDataType_t type, ncclRedOp_t op,
                        ncclComm_t comm, cudaStream_t stream) {
  if ((type != ncclFloat32 && type != ncclInt64) || (op != ncclSum && op != ncclMax))
    return invalid("ncclAllReduce of another type or operation than the stand-in knows");
  const bool floats = type == ncclFloat32;
  return call(comm, stream, floats ? CollectiveKind::kAllReduceFloat : CollectiveKind::kAllReduceInt64, op,
              "ncclAllReduce", send, receive, count * (floats ? sizeof(float) : sizeof(int64_t)));
}

size_t size_of(ncclDataType_t type) {
  return type == ncclInt8 ? 1 : type == ncclFloat32 ? sizeof(float) : sizeof(int64_t);
}

ncclResult_t all_gather(const void* send, void* receive, size_t count, ncclDataType_t type, ncclComm_t comm,
                        cudaStream_t stream) {
  return call(comm, stream, CollectiveKind::kAllGather, 0, "ncclAllGather", send, receive, count * size_of(type));
}

ncclResult_t broadcast(const void* send, void* receive, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                       cudaStream_t stream) {
  if (root < 0 || root >= comm->state->ranks) return invalid(fmt::format("ncclBroadcast from rank {}", root));
  return call(comm, stream, CollectiveKind::kBroadcast, root, "ncclBroadcast", send, receive, count * size_of(type));
}

ncclResult_t group_start() {
  ++group_depth;
  return ncclSuccess;
}

ncclResult_t group_end() {
  if (group_depth == 0) return invalid("ncclGroupEnd without ncclGroupStart");
  if (--group_depth > 0) return ncclSuccess;
  const auto calls = std::move(group);
  group.clear();
  try {
    for (const auto& enqueue : calls) enqueue();
  } catch (const std::exception& e) {
    last_error() = e.what();
    return ncclUnhandledCudaError;
  }
  return ncclSuccess;
}

const char* get_error_string(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclUnhandledCudaError:
      return "unhandled CUDA error";
    case ncclSystemError:
      return "unhandled system error";
    case ncclInternalError:
      return "internal error";
    case ncclInvalidArgument:
      return "invalid argument";
    case ncclInvalidUsage:
      return "invalid usage";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    case ncclInProgress:
      return "operation in progress";
  }
  return "unknown error";
}

const char* get_last_error(ncclComm_t comm) {
  if (comm) {
    const std::lock_guard guard(comm->state->lock);
    if (!comm->state->text.empty()) last_error() = comm->state->text;
  }
  return last_error().c_str();
}

void label(ncclComm_t comm, const char* name) {
  comm->state->label = name;
}

}  // namespace

const NcclApi& nccl_stand_in() {
  static constexpr NcclApi api = {
      get_unique_id, init_rank, get_async_error,  abort,          destroy, all_reduce, all_gather, broadcast,
      group_start,   group_end, get_error_string, get_last_error, label};
  return api;
}

}  // namespace convoy::nccl
