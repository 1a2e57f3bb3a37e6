// The emulator's controls: what tests set and read around the launches; work that another library puts on a stream.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/cuda_stream.h"

#define CONVOY_CALLER const char *file = __builtin_FILE(), int line = __builtin_LINE()

namespace convoy::emulator {

/// A fault of a kernel or of a launch: names the fault, the source line, the launch, the block and the thread.
struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

enum class Order { kForward, kReverse, kRandom };

/// When the work that streams hold is executed, as far as streams and events leave it open.
enum class StreamOrder {
  kImmediate,    ///< at once; a kernel's fault is thrown by its launch
  kLazy,         ///< only what the host waits for and what that needs; the rest as late as can be
  kOthersFirst,  ///< when the host waits, everything else that can run, then what it waits for
  kRandom,       ///< drawn by stream_seed, at every call
};

/// Process-wide. Change it only while no kernel runs and streams are empty.
struct Options {
  Order order = Order::kForward;         ///< of threads within a block and of blocks within a grid
  uint64_t seed = 1;                     ///< of Order::kRandom
  int os_threads = 1;                    ///< > 1: blocks of a grid in parallel; the checked flavour always takes 1
  size_t max_shared = 227 * 1024;        ///< bytes per block, static + dynamic: sm_90
  size_t max_static_shared = 48 * 1024;  ///< bytes per block
  StreamOrder stream_order = StreamOrder::kImmediate;
  uint64_t stream_seed = 1;  ///< of StreamOrder::kRandom
};
extern Options options;

/// Counts since program start.
struct Stats {
  uint64_t launches, blocks, threads, switches;
};
extern Stats stats;

/// Whether this program is linked with the checker (the checked flavour).
bool checked();

/// Memory that a piece of work reads or writes.
struct Touched {
  const void* data;
  size_t bytes;
  bool write;
};
/// Work that waits for others, such as a collective: `step` is called from when the stream gets there until it returns
/// true, and must not block; other streams go on between the calls. It is also called, by a thread of the emulator,
/// when the host does not come to wait for its streams for a while, because a device would go on, too. An exception of
/// it is a fault of the stream. `name` is for messages.
void enqueue_steps(cudaStream_t stream, std::function<bool()> step, std::vector<Touched> touched, std::string name,
                   CONVOY_CALLER);

/// Drops what the calling thread's streams hold and its fault, as a new process would.
void reset_streams();

}  // namespace convoy::emulator
