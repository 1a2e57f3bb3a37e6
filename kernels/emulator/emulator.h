// The emulator's controls: what tests set and read around the launches.
#pragma once
#include <cstddef>
#include <cstdint>
#include <stdexcept>

namespace convoy::emulator {

/// A fault of a kernel or of a launch: names the fault, the source line, the launch, the block and the thread.
struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

enum class Order { kForward, kReverse, kRandom };

/// Process-wide. Change it only while no kernel runs.
struct Options {
  Order order = Order::kForward;         ///< of threads within a block and of blocks within a grid
  uint64_t seed = 1;                     ///< of Order::kRandom
  int os_threads = 1;                    ///< > 1: blocks of a grid in parallel; the checked flavour always takes 1
  size_t max_shared = 227 * 1024;        ///< bytes per block, static + dynamic: sm_90
  size_t max_static_shared = 48 * 1024;  ///< bytes per block
};
extern Options options;

/// Counts since program start.
struct Stats {
  uint64_t launches, blocks, threads, switches;
};
extern Stats stats;

/// Whether this program is linked with the checker (the checked flavour).
bool checked();

}  // namespace convoy::emulator
