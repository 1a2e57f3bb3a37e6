// Dropout. Bytes: 4 read and 4 written per element; about 25 integer operations per element for the random words,
// computed for 16 counters at a time, dominate.
#include "kernels/dropout.h"

#include "kernels/blocked.h"

namespace convoy::cpu::CONVOY_ISA {

constexpr int kCounters = 16;        // per batch of words: 64 elements
constexpr int64_t kTilePixels = 60;  // with up to 3 words skipped in front they fit one batch

static inline uint32_t high_product(uint32_t a, uint32_t b) {
  return static_cast<uint32_t>((static_cast<uint64_t>(a) * b) >> 32);
}

/// words[4*i + j] = word j of counter first + i.
static void philox_batch(uint64_t key, uint64_t high, uint64_t first, uint32_t* words) {
  uint32_t c0[kCounters], c1[kCounters], c2[kCounters], c3[kCounters];
  for (int i = 0; i < kCounters; ++i) {
    c0[i] = static_cast<uint32_t>(first + static_cast<uint64_t>(i));
    c1[i] = static_cast<uint32_t>((first + static_cast<uint64_t>(i)) >> 32);
    c2[i] = static_cast<uint32_t>(high);
    c3[i] = static_cast<uint32_t>(high >> 32);
  }
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < kPhiloxRounds; ++round) {
    for (int i = 0; i < kCounters; ++i) {
      const uint32_t high0 = high_product(kPhiloxMultipliers[0], c0[i]), low0 = kPhiloxMultipliers[0] * c0[i];
      const uint32_t high1 = high_product(kPhiloxMultipliers[1], c2[i]), low1 = kPhiloxMultipliers[1] * c2[i];
      c0[i] = high1 ^ c1[i] ^ k0;
      c1[i] = low1;
      c2[i] = high0 ^ c3[i] ^ k1;
      c3[i] = low0;
    }
    k0 += kPhiloxKeySteps[0];
    k1 += kPhiloxKeySteps[1];
  }
  for (int i = 0; i < kCounters; ++i) {
    words[4 * i] = c0[i];
    words[4 * i + 1] = c1[i];
    words[4 * i + 2] = c2[i];
    words[4 * i + 3] = c3[i];
  }
}

/// x * factor or 0, without a branch.
static inline float select(bool keep, float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  bits &= keep ? ~0u : 0u;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

void dropout(const View& x, float p, uint64_t key, uint64_t global_step, int64_t first_slot, bool whole_channels,
             const View& y) {
  const uint32_t threshold = p < 1 ? static_cast<uint32_t>(philox_threshold(p)) : ~0u;
  const float factor = p < 1 ? static_cast<float>(1 / (1 - static_cast<double>(p))) : 0.0f;
  const int64_t groups = ceil_div(x.c, kBlock), tiles = ceil_div(x.pixels(), kTilePixels);
  parallel_for(x.n * groups * tiles, 8 * kTilePixels * kBlock, [&](int64_t i) {
    const int64_t n = i / tiles / groups, g = i / tiles % groups;
    const int64_t first = i % tiles * kTilePixels, pixels = smaller(kTilePixels, x.pixels() - first);
    const int64_t lanes = smaller(kBlock, x.c - g * kBlock);
    const uint64_t slot = static_cast<uint64_t>(first_slot + n) << 32;
    const Strides from = strides_of(x, n, g), to = strides_of(y, n, g);
    for (int64_t l = 0; l < lanes; ++l) {
      const int64_t channel = g * kBlock + l, element = whole_channels ? channel : channel * x.pixels() + first;
      const uint64_t counter = slot | static_cast<uint64_t>(element / 4);
      uint32_t words[4 * kCounters];
      if (whole_channels) {
        const uint32_t word = philox(key, global_step, counter)[static_cast<size_t>(element % 4)];
        for (uint32_t& w : words) w = word;
      } else {
        philox_batch(key, global_step, counter, words);
      }
      const uint32_t* word = words + element % 4;
      const float* in = from.start + first * from.pixel + l * from.lane;
      float* out = to.start + first * to.pixel + l * to.lane;
      for (int64_t q = 0; q < pixels; ++q)
        out[q * to.pixel] = select(word[q] >= threshold, in[q * from.pixel] * factor);
    }
    if (y.layout == Layout::kBlocked)
      for (int64_t q = first; q < first + pixels; ++q)
        for (int64_t l = lanes; l < kBlock; ++l) to.start[q * kBlock + l] = 0;
  });
}

}  // namespace convoy::cpu::CONVOY_ISA
