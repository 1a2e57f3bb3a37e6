#include "kernels/isa.h"

#include <cstdlib>
#include <stdexcept>
#include <string>

namespace convoy::cpu {

static Isa detect() {
#if defined(__x86_64__)
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma"))
    throw std::runtime_error("this CPU has no AVX2 and FMA, which the x86-64 build of Convoy needs");
  const bool has_avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (const char* wanted = std::getenv("CONVOY_ISA")) {
    const std::string name = wanted;
    if (name == "base") return Isa::kBase;
    if (name != "avx512") throw std::runtime_error("CONVOY_ISA is '" + name + "'; it takes base or avx512");
    if (!has_avx512) throw std::runtime_error("CONVOY_ISA asks for avx512, which this CPU does not have");
  }
  return has_avx512 ? Isa::kAvx512 : Isa::kBase;
#else
  return Isa::kBase;
#endif
}

Isa isa() {
  static const Isa chosen = detect();
  return chosen;
}

const char* isa_name() {
  return isa() == Isa::kAvx512 ? "avx512" : "base";
}

int64_t channel_block() {
  return isa() == Isa::kAvx512 ? 16 : 8;
}

}  // namespace convoy::cpu
