// The checker of the checked flavour. Every 4-byte granule of device and shared memory has a shadow cell: which bytes
// were written, the last write, and up to two reads since. From these it finds out-of-bounds and wild accesses, reads
// of memory never written, and data races within a warp, a block and a grid. Blocks run one after another on one OS
// thread, so every report can be reproduced.
//
// What orders two accesses: program order of a thread; block barriers (counted as epochs); __syncwarp (a vector clock
// per thread over the 32 lanes of its warp); between blocks, a __threadfence followed by an atomic in one block and a
// later atomic on the same address in the other; between pieces of work (launches, copies) streams, events and waits of
// the host, as vector clocks over streams say, whatever order they were executed in.
#include "kernels/emulator/check.h"

#include <link.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <unordered_map>

#include "kernels/emulator/streams.h"

namespace convoy::emulator {
namespace {

constexpr size_t kGranule = 4;

struct Access {
  uint32_t block = 0;  // number of the block's run since program start; 0: none
  uint32_t clock = 0, pc = 0;
  uint16_t epoch = 0, thread = 0;
  uint8_t bytes = 0;  // one bit per byte of the granule
  uint8_t atomic = 0;
};
struct Cell {
  Access write, reads[2];
  uint8_t initialised = 0;  // one bit per byte
};
struct Region {
  const char* base;
  size_t size;
  bool is_shared;
  std::vector<Cell> cells;
};
struct Range {
  uintptr_t low, high;
};
/// A piece of work that has run: a launch or a copy, which counts as one block.
struct PastWork {
  uint32_t first_run, stream, position;
  std::string name;
};

std::map<const char*, std::unique_ptr<Region>, std::greater<>> regions;  // lower_bound: the one at or below an address
Region* last_found;
uint32_t block_run, first_run_of_grid = 1;
uint32_t clocks[kMaxThreads][32];
bool clocks_used = true, fenced, reporting;
std::unordered_map<const void*, std::vector<uint32_t>> released;  // block runs that fenced before an atomic there
std::vector<uint32_t> acquired;  // per block run of this grid: the last run that is ordered after it
std::vector<Range>
    host_ranges;  // loaded modules, this OS thread's stack and TLS: kernel arguments, constants, threadIdx
uintptr_t program_base;
std::vector<PastWork> past;   // by first_run; the last is the current one
Clock now;                    // what comes before the current work
Clock begun;                  // per stream: the last position that ran
bool all_come_before = true;  // all of `past`

int add_module(dl_phdr_info* info, size_t, void*) {
  if (!program_base) program_base = info->dlpi_addr;
  for (int k = 0; k < info->dlpi_phnum; ++k) {
    const auto& header = info->dlpi_phdr[k];
    const uintptr_t low = info->dlpi_addr + header.p_vaddr;
    if (header.p_type == PT_LOAD) host_ranges.push_back({low, low + header.p_memsz});
  }
  return 0;
}

void find_host_ranges() {
  host_ranges.clear();
  dl_iterate_phdr(add_module, nullptr);
  pthread_attr_t attributes;
  void* low;
  size_t bytes;
  pthread_getattr_np(pthread_self(), &attributes);
  pthread_attr_getstack(&attributes, &low, &bytes);
  pthread_attr_destroy(&attributes);
  host_ranges.push_back({reinterpret_cast<uintptr_t>(low), reinterpret_cast<uintptr_t>(low) + bytes});
  const auto tls = reinterpret_cast<uintptr_t>(__builtin_thread_pointer());
  host_ranges.push_back({tls - 65536, tls + 4096});
}

// "file:line" of an instruction of this program, "?" where binutils are not installed.
std::string source(uint32_t pc) {
  char command[256], out[512] = "?";
  snprintf(command, sizeof command, "addr2line -s -e /proc/%d/exe 0x%x 2>/dev/null", getpid(), pc - 1);
  if (FILE* f = popen(command, "r")) {
    if (fgets(out, sizeof out, f)) out[strcspn(out, "\n")] = 0;
    pclose(f);
  }
  return out;
}

const PastWork& work_of(uint32_t run) {
  const auto after = std::upper_bound(past.begin(), past.end(), run,
                                      [](uint32_t r, const PastWork& work) { return r < work.first_run; });
  return *std::prev(after);
}

bool comes_before(uint32_t run) {
  if (run == 0 || all_come_before) return true;
  const PastWork& work = work_of(run);
  return work.stream < now.size() && now[work.stream] >= work.position;
}

std::string name_of(const Access& a) {
  if (a.block < first_run_of_grid) return "the " + work_of(a.block).name + (a.pc ? " (" + source(a.pc) + ")" : "");
  return "thread " + std::to_string(a.thread) + (a.block == block_run ? "" : " of another block") + " (" +
         source(a.pc) + ")";
}

// How the race of the running work with an earlier access is to be called.
std::string race_with(const Access& earlier, const char* where) {
  if (earlier.block >= first_run_of_grid) return std::string("data race") + where;
  return std::string("data race between streams") + where + ", no event or wait stands between them";
}

[[noreturn]] void report(const std::string& what, uintptr_t pc) {
  reporting = true;
  fail(what + "\n  at " + source(static_cast<uint32_t>(pc - program_base)));
}

Region* find(const char* p) {
  if (last_found && p >= last_found->base && p < last_found->base + last_found->size) return last_found;
  const auto it = regions.lower_bound(p);
  if (it == regions.end() || p >= it->first + it->second->size) return nullptr;
  return last_found = it->second.get();
}

// Whether the running thread comes after an earlier access.
bool ordered(const Access& earlier, const Block& b) {
  if (earlier.block < first_run_of_grid) return comes_before(earlier.block);
  if (earlier.block != block_run) {
    const size_t k = earlier.block - first_run_of_grid;
    return k < acquired.size() && acquired[k] == block_run;
  }
  const int self = b.current;
  if (earlier.thread == self || earlier.epoch != static_cast<uint16_t>(b.epoch)) return true;
  return earlier.thread / 32 == self / 32 && clocks[self][earlier.thread % 32] >= earlier.clock;
}

// An access to no region: fine on the fiber's own stack and in the host ranges, else a fault.
void check_outside(const Block& b, const char* p, size_t bytes, const char* verb, uintptr_t pc) {
  constexpr size_t kNear = 4096;
  const Fiber& fiber = b.fibers[b.threads[b.current].fiber];
  if (p >= fiber.stack && p < fiber.stack + kStackBytes) return;
  const auto address = reinterpret_cast<uintptr_t>(p);
  for (const auto& range : host_ranges)
    if (address >= range.low && address < range.high) return;
  std::string hint = " of memory that is not the device's";
  const auto below = regions.lower_bound(p);
  if (p >= b.arena && p < b.arena + kArenaBytes) {
    hint = " outside every shared array";
  } else if (below != regions.end() && static_cast<size_t>(p - below->first) - below->second->size < kNear) {
    hint = ", " + std::to_string(static_cast<size_t>(p - below->first) - below->second->size) +
           " bytes after the end of an allocation of " + std::to_string(below->second->size) + " bytes";
  } else {
    for (const auto& [base, region] : regions)
      if (base > p && static_cast<size_t>(base - p) < kNear)
        hint = ", " + std::to_string(base - p) + " bytes before an allocation of " + std::to_string(region->size) +
               " bytes";
  }
  report("out-of-bounds " + std::string(verb) + " of " + std::to_string(bytes) + " bytes" + hint, pc);
}

// Keeps two readers, of two warps if there are: enough to convict any later unordered write.
void remember_read(Cell& cell, const Access& a) {
  const Access& first = cell.reads[0];
  const bool keep_first = first.block < first_run_of_grid
                              ? !comes_before(first.block)
                              : first.block == block_run && first.epoch == a.epoch && first.thread != a.thread;
  const Access& second = cell.reads[1];
  if (keep_first && second.block == block_run && second.epoch == a.epoch && first.thread / 32 != second.thread / 32)
    return;
  cell.reads[keep_first] = a;
}

void check_cell(Cell& cell, const Access& a, bool write, const Block& b, const char* where, uintptr_t pc) {
  const char* verb = write ? "write" : "read";
  if ((!write || a.atomic) && (cell.initialised & a.bytes) != a.bytes)
    report(std::string("read of uninitialised memory") + where, pc);
  auto races = [&](const Access& earlier) {
    return (earlier.bytes & a.bytes) && !(a.atomic && earlier.atomic) && !ordered(earlier, b);
  };
  if (races(cell.write))
    report(race_with(cell.write, where) + ": this " + verb + " and an unordered write by " + name_of(cell.write), pc);
  if (!write) return remember_read(cell, a);
  for (const auto& read : cell.reads)
    if (races(read)) report(race_with(read, where) + ": this write and an unordered read by " + name_of(read), pc);
  cell.write = a;
  cell.initialised |= a.bytes;
  if (!a.atomic) cell.reads[0] = cell.reads[1] = Access{};
}

}  // namespace

void check_access(const void* address, size_t bytes, bool write, bool atomic, uintptr_t pc) {
  Block* b = running;
  if (!b || b->current < 0 || reporting) return;  // host code
  const char* p = static_cast<const char*>(address);
  const char* verb = write ? "write" : "read";
  Region* region = find(p);
  if (!region) return check_outside(*b, p, bytes, verb, pc);
  if (p + bytes > region->base + region->size)
    report("out-of-bounds " + std::string(verb) + " of " + std::to_string(bytes) +
               " bytes across the end of an allocation of " + std::to_string(region->size),
           pc);
  const char* where = region->is_shared ? " in shared memory" : " in global memory";
  const size_t offset = static_cast<size_t>(p - region->base);
  Access self;
  self.block = block_run;
  self.clock = clocks[b->current][b->current % 32];
  self.pc = static_cast<uint32_t>(pc - program_base);
  self.epoch = static_cast<uint16_t>(b->epoch);
  self.thread = static_cast<uint16_t>(b->current);
  self.atomic = atomic;
  for (size_t g = offset / kGranule; g <= (offset + bytes - 1) / kGranule; ++g) {
    const size_t begin = g * kGranule;
    const size_t low = begin < offset ? offset - begin : 0, high = std::min(kGranule, offset + bytes - begin);
    self.bytes = static_cast<uint8_t>(((1u << high) - 1) & ~((1u << low) - 1));
    check_cell(region->cells[g], self, write, *b, where, pc);
  }
}

bool checked() {
  return true;
}

void check_grid_begin() {
  first_run_of_grid = block_run + 1;
  released.clear();
  acquired.clear();
  find_host_ranges();
}

void check_block_begin() {
  ++block_run;
  fenced = reporting = false;
  if (!clocks_used) return;
  std::memset(clocks, 0, sizeof clocks);
  for (int t = 0; t < kMaxThreads; ++t) clocks[t][t % 32] = 1;
  clocks_used = false;
}

void check_warp_sync(unsigned warp, unsigned mask) {
  clocks_used = true;
  uint32_t(*lanes)[32] = clocks + warp * 32;
  uint32_t joined[32] = {};
  for (int i = 0; i < 32; ++i) {
    if (!(mask >> i & 1)) continue;
    for (int k = 0; k < 32; ++k) joined[k] = std::max(joined[k], lanes[i][k]);
  }
  for (int i = 0; i < 32; ++i) {
    if (!(mask >> i & 1)) continue;
    std::memcpy(lanes[i], joined, sizeof joined);
    ++lanes[i][i];
  }
}

void check_range(const void* p, size_t bytes, bool valid, bool written) {
  const char* base = static_cast<const char*>(p);
  last_found = nullptr;
  if (!valid) {  // all regions that begin in it
    if (bytes == 0) return;
    for (auto it = regions.lower_bound(base + bytes - 1); it != regions.end() && it->first >= base;)
      it = regions.erase(it);
    return;
  }
  const bool is_shared = running && base >= running->arena && base < running->arena + kArenaBytes;
  auto region = std::make_unique<Region>(Region{base, bytes, is_shared, {}});
  region->cells.resize(bytes / kGranule + 1);
  if (written)
    for (auto& cell : region->cells) cell.initialised = 0xff;
  regions[base] = std::move(region);
}

void check_work_begin(const Work& work) {
  now = work.clock;
  const uint32_t stream = work.stream->number;
  if (begun.size() < now.size()) begun.resize(now.size());
  all_come_before = true;
  for (size_t s = 0; s < begun.size(); ++s) {
    if (s == stream) continue;
    all_come_before &= begun[s] <= (s < now.size() ? now[s] : 0);
  }
  begun[stream] = std::max(begun[stream], work.position);
  if (!work.step) return;
  past.push_back({block_run + 1, stream, work.position, describe(work)});
  first_run_of_grid = block_run + 1;
}

void check_host_access(const Touched& touched) {
  const char* begin = static_cast<const char*>(touched.data);
  Region* region = find(begin);
  if (!region) return;
  ++block_run;  // a block of one thread
  first_run_of_grid = block_run;
  const size_t offset = static_cast<size_t>(begin - region->base);
  const size_t end = std::min(offset + touched.bytes, region->size);
  Access self;
  self.block = block_run;
  for (size_t g = offset / kGranule; g * kGranule < end; ++g) {
    const size_t first = g * kGranule;
    const size_t low = first < offset ? offset - first : 0, high = std::min(kGranule, end - first);
    self.bytes = static_cast<uint8_t>(((1u << high) - 1) & ~((1u << low) - 1));
    Cell& cell = region->cells[g];
    const auto races = [&](const Access& earlier) {
      return (earlier.bytes & self.bytes) && !comes_before(earlier.block);
    };
    const Access* other = races(cell.write) ? &cell.write : nullptr;
    if (touched.write)
      for (const auto& read : cell.reads)
        if (races(read)) other = &read;
    if (other)
      throw Error(race_with(*other, " in global memory") + ": the " + past.back().name + " and " + name_of(*other));
    if (!touched.write) {
      remember_read(cell, self);
      continue;
    }
    cell.write = self;
    cell.initialised |= self.bytes;
    cell.reads[0] = cell.reads[1] = Access{};
  }
}

void note_atomic(const void* p, size_t bytes) {
  if (reinterpret_cast<uintptr_t>(p) % bytes) fail("misaligned atomic");
  check_access(p, bytes, true, true, reinterpret_cast<uintptr_t>(__builtin_return_address(0)));
  auto& runs = released[p];
  if (acquired.size() <= block_run - first_run_of_grid) acquired.resize(block_run - first_run_of_grid + 64);
  for (const uint32_t run : runs) acquired[run - first_run_of_grid] = block_run;
  if (fenced && (runs.empty() || runs.back() != block_run)) runs.push_back(block_run);
}

void note_fence() {
  fenced = true;
}

}  // namespace convoy::emulator
