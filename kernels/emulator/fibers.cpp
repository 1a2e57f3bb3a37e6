// Fibers and the order in which CUDA threads run on them.
//
// A fiber runs threads one after another; only a thread that has to wait keeps its fiber, and the next thread then gets
// another. A kernel without barriers so runs as a plain loop on one stack.
#include <sys/mman.h>

#include <utility>

#include "kernels/emulator/address_sanitizer.h"
#include "kernels/emulator/state.h"

#if !defined(__x86_64__) && !defined(CONVOY_EMULATOR_UCONTEXT)
#define CONVOY_EMULATOR_UCONTEXT
#endif
#ifdef CONVOY_EMULATOR_UCONTEXT
#include <ucontext.h>
#endif

namespace convoy::emulator {

thread_local Block* running;

#ifndef CONVOY_EMULATOR_UCONTEXT
// Saves the callee-saved registers on this stack and restores those of the other: all that the System V ABI asks of a
// call. About ten times faster than swapcontext, which makes two system calls.
extern "C" void convoy_switch_stack(void** save, void* to);
asm(R"(
.text
.globl convoy_switch_stack
.type convoy_switch_stack,@function
convoy_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp,(%rdi)
  movq %rsi,%rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size convoy_switch_stack,.-convoy_switch_stack
)");

static void* make_context(char* stack, size_t bytes, void (*entry)()) {
  void** sp = reinterpret_cast<void**>((reinterpret_cast<uintptr_t>(stack) + bytes) & ~uintptr_t{15});
  *--sp = nullptr;  // the entry's return address, which also makes rsp % 16 == 8 as the ABI wants
  *--sp = reinterpret_cast<void*>(entry);
  for (int i = 0; i < 6; ++i) *--sp = nullptr;
  return sp;
}
static void free_context(void*) {}
#else
static void convoy_switch_stack(void** save, void* to) {
  if (!*save) *save = new ucontext_t;
  swapcontext(static_cast<ucontext_t*>(*save), static_cast<ucontext_t*>(to));
}
static void* make_context(char* stack, size_t bytes, void (*entry)()) {
  auto* context = new ucontext_t;
  getcontext(context);
  context->uc_stack.ss_sp = stack;
  context->uc_stack.ss_size = bytes;
  context->uc_link = nullptr;
  makecontext(context, entry, 0);
  return context;
}
static void free_context(void* context) {
  delete static_cast<ucontext_t*>(context);
}
#endif

// From one context to another; nullptr is the OS thread's own stack. A `dying` context is never resumed.
static void jump(Block& b, Fiber* from, Fiber* to, [[maybe_unused]] bool dying = false) {
#if CONVOY_ASAN
  void** fake = from ? &from->fake_stack : &b.main_fake_stack;
  __sanitizer_start_switch_fiber(dying ? nullptr : fake, to ? to->stack : b.main_stack,
                                 to ? kStackBytes : b.main_stack_bytes);
#endif
  convoy_switch_stack(from ? &from->context : &b.main_context, to ? to->context : b.main_context);
#if CONVOY_ASAN
  __sanitizer_finish_switch_fiber(*fake, nullptr, nullptr);
#endif
}

static Fiber& own_fiber(Block& b) {
  return b.fibers[b.threads[b.current].fiber];
}

static void enter(Block& b, int thread) {
  b.current = thread;
  threadIdx = b.threads[thread].index;
}

static void fiber_main() {
  Block& b = *running;
#if CONVOY_ASAN
  __sanitizer_finish_switch_fiber(nullptr, &b.main_stack, &b.main_stack_bytes);
#endif
  for (;;) {
    Thread& thread = b.threads[b.current];
    b.body(b.arg);
    thread.state = State::kDone;
    ++b.done;
    const int next = any_ready(b) ? next_thread(b) : -1;
    if (next >= 0 && b.threads[next].state == State::kFresh) {
      const int fiber = thread.fiber;
      enter(b, next);
      b.threads[next].fiber = fiber;
      b.threads[next].state = State::kReady;
      continue;
    }
    if (next >= 0) b.hot.push_back(next);  // it has a fiber of its own: the main stack resumes it
    b.idle_fibers.push_back(thread.fiber);
    jump(b, &own_fiber(b), nullptr);
  }
}

static uint64_t xorshift(uint64_t& s) {
  s ^= s << 13;
  s ^= s >> 7;
  s ^= s << 17;
  return s;
}

bool any_ready(const Block& b) {
  return b.head < b.queue.size() || !b.hot.empty();
}

int next_thread(Block& b) {
  if (!b.hot.empty()) {
    const int thread = b.hot.back();
    b.hot.pop_back();
    return thread;
  }
  if (options.order == Order::kRandom) {
    const size_t k = b.head + xorshift(b.random) % (b.queue.size() - b.head);
    std::swap(b.queue[b.head], b.queue[k]);
  }
  return b.queue[b.head++];
}

void make_hot(Block& b, int thread) {
  b.threads[thread].state = State::kReady;
  b.hot.push_back(thread);
}

void make_ready(Block& b, int thread) {
  b.threads[thread].state = State::kReady;
  if (b.head == b.queue.size()) {
    b.queue.clear();
    b.head = 0;
  }
  b.queue.push_back(thread);
}

static void add_fiber(Block& b) {
  Fiber fiber;
  void* stack = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (stack == MAP_FAILED) throw Error("emulator: no memory for the stacks of a block's threads");
  fiber.stack = static_cast<char*>(stack);
  mprotect(fiber.stack, 4096, PROT_NONE);
  const size_t colour = (b.fibers.size() % 61) * 192;  // or the hot frames of all fibers fall into the same cache sets
  fiber.context = make_context(fiber.stack, kStackBytes - colour, fiber_main);
  b.fibers.push_back(fiber);
  b.idle_fibers.push_back(static_cast<int>(b.fibers.size()) - 1);
}

void resume(Block& b, int thread) {
  Thread& t = b.threads[thread];
  if (t.state == State::kFresh) {
    if (b.idle_fibers.empty()) add_fiber(b);
    t.fiber = b.idle_fibers.back();
    b.idle_fibers.pop_back();
    t.state = State::kReady;
  }
  enter(b, thread);
  ++b.switches;
  jump(b, nullptr, &own_fiber(b));
}

void wait(Block& b) {
  Fiber* self = &own_fiber(b);
  Fiber* to = nullptr;
  if (any_ready(b)) {
    const int next = next_thread(b);
    if (b.threads[next].state == State::kFresh) {
      b.hot.push_back(next);  // it needs a fiber, which only the main stack gives
    } else {
      enter(b, next);
      to = &own_fiber(b);
    }
    if (to == self) return;
  }
  ++b.switches;
  jump(b, self, to);
}

std::string where(const Block& b) {
  auto text = [](const Index& v) {
    return "(" + std::to_string(v.x) + "," + std::to_string(v.y) + "," + std::to_string(v.z) + ")";
  };
  std::string s = "kernel launched at " + std::string(b.launch_file) + ":" + std::to_string(b.launch_line) +
                  ", block " + text(b.index);
  if (b.current >= 0) s += " thread " + text(b.threads[b.current].index);
  return s;
}

void fail(const std::string& what) {
  Block* b = running;
  if (!b || b->current < 0) throw Error(what);
  b->error = what + "\n  in " + where(*b);
  jump(*b, &own_fiber(*b), nullptr, true);
  __builtin_unreachable();
}

void Block::drop_fibers() {
  for (auto& fiber : fibers) {
    free_context(fiber.context);
    ASAN_UNPOISON_MEMORY_REGION(fiber.stack + 4096, kStackBytes - 4096);
    munmap(fiber.stack, kStackBytes);
  }
  fibers.clear();
  idle_fibers.clear();
}

Block::~Block() {
  drop_fibers();
  if (!arena) return;
  ASAN_UNPOISON_MEMORY_REGION(arena, kArenaBytes);
  munmap(arena, kArenaBytes);
}

}  // namespace convoy::emulator
