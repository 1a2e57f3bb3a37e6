// Launch checks, the walk over a grid's blocks, and the shared memory of a block.
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "kernels/emulator/address_sanitizer.h"
#include "kernels/emulator/streams.h"

__thread convoy::emulator::Index threadIdx, blockIdx, blockDim, gridDim;

namespace convoy::emulator {

Options options;
Stats stats;
std::recursive_mutex check_lock;

__attribute__((weak)) bool checked() {
  return false;
}
__attribute__((weak)) void check_grid_begin() {}
__attribute__((weak)) void check_block_begin() {}
__attribute__((weak)) void check_warp_sync(unsigned, unsigned) {}
__attribute__((weak)) void check_range(const void*, size_t, bool, bool) {}
__attribute__((weak)) void check_work_begin(const Work&) {}
__attribute__((weak)) void check_host_access(const Touched&) {}
__attribute__((weak)) void note_atomic(const void*, size_t) {}
__attribute__((weak)) void note_fence() {}

constexpr size_t kGap = 64;  // unusable bytes before every shared array

static void* carve(Block& b, size_t bytes) {
  char* p = b.arena + b.arena_used + kGap;
  const size_t used = b.arena_used + kGap + ((bytes + 63) & ~size_t{63});
  if (used > kArenaBytes) return nullptr;
  b.arena_used = used;
  ASAN_UNPOISON_MEMORY_REGION(p, bytes);
  std::memset(p, 0xff, bytes);  // NaN as float, double, half and bfloat16; -1 as an integer
  check_range(p, bytes, true, false);
  return p;
}

void* dynamic_shared() {
  if (!running->dynamic_bytes) fail("kernel uses dynamic shared memory but was launched with none");
  return running->arena + kGap;
}

void* static_shared(const void* site, size_t bytes, size_t align) {
  Block& b = *running;
  for (const auto& s : b.sites)
    if (s.id == site) return s.data;
  b.static_used = ((b.static_used + align - 1) & ~(align - 1)) + bytes;
  const size_t total = b.static_used + b.dynamic_bytes;
  if (b.static_used > options.max_static_shared)
    fail("static shared memory: " + std::to_string(b.static_used) + " bytes, over the limit of " +
         std::to_string(options.max_static_shared));
  if (total > options.max_shared)
    fail("shared memory, static + dynamic: " + std::to_string(total) + " bytes, over the limit of " +
         std::to_string(options.max_shared));
  void* p = carve(b, bytes);
  if (!p) fail("shared memory: the gaps between many arrays fill the emulator's arena; raise kArenaBytes");
  b.sites.push_back({site, p});
  return p;
}

static Block& block_of_this_os_thread() {
  static thread_local Block b;
  if (!b.arena) {
    void* arena = mmap(nullptr, kArenaBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (arena == MAP_FAILED) throw Error("emulator: no memory for shared arrays");
    b.arena = static_cast<char*>(arena);
    b.fibers.reserve(kMaxThreads + 8);  // their addresses are kept while threads wait
    ASAN_POISON_MEMORY_REGION(b.arena, kArenaBytes);
  }
  running = &b;
  return b;
}

static void reset(Block& b) {
  b.current = -1;
  b.arrived = b.done = 0;
  b.epoch = 0;
  b.sites.clear();
  b.queue.clear();
  b.hot.clear();
  b.head = 0;
  b.error.clear();
  std::fill(std::begin(b.waiting), std::end(b.waiting), 0u);
  ASAN_POISON_MEMORY_REGION(b.arena, b.arena_used);
  if (b.arena_used) check_range(b.arena, b.arena_used, false, false);
  b.arena_used = b.static_used = 0;
}

// False, with b.error set, when the kernel failed.
static bool run_block(Block& b) {
  reset(b);
  check_block_begin();
  if (b.dynamic_bytes) carve(b, b.dynamic_bytes);
  for (int k = 0; k < b.size; ++k) {
    b.threads[k].state = State::kFresh;
    b.queue.push_back(options.order == Order::kReverse ? b.size - 1 - k : k);
  }
  while (any_ready(b) && b.error.empty()) resume(b, next_thread(b));
  if (b.error.empty() && b.done != b.size) b.error = deadlock(b);
  __atomic_fetch_add(&stats.switches, b.switches, __ATOMIC_RELAXED);
  b.switches = 0;
  b.current = -1;
  if (b.error.empty()) return true;
  b.drop_fibers();  // with whatever was on them: kernels own no resources
  return false;
}

void check_launch(const Grid& launch) {
  const auto& [grid, block, shared_bytes, file, line] = launch;
  std::string faults;
  auto limit = [&](const char* what, size_t value, size_t most) {
    if (value <= most && value != 0) return;
    faults += std::string(faults.empty() ? "" : "; ") + what + " = " + std::to_string(value) +
              (value ? " is over the limit of " + std::to_string(most) : " is zero");
  };
  limit("grid.x", grid.x, 2147483647u);
  limit("grid.y", grid.y, 65535);
  limit("grid.z", grid.z, 65535);
  limit("block.x", block.x, 1024);
  limit("block.y", block.y, 1024);
  limit("block.z", block.z, 64);
  limit("threads per block", static_cast<size_t>(block.x) * block.y * block.z, kMaxThreads);
  if (shared_bytes) limit("dynamic shared memory", shared_bytes, options.max_shared);
  if (!faults.empty())
    throw Error("invalid launch configuration: " + faults + "\n  in kernel launched at " + file + ":" +
                std::to_string(line));
}

void run_grid(const Grid& launch, void (*body)(void*), void* call) {
  const dim3 grid = launch.grid, block = launch.block;
  std::unique_lock turn(check_lock, std::defer_lock);
  if (checked()) turn.lock();
  const uint64_t blocks = static_cast<uint64_t>(grid.x) * grid.y * grid.z;
  const int size = static_cast<int>(block.x * block.y * block.z);
  __atomic_fetch_add(&stats.launches, 1, __ATOMIC_RELAXED);
  __atomic_fetch_add(&stats.blocks, blocks, __ATOMIC_RELAXED);
  __atomic_fetch_add(&stats.threads, blocks * static_cast<unsigned>(size), __ATOMIC_RELAXED);
  check_grid_begin();

  std::atomic<bool> stop{false};
  std::mutex error_lock;
  std::string error;
  auto prepare = [&]() -> Block& {
    Block& b = block_of_this_os_thread();
    b.size = size;
    b.body = body;
    b.arg = call;
    b.dynamic_bytes = launch.shared_bytes;
    b.launch_file = launch.file;
    b.launch_line = launch.line;
    blockDim = {block.x, block.y, block.z};
    gridDim = {grid.x, grid.y, grid.z};
    for (unsigned i = 0; i < static_cast<unsigned>(size); ++i)
      b.threads[i].index = {i % block.x, i / block.x % block.y, i / (block.x * block.y)};
    return b;
  };
  auto run_one = [&](Block& b, uint64_t i) {
    blockIdx = b.index = {static_cast<unsigned>(i % grid.x), static_cast<unsigned>(i / grid.x % grid.y),
                          static_cast<unsigned>(i / grid.x / grid.y)};
    b.random = ((i + 1) * 0x9e3779b97f4a7c15ull) ^ (options.seed * 0xbf58476d1ce4e5b9ull) ^ 0x1234567;
    if (b.random == 0) b.random = 1;
    if (run_block(b)) return;
    std::lock_guard lock(error_lock);
    if (!stop.exchange(true)) error = b.error;
  };

  // A random order of blocks without a table: x -> x*mul + add is a permutation of the numbers below a power of two.
  uint64_t span = 1;
  while (span < blocks) span *= 2;
  const uint64_t mul = options.seed * 8 + 5, add = (options.seed * 0x9e3779b97f4a7c15ull) | 1;
  const bool random = options.order == Order::kRandom, reverse = options.order == Order::kReverse;
  const uint64_t steps = random ? span : blocks;
  const int os_threads = checked() ? 1 : options.os_threads;
#pragma omp parallel num_threads(os_threads) if (os_threads > 1)
  {
    Block& b = prepare();
#pragma omp for schedule(dynamic, 4)
    for (uint64_t step = 0; step < steps; ++step) {
      const uint64_t i = random ? (step * mul + add) & (span - 1) : reverse ? blocks - 1 - step : step;
      if (i < blocks && !stop) run_one(b, i);
    }
  }
  if (!error.empty()) throw Error(error);
}

}  // namespace convoy::emulator
