// Philox4x32-10 (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011): random words as a function of
// a key and a counter alone.
#pragma once
#include <array>
#include <cstdint>

namespace convoy {

// Always inlined, so that files compiled for one instruction set leave no copy of these that others would call.

constexpr int kPhiloxRounds = 10;
constexpr uint32_t kPhiloxMultipliers[2] = {0xD2511F53u, 0xCD9E8D57u};
constexpr uint32_t kPhiloxKeySteps[2] = {0x9E3779B9u, 0xBB67AE85u};

/// Four 32-bit random words for (key, counter).
[[gnu::always_inline]] inline std::array<uint32_t, 4> philox(uint64_t key, uint64_t counter_high,
                                                             uint64_t counter_low) {
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  uint32_t c0 = static_cast<uint32_t>(counter_low), c1 = static_cast<uint32_t>(counter_low >> 32);
  uint32_t c2 = static_cast<uint32_t>(counter_high), c3 = static_cast<uint32_t>(counter_high >> 32);
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const uint64_t p0 = static_cast<uint64_t>(kPhiloxMultipliers[0]) * c0;
    const uint64_t p1 = static_cast<uint64_t>(kPhiloxMultipliers[1]) * c2;
    c0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
    c1 = static_cast<uint32_t>(p1);
    c2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c3 = static_cast<uint32_t>(p0);
    k0 += kPhiloxKeySteps[0];
    k1 += kPhiloxKeySteps[1];
  }
  return {c0, c1, c2, c3};
}

/// Uniform in [0,1) with 24 bits.
[[gnu::always_inline]] inline float unit_float(uint32_t word) {
  return static_cast<float>(word >> 8) * 0x1p-24f;
}

/// Words from this value on have unit_float(word) >= p, for p in [0,1].
[[gnu::always_inline]] inline uint64_t philox_threshold(float p) {
  const double scaled = static_cast<double>(p) * 0x1p24;
  const uint64_t floor = static_cast<uint64_t>(scaled);
  return (floor + (static_cast<double>(floor) < scaled ? 1 : 0)) << 8;
}

}  // namespace convoy
