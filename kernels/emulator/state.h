// State shared by the emulator's own files: the block that is running, its threads, the fibers they run on.
#pragma once
#include <mutex>
#include <string>
#include <vector>

#include "kernels/emulator/device_language.h"

namespace convoy::emulator {

constexpr int kMaxThreads = 1024;
/// Bytes of a fiber's stack with its guard page. An odd number of pages, or all stacks share a few TLB sets.
constexpr size_t kStackBytes = 65 * 4096;
/// Bytes in which a block's shared arrays are laid out, with gaps between them.
constexpr size_t kArenaBytes = 512 * 1024;

enum class State : uint8_t { kFresh, kReady, kAtBlockBarrier, kAtWarpOp, kDone };

/// A stack on which CUDA threads run, one after another.
struct Fiber {
  void* context = nullptr;  ///< saved stack pointer, or ucontext_t
  char* stack = nullptr;
  void* fake_stack = nullptr;  ///< AddressSanitizer's
};

/// A CUDA thread of the running block, and what it waits for.
struct Thread {
  Index index;
  State state;
  int fiber;
  WarpOp op;
  unsigned mask;
  int arg, width, block_result;
  uint64_t value, result;
  const char* file;
  int line;
};

/// The block that this OS thread runs.
struct Block {
  int size = 0, current = -1, arrived = 0, done = 0, accumulator = 0;
  BlockOp block_op = BlockOp::kOr;
  uint64_t random = 1, switches = 0;
  uint32_t epoch = 0;  ///< block barriers passed
  Index index{};
  std::vector<Thread> threads = std::vector<Thread>(kMaxThreads);
  std::vector<Fiber> fibers;
  std::vector<int> idle_fibers;
  std::vector<int> queue;  ///< threads that can run, from `head` on
  size_t head = 0;
  std::vector<int> hot;  ///< lanes released by a warp operation: run next, while their stacks are in the cache
  uint32_t waiting[kMaxThreads / 32] = {};  ///< per warp: lanes that wait at a warp operation
  void (*body)(void*) = nullptr;
  void* arg = nullptr;
  const char* launch_file = "";
  int launch_line = 0;
  std::string error;
  char* arena = nullptr;  ///< shared memory: the dynamic part, then static arrays in order of first use
  size_t arena_used = 0, static_used = 0, dynamic_bytes = 0;
  struct Site {
    const void* id;
    void* data;
  };
  std::vector<Site> sites;
  void* main_context = nullptr;
  void* main_fake_stack = nullptr;
  const void* main_stack = nullptr;
  size_t main_stack_bytes = 0;

  Block() = default;
  Block(const Block&) = delete;
  ~Block();
  void drop_fibers();
};
extern thread_local Block* running;

/// The checker has one shadow state: ranks that are OS threads take turns.
extern std::recursive_mutex check_lock;

// fibers.cpp
bool any_ready(const Block& b);
int next_thread(Block& b);
void make_ready(Block& b, int thread);
void make_hot(Block& b, int thread);
/// Runs a thread from the OS thread's own stack until every running thread waits or ends.
void resume(Block& b, int thread);
/// Called by a CUDA thread that has to wait; returns when it may go on.
void wait(Block& b);
std::string where(const Block& b);

// barriers.cpp: the report when no thread of the block can go on.
std::string deadlock(Block& b);

// The checker: weak and empty in grid.cpp, defined in check.cpp.
void check_grid_begin();
void check_block_begin();
void check_warp_sync(unsigned warp, unsigned mask);
/// Memory comes into use (valid) or goes out of use; `written` when its contents count as initialised.
void check_range(const void* p, size_t bytes, bool valid, bool written);

}  // namespace convoy::emulator
