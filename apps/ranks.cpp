#include "apps/ranks.h"

#include <unistd.h>

#include <algorithm>
#include <map>
#include <new>

#include "apps/model_state.h"
#include "comm/agreement.h"
#include "engine/error.h"
#include "engine/version.h"
#include "io/checksum.h"
#include "io/image.h"
#include "kernels/isa.h"

namespace convoy {
namespace {

constexpr const char* kOutOfMemory = "out of memory; a smaller batch or crop needs less (convoy plan shows how much)";

std::string host_name() {
  char name[256] = "";
  ::gethostname(name, sizeof name - 1);
  return name;
}

/// `value` of every rank, in the order of ranks.
template <class T>
std::vector<T> gather(Communicator& communicator, const T& value, const std::string& name) {
  std::vector<T> all(static_cast<size_t>(communicator.size()));
  communicator.all_gather(&value, sizeof value, all.data(), name);
  return all;
}

/// Says so to all ranks, unless they are ending already, and returns the message that counts.
std::string end_all(Communicator& communicator, const std::string& what) {
  std::string shared = communicator.failure();
  if (!shared.empty()) return shared;
  const std::string own = fmt::format("rank {} on {}: {}", communicator.rank(), host_name(), what);
  communicator.fail_all(own);
  shared = communicator.failure();
  return shared.empty() ? own : shared;
}

}  // namespace

void run_rank(Communicator& communicator, const std::function<void()>& part) {
  if (communicator.size() == 1) return part();
  try {
    part();
  } catch (const std::bad_alloc&) {
    throw Error(end_all(communicator, kOutOfMemory));
  } catch (const std::exception& error) {
    throw Error(end_all(communicator, error.what()));
  }
}

void fail_together(Communicator& communicator, const std::string& message) {
  communicator.fail_all(message);
  throw Error(message);
}

std::string broadcast_text(Communicator& communicator, std::string text, const std::string& name) {
  auto bytes = static_cast<int64_t>(text.size());
  communicator.broadcast(&bytes, sizeof bytes, 0, name + " (length)");
  text.resize(static_cast<size_t>(bytes));
  if (bytes > 0) communicator.broadcast(text.data(), text.size(), 0, name);
  return text;
}

uint32_t any_rank(Communicator& communicator, uint32_t flags, const std::string& name) {
  uint32_t all = 0;
  for (const uint32_t of_rank : gather(communicator, flags, name)) all |= of_rank;
  return all;
}

void check_same(Communicator& communicator, const std::string& what, const std::string& text) {
  if (communicator.size() == 1) return;
  try {
    check_same_on_all_ranks(communicator, what, text);
  } catch (const Error& error) {
    fail_together(communicator, error.what());
  }
}

void check_same_start(Communicator& communicator, const Config& config) {
  if (communicator.size() == 1) return;
  const std::vector<uint8_t> program = read_file_bytes("/proc/self/exe");
  check_same(communicator, "program",
             fmt::format("version {}, checksum {:016x}", kVersion, crc64(program.data(), program.size())));
  // Other kernels add up in another order: ranks of different bits would drift apart.
  check_same(communicator, "instruction set (CONVOY_ISA=base is one that all have)", cpu::isa_name());
  check_same(communicator, "configuration", dump_yaml(config));
}

void check_same_state(Communicator& communicator, ParamStore& store, int64_t step) {
  if (communicator.size() == 1) return;
  std::string text;
  for (const NamedTensor& tensor : state_tensors(store))
    text += fmt::format("{} checksum {:016x}\n", tensor.name, crc64(tensor.values(), tensor.bytes()));
  check_same(communicator, fmt::format("state at step {}", step), text);
}

void share_statistics(Communicator& communicator, ParamStore& store) {
  if (communicator.size() == 1) return;
  std::vector<std::pair<char*, size_t>> parts;
  size_t bytes = 0;
  for (Buffer& buffer : store.buffers()) {
    const Tensor& value = buffer.value;
    parts.emplace_back(static_cast<char*>(value.view().data),
                       static_cast<size_t>(value.shape().count()) * dtype_size(value.dtype()));
    bytes += parts.back().second;
  }
  std::vector<char> packed(bytes);
  char* at = packed.data();
  for (const auto& [data, size] : parts) at = std::copy_n(data, size, at);
  communicator.broadcast(packed.data(), packed.size(), 0, "running statistics of rank 0");
  const char* from = packed.data();
  for (const auto& [data, size] : parts) {
    std::copy_n(from, size, data);
    from += size;
  }
}

std::string division_text(const BatchPlan& plan, int64_t global_batch, int ranks) {
  constexpr int kListed = 8;
  std::vector<int64_t> counts;
  std::map<int64_t, int, std::greater<>> ranks_of;
  for (int rank = 0; rank < ranks; ++rank) {
    counts.push_back(plan.shard(global_batch, rank, ranks).count);
    ++ranks_of[counts.back()];
  }
  if (ranks <= kListed) return fmt::format("{}", fmt::join(counts, "+"));
  std::vector<std::string> parts;
  for (const auto& [count, of] : ranks_of) parts.push_back(fmt::format("{} on each of {} ranks", count, of));
  return fmt::format("{}", fmt::join(parts, ", "));
}

}  // namespace convoy
