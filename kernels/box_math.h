// Boxes as both twins compute with them, to the same bit: corners (x1, y1, x2, y2), fp32.
#pragma once
#include <cstdint>
#include <cstring>

#ifdef __CUDACC__
#define CONVOY_BOTH_SIDES __host__ __device__
#else
#define CONVOY_BOTH_SIDES
#endif

namespace convoy {

struct Box {
  float x1, y1, x2, y2;
};

// Always inlined, so that files compiled for one instruction set leave no copy of these that others would call.

[[gnu::always_inline]] CONVOY_BOTH_SIDES inline Box box_at(const float* boxes, int64_t i) {
  const float* p = boxes + 4 * i;
  return {p[0], p[1], p[2], p[3]};
}

/// b - a to 26 bits, so that a product of two is exact in double and it makes no difference whether a compiler fuses
/// products and sums.
[[gnu::always_inline]] CONVOY_BOTH_SIDES inline double box_side(float a, float b) {
  const double side = static_cast<double>(b) - static_cast<double>(a);
  uint64_t bits;
  memcpy(&bits, &side, sizeof bits);
  bits &= ~((uint64_t{1} << 27) - 1);
  double rounded;
  memcpy(&rounded, &bits, sizeof rounded);
  return rounded;
}

/// Intersection over union in [0,1]; 0 where a box is empty or holds NaN.
[[gnu::always_inline]] CONVOY_BOTH_SIDES inline double box_overlap(const Box& a, const Box& b) {
  const double wa = box_side(a.x1, a.x2), ha = box_side(a.y1, a.y2), wb = box_side(b.x1, b.x2),
               hb = box_side(b.y1, b.y2);
  const double w = box_side(a.x1 > b.x1 ? a.x1 : b.x1, a.x2 < b.x2 ? a.x2 : b.x2);
  const double h = box_side(a.y1 > b.y1 ? a.y1 : b.y1, a.y2 < b.y2 ? a.y2 : b.y2);
  if (!(wa > 0 && ha > 0 && wb > 0 && hb > 0 && w > 0 && h > 0)) return 0;
  const double common = w * h, overlap = common / (wa * ha + wb * hb - common);
  return overlap > 0 ? (overlap < 1 ? overlap : 1) : 0;  // NaN of infinite boxes becomes 0
}

/// Number of ground truths in use.
[[gnu::always_inline]] CONVOY_BOTH_SIDES inline int64_t truths_in_use(int32_t count, int64_t capacity) {
  return count < 0 ? 0 : count < capacity ? count : capacity;
}

/// Detections in the order of this key: higher scores first, of equal ones the smaller anchor. Scores are above 0 or
/// any other floats but NaN.
[[gnu::always_inline]] CONVOY_BOTH_SIDES inline uint64_t score_key(uint32_t score_bits, int64_t anchor) {
  const uint32_t ordered = score_bits & 0x80000000u ? ~score_bits : score_bits | 0x80000000u;
  return static_cast<uint64_t>(ordered) << 32 | (0xffffffffu - static_cast<uint32_t>(anchor));
}
[[gnu::always_inline]] CONVOY_BOTH_SIDES inline int64_t key_anchor(uint64_t key) {
  return static_cast<int64_t>(0xffffffffu - static_cast<uint32_t>(key));
}

/// Whether no coordinate is NaN.
[[gnu::always_inline]] CONVOY_BOTH_SIDES inline bool box_is_number(const Box& b) {
  return b.x1 == b.x1 && b.y1 == b.y1 && b.x2 == b.x2 && b.y2 == b.y2;
}

}  // namespace convoy
