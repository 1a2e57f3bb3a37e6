#include "comm/liveness.h"

#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "comm/process_state.h"
#include "comm/shared_record.h"
#include "engine/error.h"

namespace convoy {
namespace {

constexpr size_t kMessageBytes = 4096;

/// Cuts at the end, between characters of UTF-8.
template <size_t N>
void copy_start(char (&to)[N], std::string_view from) {
  size_t count = std::min(from.size(), N - 1);
  if (count < from.size()) {
    while (count > 0 && (from[count] & 0xC0) == 0x80) --count;
  }
  memcpy(to, from.data(), count);
  memset(to + count, 0, N - count);
}

/// Cuts at the start: of a path the end tells more.
template <size_t N>
void copy_end(char (&to)[N], std::string_view from) {
  if (from.size() < N) return copy_start(to, from);
  size_t first = from.size() - (N - 4);
  while (first < from.size() && (from[first] & 0xC0) == 0x80) ++first;
  memcpy(to, "...", 3);
  memcpy(to + 3, from.data() + first, from.size() - first);
  memset(to + 3 + from.size() - first, 0, N - 3 - (from.size() - first));
}

}  // namespace

struct alignas(64) Liveness::Header {
  std::atomic<uint32_t> published;  ///< slot + 1 of the run's failure; 0: none
  std::atomic<uint32_t> proposed;   ///< slot + 1 of the first failure on this host; 0: none
  std::atomic<uint32_t> arbitrated;
};

struct alignas(64) Liveness::Entry {
  SharedRecord<ProcessRecord> process;
  std::atomic<int64_t> heartbeat_ns;
  std::atomic<uint32_t> finished;
  std::atomic<uint32_t> state;
  std::atomic<uint32_t> remote;
  SharedRecord<ChannelRecord> channels[kChannels];
  SharedRecord<ActivityRecord> activity;
  SharedRecord<DataFileRecord> data_file;
};

/// A failure, written once and then only read. Each rank has its own, so that none is ever half written when it counts.
struct alignas(64) Liveness::Slot {
  static constexpr int kMostAtFault = 63;
  std::atomic<uint32_t> taken;
  std::atomic<uint32_t> written;
  int32_t at_fault_count;
  int32_t at_fault[kMostAtFault];
  char message[kMessageBytes];
};

int64_t monotonic_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000'000'000LL + now.tv_nsec;
}

size_t Liveness::bytes(int ranks) {
  const size_t count = static_cast<size_t>(ranks);
  return sizeof(Header) + count * sizeof(Entry) + (count + 2) * sizeof(Slot);
}

Liveness::Liveness(std::shared_ptr<SharedMemory> memory, int rank, int ranks)
    : memory_(std::move(memory)), rank_(rank), ranks_(ranks) {
  CONVOY_CHECK(rank >= kObserver && rank < ranks, "liveness table: rank {} is none of {} ranks", rank, ranks);
  CONVOY_CHECK(memory_->bytes() >= bytes(ranks), "liveness table of {} ranks: {} bytes given, {} needed", ranks,
               memory_->bytes(), bytes(ranks));
  char* base = static_cast<char*>(memory_->data());
  header_ = reinterpret_cast<Header*>(base);
  entries_ = reinterpret_cast<Entry*>(base + sizeof(Header));
  slots_ = reinterpret_cast<Slot*>(base + sizeof(Header) + static_cast<size_t>(ranks) * sizeof(Entry));
  if (rank == kObserver) return;
  beat();
  ProcessRecord process;
  process.pid = getpid();
  process.start_time = process_state(process.pid).start_time;
  process.pid_namespace = pid_namespace();
  gethostname(process.host, sizeof process.host - 1);
  entries_[rank].process.write(process);
}

uint64_t Liveness::enter(Channel channel, std::string_view name) {
  ChannelRecord next;
  next.waiting = 1;
  next.since_ns = monotonic_ns();
  copy_start(next.name, name);
  entries_[rank_].channels[static_cast<int>(channel)].update([&](ChannelRecord& record) {
    next.number = record.number + 1;
    record = next;
  });
  return next.number;
}

void Liveness::leave(Channel channel) {
  const int64_t now = monotonic_ns();
  entries_[rank_].channels[static_cast<int>(channel)].update([&](ChannelRecord& record) {
    record.waiting = 0;
    record.since_ns = now;
  });
}

void Liveness::set_activity(std::string_view what) {
  ActivityRecord record;
  record.since_ns = monotonic_ns();
  copy_start(record.what, what);
  entries_[rank_].activity.update([&](ActivityRecord& last) {
    record.number = last.number + 1;
    last = record;
  });
}

void Liveness::set_data_file(std::string_view file) {
  DataFileRecord record;
  copy_end(record.file, file);
  entries_[rank_].data_file.write(record);
}

void Liveness::leave_run() {
  entries_[rank_].finished.store(1, std::memory_order_release);
}

