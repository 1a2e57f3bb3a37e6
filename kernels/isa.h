// Instruction sets of the CPU kernels. Each kernels/*_cpu.cpp is compiled once per set with CONVOY_ISA = base | avx512,
// and puts its launchers into the namespace of that name. `base` is AVX2 + FMA on x86-64 and whatever the compiler
// targets elsewhere; its channel block is 8, that of avx512 is 16.
#pragma once
#include "kernels/dtype.h"

/// Declares launchers of a CPU kernel for every instruction set:  CONVOY_CPU_KERNELS(void relu(const View& x, ...);)
#if defined(__x86_64__)
#define CONVOY_CPU_KERNELS(...)   \
  namespace convoy::cpu::base {   \
  __VA_ARGS__                     \
  }                               \
  namespace convoy::cpu::avx512 { \
  __VA_ARGS__                     \
  }
/// Calls the launcher of the instruction set in force:  CONVOY_CPU(relu, x, y)
#define CONVOY_CPU(name, ...)                                                                     \
  (::convoy::cpu::isa() == ::convoy::cpu::Isa::kAvx512 ? ::convoy::cpu::avx512::name(__VA_ARGS__) \
                                                       : ::convoy::cpu::base::name(__VA_ARGS__))
#else
#define CONVOY_CPU_KERNELS(...) \
  namespace convoy::cpu::base { \
  __VA_ARGS__                   \
  }
#define CONVOY_CPU(name, ...) (::convoy::cpu::base::name(__VA_ARGS__))
#endif

namespace convoy::cpu {

enum class Isa : uint8_t { kBase, kAvx512 };

/// The set chosen at start: the best that this CPU has, or the one named by CONVOY_ISA=base|avx512 in the environment.
/// Throws std::runtime_error on an x86-64 CPU without AVX2 and FMA.
Isa isa();
const char* isa_name();

/// Channels in one block of Layout::kBlocked under isa(): 8 or 16.
int64_t channel_block();

}  // namespace convoy::cpu
