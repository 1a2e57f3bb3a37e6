// CUDA's device language for g++: index variables, barriers, warp operations, atomics, intrinsics. One fiber per CUDA
// thread that waits, one OS thread per block; see README.md. Included by kernels/cuda_compat.h only.
#pragma once
#include <tuple>

#include "kernels/emulator/cuda_types.h"
#include "kernels/emulator/emulator.h"
#include "kernels/emulator/runtime_api.h"

#define CONVOY_DEVICE emulated
#define CONVOY_DEVICE_NAME "emulated"
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __align__(n) alignas(n)
#define __launch_bounds__(...)
#define __shared__ use_CONVOY_SHARED_or_CONVOY_DYNAMIC_SHARED
#define CONVOY_UNCHECKED __attribute__((no_sanitize("thread", "undefined"), noinline))

namespace convoy::emulator {

struct Index {
  unsigned x, y, z;
  operator dim3() const { return dim3(x, y, z); }
};

enum class WarpOp : uint8_t { kSync, kShuffle, kShuffleUp, kShuffleDown, kShuffleXor, kBallot, kMatch };
enum class BlockOp : uint8_t { kCount, kAnd, kOr };

int block_reduce(int predicate, BlockOp op, const char* file, int line);
uint64_t warp_op(WarpOp op, unsigned mask, uint64_t value, int arg, int width, const char* file, int line);
void* static_shared(const void* site, size_t bytes, size_t align);
void* dynamic_shared();

/// A kernel's launch. `call` holds the kernel and its arguments; `body` runs one thread of it.
struct Grid {
  dim3 grid, block;
  size_t shared_bytes;
  const char* file;
  int line;
};
/// Runs the kernel to its end. Throws Error.
void run_grid(const Grid& grid, void (*body)(void*), void* call);
/// Throws Error when a device would refuse the launch.
void check_launch(const Grid& grid);
/// Puts a launch on a stream. `run` is called once or never, `destroy` in any case.
void enqueue_grid(const Grid& grid, cudaStream_t stream, void* call, void (*run)(const Grid&, const void* call),
                  void (*destroy)(void* call));
/// Ends the kernel that is running with an Error that also names launch, block and thread.
[[noreturn]] void fail(const std::string& what);
// Told to the checker; nothing in the other flavours.
void note_atomic(const void* p, size_t bytes);
void note_fence();

}  // namespace convoy::emulator

extern __thread convoy::emulator::Index threadIdx, blockIdx, blockDim, gridDim;
constexpr int warpSize = 32;

#define CONVOY_SHARED(type, name)                         \
  static char name##_site;                                \
  auto& name = *static_cast<std::type_identity_t<type>*>( \
      convoy::emulator::static_shared(&name##_site, sizeof(type), alignof(type) < 16 ? 16 : alignof(type)))
#define CONVOY_DYNAMIC_SHARED(type, name) type* name = static_cast<type*>(convoy::emulator::dynamic_shared())

namespace convoy::CONVOY_DEVICE {

struct Launch {
  dim3 grid, block;
  size_t shared_bytes = 0;
  cudaStream_t stream = nullptr;
  const char* file = __builtin_FILE();
  int line = __builtin_LINE();
};

/// Enqueues the kernel with arguments converted to its parameter types. Throws emulator::Error when the launch is
/// refused or an earlier fault is known; under StreamOrder::kImmediate also for faults of the kernel itself.
template <class... Params, class... Args>
void launch(const Launch& l, void (*kernel)(Params...), Args&&... args) {
  struct Call {
    void (*kernel)(Params...);
    std::tuple<std::decay_t<Params>...> args;
  };
  const auto run = [](const emulator::Grid& grid, const void* call) {
    Call copy = *static_cast<const Call*>(call);  // kernels may read their arguments on this thread's stack
    const auto body = [](void* p) CONVOY_UNCHECKED {
      auto& c = *static_cast<Call*>(p);
      std::apply(c.kernel, c.args);
    };
    emulator::run_grid(grid, body, &copy);
  };
  emulator::enqueue_grid({l.grid, l.block, l.shared_bytes, l.file, l.line}, l.stream,
                         new Call{kernel, {static_cast<Params>(args)...}}, run,
                         [](void* call) { delete static_cast<Call*>(call); });
}

}  // namespace convoy::CONVOY_DEVICE

// Barriers and warp operations.
inline void __syncthreads(CONVOY_CALLER) {
  convoy::emulator::block_reduce(0, convoy::emulator::BlockOp::kOr, file, line);
}
inline int __syncthreads_count(int p, CONVOY_CALLER) {
  return convoy::emulator::block_reduce(p, convoy::emulator::BlockOp::kCount, file, line);
}
inline int __syncthreads_and(int p, CONVOY_CALLER) {
  return convoy::emulator::block_reduce(p, convoy::emulator::BlockOp::kAnd, file, line);
}
inline int __syncthreads_or(int p, CONVOY_CALLER) {
  return convoy::emulator::block_reduce(p, convoy::emulator::BlockOp::kOr, file, line);
}
inline void __syncwarp(unsigned mask = ~0u, CONVOY_CALLER) {
  convoy::emulator::warp_op(convoy::emulator::WarpOp::kSync, mask, 0, 0, 32, file, line);
}
inline void __threadfence() {
  convoy::emulator::note_fence();
}
inline void __threadfence_block() {}
inline unsigned __ballot_sync(unsigned mask, int p, CONVOY_CALLER) {
  using convoy::emulator::WarpOp;
  return static_cast<unsigned>(convoy::emulator::warp_op(WarpOp::kBallot, mask, p != 0, 0, 32, file, line));
}
inline int __any_sync(unsigned mask, int p, CONVOY_CALLER) {
  return __ballot_sync(mask, p, file, line) != 0;
}
inline int __all_sync(unsigned mask, int p, CONVOY_CALLER) {
  return __ballot_sync(mask, !p, file, line) == 0;
}
template <class T>
unsigned __match_any_sync(unsigned mask, T v, CONVOY_CALLER) {
  using namespace convoy::emulator;
  return static_cast<unsigned>(warp_op(WarpOp::kMatch, mask, bits_of(v), 0, 32, file, line));
}
#define CONVOY_SHUFFLE(name, op, arg_type)                                                                \
  template <class T>                                                                                      \
  T name(unsigned mask, T v, arg_type arg, int width = 32, CONVOY_CALLER) {                               \
    using namespace convoy::emulator;                                                                     \
    return from_bits<T>(warp_op(WarpOp::op, mask, bits_of(v), static_cast<int>(arg), width, file, line)); \
  }
CONVOY_SHUFFLE(__shfl_sync, kShuffle, int)
CONVOY_SHUFFLE(__shfl_up_sync, kShuffleUp, unsigned)
CONVOY_SHUFFLE(__shfl_down_sync, kShuffleDown, unsigned)
CONVOY_SHUFFLE(__shfl_xor_sync, kShuffleXor, int)
#undef CONVOY_SHUFFLE

#include "kernels/emulator/intrinsics.h"
