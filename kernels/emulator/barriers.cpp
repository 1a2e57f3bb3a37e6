// Block barriers and warp operations.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>

#include "kernels/emulator/state.h"

namespace convoy::emulator {

static std::string place(const char* file, int line) {
  return std::string(file ? file : "?") + ":" + std::to_string(line);
}

// "0-31,40,64-95,..." of ascending numbers.
static std::string ranges(const std::vector<int>& v) {
  constexpr size_t kMostRanges = 6;
  std::string s;
  size_t i = 0;
  for (size_t shown = 0; i < v.size() && shown < kMostRanges; ++shown) {
    size_t j = i;
    while (j + 1 < v.size() && v[j + 1] == v[j] + 1) ++j;
    s += (shown ? "," : "") + std::to_string(v[i]) + (j > i ? "-" + std::to_string(v[j]) : "");
    i = j + 1;
  }
  return i < v.size() ? s + ",..." : s;
}

std::string deadlock(Block& b) {
  std::map<std::string, std::vector<int>> groups;
  for (int i = 0; i < b.size; ++i) {
    const Thread& t = b.threads[i];
    std::string group = "exited";
    if (t.state == State::kAtBlockBarrier) {
      group = "wait at __syncthreads " + place(t.file, t.line);
    } else if (t.state == State::kAtWarpOp) {
      char mask[16];
      snprintf(mask, sizeof mask, "0x%08x", t.mask);
      group = "wait at a warp operation, mask " + std::string(mask) + ", " + place(t.file, t.line);
    }
    groups[group].push_back(i);
  }
  std::string s = "barrier divergence: no thread of the block can go on";
  for (const auto& [what, threads] : groups)
    s += "\n  " + std::to_string(threads.size()) + " threads " + what + ": " + ranges(threads);
  b.current = -1;
  return s + "\n  in " + where(b);
}

static int combine(BlockOp op, int accumulator, int predicate) {
  switch (op) {
    case BlockOp::kCount:
      return accumulator + (predicate != 0);
    case BlockOp::kAnd:
      return accumulator && predicate;
    case BlockOp::kOr:
      return accumulator || predicate;
  }
  return 0;
}

// The last thread to arrive releases all others, in the order in force.
static void release_block(Block& b) {
  const int self = b.current;
  Thread& t = b.threads[self];
  for (int i = 0; i < b.size; ++i) {
    Thread& other = b.threads[i];
    if (other.line != t.line || (other.file != t.file && std::strcmp(other.file, t.file) != 0))
      fail("barrier divergence: thread " + std::to_string(i) + " is at " + place(other.file, other.line) +
           ", this one at " + place(t.file, t.line));
    other.block_result = b.accumulator;
  }
  b.arrived = 0;
  ++b.epoch;
  t.state = State::kReady;
  b.queue.clear();
  b.head = 0;
  for (int k = 0; k < b.size; ++k) {
    const int i = options.order == Order::kReverse ? b.size - 1 - k : k;
    if (i != self) make_ready(b, i);
  }
  if (options.order == Order::kRandom) {  // in the fixed orders the last one to arrive goes on
    make_ready(b, self);
    wait(b);
  }
}

/// __syncthreads and its reducing forms. Strict: threads that have exited never arrive, so that an early return before
/// a barrier always ends in a reported deadlock.
int block_reduce(int predicate, BlockOp op, const char* file, int line) {
  Block& b = *running;
  Thread& t = b.threads[b.current];
  if (b.arrived == 0) {
    b.block_op = op;
    b.accumulator = op == BlockOp::kAnd;
  } else if (b.block_op != op) {
    fail("threads of one block meet at different kinds of block barrier");
  }
  t.file = file;
  t.line = line;
  t.state = State::kAtBlockBarrier;
  b.accumulator = combine(op, b.accumulator, predicate);
  if (++b.arrived == b.size)
    release_block(b);
  else
    wait(b);
  return t.block_result;
}

// The lane whose value lane `lane` receives.
static int source_lane(WarpOp op, int lane, int arg, int width) {
  const int low = lane & ~(width - 1), high = low + width;
  switch (op) {
    case WarpOp::kShuffle:
      return low + (arg & (width - 1));
    case WarpOp::kShuffleUp:
      return lane - arg < low ? lane : lane - arg;
    case WarpOp::kShuffleDown:
      return lane + arg >= high ? lane : lane + arg;
    case WarpOp::kShuffleXor:
      return (lane ^ arg) >= high ? lane : lane ^ arg;
    default:
      return lane;
  }
}

// Computes the results of all lanes in `mask`, which have all arrived.
static void exchange(Thread* warp, const Thread& last, int last_lane, int lanes) {
  const unsigned mask = last.mask;
  unsigned ballot = 0;
  for (int i = 0; i < lanes; ++i) {
    if (!(mask >> i & 1)) continue;
    const Thread& t = warp[i];
    if (t.op != last.op || t.mask != mask || t.width != last.width)
      fail("lanes of one warp meet at different warp operations: lane " + std::to_string(i) + " at " +
           place(t.file, t.line) + ", lane " + std::to_string(last_lane) + " at " + place(last.file, last.line));
    ballot |= static_cast<unsigned>(t.value & 1) << i;
  }
  for (int i = 0; i < lanes; ++i) {
    if (!(mask >> i & 1)) continue;
    const int source = source_lane(last.op, i, warp[i].arg, last.width);
    if (source != i && (source >= lanes || !(mask >> source & 1)))
      fail("shuffle reads lane " + std::to_string(source) + ", which does not take part, " +
           place(last.file, last.line));
    if (last.op == WarpOp::kBallot) {
      warp[i].result = ballot;
    } else if (last.op == WarpOp::kMatch) {
      unsigned same = 0;
      for (int j = 0; j < lanes; ++j)
        same |= static_cast<unsigned>((mask >> j & 1) && warp[j].value == warp[i].value) << j;
      warp[i].result = same;
    } else {
      warp[i].result = warp[source].value;
    }
  }
}

uint64_t warp_op(WarpOp op, unsigned mask, uint64_t value, int arg, int width, const char* file, int line) {
  Block& b = *running;
  const int warp = b.current / 32, lane = b.current % 32, base = warp * 32, lanes = std::min(32, b.size - base);
  Thread* const threads = &b.threads[base];
  Thread& t = threads[lane];
  if (lanes < 32 && mask == ~0u) mask = (1u << lanes) - 1;  // the hardware ignores lanes that never existed
  if (!(mask >> lane & 1)) fail("warp operation whose mask leaves out the calling lane, " + place(file, line));
  t.op = op;
  t.mask = mask;
  t.value = value;
  t.arg = arg;
  t.width = width;
  t.file = file;
  t.line = line;
  t.state = State::kAtWarpOp;
  b.waiting[warp] |= 1u << lane;
  if ((b.waiting[warp] & mask) != mask) {
    wait(b);
    return t.result;
  }
  exchange(threads, t, lane, lanes);
  if (op == WarpOp::kSync) check_warp_sync(static_cast<unsigned>(warp), mask);
  b.waiting[warp] &= ~mask;
  t.state = State::kReady;
  for (int k = lanes; k-- > 0;) {  // from the last, because `hot` is a stack
    const int i = options.order == Order::kReverse ? lanes - 1 - k : k;
    if (!(mask >> i & 1) || i == lane) continue;
    if (options.order == Order::kRandom)
      make_ready(b, base + i);
    else
      make_hot(b, base + i);
  }
  return t.result;
}

}  // namespace convoy::emulator
