// Counter-based random numbers on top of Philox (kernels/philox.h).
// A number is a function of its key and counter alone, so masks and augmentations do not depend on threads, on ranks,
// on fusion or on how far another consumer has read.
#pragma once
#include <array>
#include <cstdint>
#include <string_view>

#include "kernels/philox.h"

namespace convoy {

/// FNV-1a, 64 bits: turns names (module paths, purposes) into key material.
constexpr uint64_t fnv1a(std::string_view text, uint64_t seed = 0xcbf29ce484222325ull) {
  uint64_t h = seed;
  for (const char c : text) {
    h ^= static_cast<unsigned char>(c);
    h *= 0x100000001b3ull;
  }
  return h;
}

/// splitmix64's finaliser: mixes two words into one key.
constexpr uint64_t mix(uint64_t a, uint64_t b) {
  uint64_t z = a + 0x9E3779B97F4A7C15ull * (b + 1);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

/// The number stream NAME, CASE_SEED of reference figures, which their makers draw in the same way: element i is
/// (splitmix64(seed + i) >> 40) * 2^-24 in [0,1), with seed = FNV-1a-64(NAME) xor CASE_SEED. Values are formed in
/// double and rounded to float once, by the caller.
class ReferenceStream {
 public:
  explicit ReferenceStream(std::string_view name, uint64_t case_seed = 0) : seed_(fnv1a(name) ^ case_seed) {}
  double operator[](uint64_t i) const { return static_cast<double>(mix(seed_ + i, 0) >> 40) * 0x1p-24; }

 private:
  uint64_t seed_;
};

/// A sequence drawn from one (seed, purpose, index): what augmentation, shuffling and initialisation use.
class RandomStream {
 public:
  RandomStream(uint64_t seed, std::string_view purpose, uint64_t index)
      : key_(mix(seed, fnv1a(purpose))), index_(index) {}

  uint32_t next_word() {
    if (used_ == 4) {
      words_ = philox(key_, index_, counter_++);
      used_ = 0;
    }
    return words_[static_cast<size_t>(used_++)];
  }
  /// Uniform in [0,1).
  float uniform() { return unit_float(next_word()); }
  /// Uniform in [low, high).
  double uniform(double low, double high) {
    const uint64_t high_bits = next_word() >> 5, low_bits = next_word() >> 6;
    return low + (high - low) * (static_cast<double>(high_bits * 67108864 + low_bits) * 0x1p-53);
  }
  /// Uniform integer in [low, high], both included.
  int64_t integer(int64_t low, int64_t high) {
    const uint64_t span = static_cast<uint64_t>(high - low) + 1;
    const uint64_t word = (static_cast<uint64_t>(next_word()) << 32) | next_word();
    return low + static_cast<int64_t>(static_cast<uint64_t>((static_cast<unsigned __int128>(word) * span) >> 64));
  }
  /// Standard normal by Box-Muller.
  double normal();

 private:
  uint64_t key_, index_, counter_ = 0;
  std::array<uint32_t, 4> words_{};
  int used_ = 4;
};

}  // namespace convoy
