// Philox on the device: the words of kernels/philox.h. Included by *.cu only.
#pragma once
#include "kernels/cuda_compat.h"
#include "kernels/philox.h"

namespace convoy::CONVOY_DEVICE {

struct PhiloxWords {
  uint32_t word[4];
};

__device__ inline PhiloxWords philox_words(uint64_t key, uint64_t counter_high, uint64_t counter_low) {
  constexpr uint32_t kMultiplier0 = kPhiloxMultipliers[0], kMultiplier1 = kPhiloxMultipliers[1];
  constexpr uint32_t kStep0 = kPhiloxKeySteps[0], kStep1 = kPhiloxKeySteps[1];
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  uint32_t c0 = static_cast<uint32_t>(counter_low), c1 = static_cast<uint32_t>(counter_low >> 32);
  uint32_t c2 = static_cast<uint32_t>(counter_high), c3 = static_cast<uint32_t>(counter_high >> 32);
#pragma unroll
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const uint64_t p0 = static_cast<uint64_t>(kMultiplier0) * c0, p1 = static_cast<uint64_t>(kMultiplier1) * c2;
    c0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
    c1 = static_cast<uint32_t>(p1);
    c2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c3 = static_cast<uint32_t>(p0);
    k0 += kStep0;
    k1 += kStep1;
  }
  return {{c0, c1, c2, c3}};
}

}  // namespace convoy::CONVOY_DEVICE
