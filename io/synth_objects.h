// What the things of a generated scene look like: textures by value noise, and people, cars, poles, signs and trees as
// functions of a point.
#pragma once
#include <array>
#include <cmath>
#include <cstdint>

#include "engine/rng.h"

namespace convoy::synth {

/// Cityscapes ids.
enum Id : int32_t {
  kEgo = 1,
  kDynamic = 5,
  kRoad = 7,
  kSidewalk = 8,
  kBuilding = 11,
  kFence = 13,
  kPole = 17,
  kSign = 20,
  kVegetation = 21,
  kSky = 23,
  kPerson = 24,
  kCar = 26
};

using Rgb = std::array<double, 3>;  ///< red, green, blue, 0..1

/// A value in [0,1) from a lattice point.
inline double lattice(int64_t x, int64_t y, uint64_t key) {
  return static_cast<double>(mix(mix(key, static_cast<uint64_t>(x)), static_cast<uint64_t>(y)) >> 11) * 0x1p-53;
}

/// Smooth value noise in [0,1), one feature per unit.
inline double noise(double x, double y, uint64_t key) {
  const double fx = std::floor(x), fy = std::floor(y);
  double u = x - fx, v = y - fy;
  u = u * u * (3 - 2 * u);
  v = v * v * (3 - 2 * v);
  const auto ix = static_cast<int64_t>(fx), iy = static_cast<int64_t>(fy);
  const double top = lattice(ix, iy, key) * (1 - u) + lattice(ix + 1, iy, key) * u;
  const double low = lattice(ix, iy + 1, key) * (1 - u) + lattice(ix + 1, iy + 1, key) * u;
  return top * (1 - v) + low * v;
}

inline double fraction(double value) {
  return value - std::floor(value);
}

inline Rgb scaled(const Rgb& color, double by) {
  return {color[0] * by, color[1] * by, color[2] * by};
}
inline Rgb blended(const Rgb& a, const Rgb& b, double share) {
  return {a[0] + (b[0] - a[0]) * share, a[1] + (b[1] - a[1]) * share, a[2] + (b[2] - a[2]) * share};
}

constexpr double kSignRadius = .65;  ///< metres

enum class Shape { car_side, car_rear, person, pole, tree, bin };

struct Object {
  Shape shape;
  double x, z;           // metres: middle of its foot
  double width, height;  // metres
  bool sign;             // a pole with a sign
  int sign_shape;        // disc, triangle, square
  Rgb first, second, third;
  uint64_t key;
};

/// What one point of an object looks like; id 0 = nothing there.
struct Spot {
  int32_t id = 0;
  Rgb color{};
  bool thing = false;  // counts for the object's box
};

/// The object's look at (u,v), in units of its width and height: u from -0.5 to 0.5, v from 0 at the foot to 1 at the
/// top. Poles reach beyond |u| = 0.5 where they carry a sign.
Spot spot_of(const Object& object, double u, double v);

}  // namespace convoy::synth