uint32_t Liveness::write_slot(int index, const Failure& failure) {
  Slot& slot = slots_[index];
  if (slot.taken.exchange(1, std::memory_order_acq_rel) == 0) {
    copy_start(slot.message, failure.message);
    slot.at_fault_count = static_cast<int32_t>(std::min<size_t>(failure.at_fault.size(), Slot::kMostAtFault));
    std::copy_n(failure.at_fault.begin(), slot.at_fault_count, slot.at_fault);
    slot.written.store(1, std::memory_order_release);
  } else {  // another thread of this process is at it
    while (slot.written.load(std::memory_order_acquire) == 0) std::this_thread::yield();
  }
  return static_cast<uint32_t>(index) + 1;
}

void Liveness::publish_slot(uint32_t slot_plus_one) {
  uint32_t none = 0;
  header_->published.compare_exchange_strong(none, slot_plus_one, std::memory_order_acq_rel);
}

void Liveness::fail(const std::string& message, int at_fault) {
  Failure failure{message, {}};
  if (at_fault >= 0) failure.at_fault.push_back(at_fault);
  fail(failure);
}

void Liveness::fail(const Failure& failure) {
  if (failed()) return;
  uint32_t first = 0;
  const uint32_t own = write_slot(rank_ == kObserver ? ranks_ + 1 : rank_, failure);
  if (header_->proposed.compare_exchange_strong(first, own, std::memory_order_acq_rel)) first = own;
  const int64_t end = monotonic_ns() + static_cast<int64_t>(kArbitrationSeconds * 1e9);
  while (header_->arbitrated.load(std::memory_order_acquire) != 0 && !failed() && monotonic_ns() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  publish_slot(first);
}

bool Liveness::failed() const {
  return header_->published.load(std::memory_order_acquire) != 0;
}

std::string Liveness::failure() const {
  const uint32_t published = header_->published.load(std::memory_order_acquire);
  return published == 0 ? std::string() : std::string(slots_[published - 1].message);
}

bool Liveness::at_fault(int rank) const {
  const uint32_t published = header_->published.load(std::memory_order_acquire);
  if (published == 0) return false;
  const Slot& slot = slots_[published - 1];
  return std::find(slot.at_fault, slot.at_fault + slot.at_fault_count, rank) != slot.at_fault + slot.at_fault_count;
}

bool Liveness::peer_is_gone() const {
  const uint64_t own_namespace = pid_namespace();
  for (int rank = 0; rank < ranks_; ++rank) {
    const ProcessRecord process = entries_[rank].process.read();
    const bool remote = entries_[rank].remote.load(std::memory_order_relaxed) != 0;
    if (remote || process.pid == 0 || process.pid_namespace != own_namespace) continue;
    const bool ended = process_state(process.pid, process.start_time).ended();
    // Looked at after the process: what an ended process has written is final.
    if (ended && entries_[rank].finished.load(std::memory_order_acquire) == 0) return true;
  }
  return false;
}

RankRecord Liveness::record(int rank) const {
  const Entry& entry = entries_[rank];
  RankRecord record;
  record.process = entry.process.read();
  record.heartbeat_ns = entry.heartbeat_ns.load(std::memory_order_relaxed);
  record.finished = entry.finished.load(std::memory_order_acquire);
  record.state = entry.state.load(std::memory_order_relaxed);
  record.remote = entry.remote.load(std::memory_order_relaxed);
  for (int channel = 0; channel < kChannels; ++channel) record.channels[channel] = entry.channels[channel].read();
  record.activity = entry.activity.read();
  record.data_file = entry.data_file.read();
  return record;
}

void Liveness::mirror(int rank, const RankRecord& record) {
  Entry& entry = entries_[rank];
  entry.remote.store(record.remote, std::memory_order_relaxed);
  entry.heartbeat_ns.store(record.heartbeat_ns, std::memory_order_relaxed);
  for (int channel = 0; channel < kChannels; ++channel) entry.channels[channel].write(record.channels[channel]);
  entry.activity.write(record.activity);
  entry.data_file.write(record.data_file);
  entry.state.store(record.state, std::memory_order_relaxed);
  entry.finished.store(record.finished, std::memory_order_release);
  entry.process.write(record.process);
}

void Liveness::beat() {
  entries_[rank_].heartbeat_ns.store(monotonic_ns(), std::memory_order_relaxed);
}

void Liveness::set_state(int rank, char letter) {
  entries_[rank].state.store(static_cast<unsigned char>(letter), std::memory_order_relaxed);
}

void Liveness::set_arbitrated(bool arbitrated) {
  header_->arbitrated.store(arbitrated ? 1 : 0, std::memory_order_release);
}

std::optional<Failure> Liveness::proposal() const {
  const uint32_t proposed = header_->proposed.load(std::memory_order_acquire);
  if (proposed == 0) return std::nullopt;
  const Slot& slot = slots_[proposed - 1];
  return Failure{slot.message, {slot.at_fault, slot.at_fault + slot.at_fault_count}};
}

void Liveness::publish(const Failure& failure) {
  if (!failed()) publish_slot(write_slot(ranks_, failure));
}

}  // namespace convoy
