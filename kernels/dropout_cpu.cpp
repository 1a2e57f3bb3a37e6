// Dropout. Bytes: 4 read and 4 written per element; the random words, about 3 vector operations each, are
// computed for 16 counters at a time and dominate.
#include "kernels/dropout.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "kernels/blocked.h"

namespace convoy::cpu::CONVOY_ISA {

constexpr int kCounters = 16;        // per batch of words: 64 elements
constexpr int64_t kTilePixels = 60;  // with up to 3 words skipped in front they fit one batch

/// One 32-bit word in the low half of each 64-bit lane; the high halves may hold anything.
constexpr int kWideLanes = 4;
using Wide = uint64_t __attribute__((vector_size(kWideLanes * sizeof(uint64_t))));

/// The 64-bit products of the low halves with m.
static inline Wide product(Wide a, uint32_t m) {
#if defined(__AVX2__)
  return reinterpret_cast<Wide>(_mm256_mul_epu32(reinterpret_cast<__m256i>(a), _mm256_set1_epi64x(m)));
#else
  return (a & 0xffffffffu) * static_cast<uint64_t>(m);
#endif
}

/// words[4*i + j] = word j of counter first + i.
static void philox_batch(uint64_t key, uint64_t high, uint64_t first, uint32_t* words) {
  constexpr int kVectors = kCounters / kWideLanes;
  Wide c0[kVectors], c1[kVectors], c2[kVectors], c3[kVectors];
  for (int v = 0; v < kVectors; ++v) {
    c0[v] = Wide{0, 1, 2, 3} + (first + static_cast<uint64_t>(v * kWideLanes));
    c1[v] = c0[v] >> 32;
    c2[v] = Wide{} + high;
    c3[v] = c2[v] >> 32;
  }
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < kPhiloxRounds; ++round) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const Wide p0 = product(c0[v], kPhiloxMultipliers[0]), p1 = product(c2[v], kPhiloxMultipliers[1]);
      c0[v] = (p1 >> 32) ^ c1[v] ^ static_cast<uint64_t>(k0);
      c1[v] = p1;
      c2[v] = (p0 >> 32) ^ c3[v] ^ static_cast<uint64_t>(k1);
      c3[v] = p0;
    }
    k0 += kPhiloxKeySteps[0];
    k1 += kPhiloxKeySteps[1];
  }
  for (int v = 0; v < kVectors; ++v) {
    for (int i = 0; i < kWideLanes; ++i) {
      uint32_t* out = words + 4 * (v * kWideLanes + i);
      out[0] = static_cast<uint32_t>(c0[v][i]);
      out[1] = static_cast<uint32_t>(c1[v][i]);
      out[2] = static_cast<uint32_t>(c2[v][i]);
      out[3] = static_cast<uint32_t>(c3[v][i]);
    }
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
