#include "io/synth_objects.h"

#include <algorithm>

namespace convoy::synth {
namespace {

bool inside_ellipse(double u, double v, double cu, double cv, double ru, double rv) {
  const double a = (u - cu) / ru, b = (v - cv) / rv;
  return a * a + b * b < 1;
}

Spot person_at(const Object& o, double u, double v) {
  if (inside_ellipse(u, v, 0, .91, .17, .09))
    return {kPerson, v > .94 ? scaled(o.third, .5) : blended(o.third, {.8, .6, .5}, .7), true};
  if (v > .46 && v < .83 && std::abs(u) < .3 + .1 * (v - .46)) return {kPerson, o.first, true};
  if (v > .42 && v < .8 && std::abs(std::abs(u) - .4) < .08) return {kPerson, scaled(o.first, .8), true};
  const double stride = .08 + .14 * (.5 - v) * (static_cast<double>(o.key & 7) / 7);
  if (v <= .48 && std::abs(std::abs(u) - stride) < .11)
    return {kPerson, v < .05 ? scaled(o.second, .3) : o.second, true};
  return {};
}

Spot car_rear_at(const Object& o, double u, double v) {
  const double side = std::abs(u);
  if (v < .2)
    return side > .3 && side < .47 ? Spot{kCar, {.08, .08, .09}, true}
           : v > .1 && side < .48  ? Spot{kCar, scaled(o.first, .35), true}
                                   : Spot{};
  if (v < .58) {
    if (v > .4 && side > .36 && side < .49) return {kCar, {.75, .12, .1}, true};
    if (v > .28 && v < .4 && side < .16) return {kCar, {.9, .9, .86}, true};
    return side < .5 ? Spot{kCar, scaled(o.first, .75 + .4 * v), true} : Spot{};
  }
  const double roof = .48 - .3 * (v - .58);
  if (side >= roof) return {};
  const bool glass = v < .92 && side < roof - .05;
  return {kCar, glass ? blended({.1, .12, .15}, o.second, .2) : o.first, true};
}

Spot car_side_at(const Object& o, double u, double v) {
  for (const double wheel : {-.3, .3}) {
    const double ratio = o.width / o.height;
    const double a = (u - wheel) * ratio, b = v - .2;
    const double r2 = a * a + b * b;
    if (r2 < .01) return {kCar, {.6, .6, .62}, true};
    if (r2 < .04) return {kCar, {.07, .07, .08}, true};
  }
  if (v > .15 && v < .6) return {kCar, scaled(o.first, .7 + .45 * v), true};
  if (v >= .6) {
    const double slope = .7 * (v - .6);
    if (u < -.38 + slope || u > .3 - slope) return {};
    const bool glass = v < .92 && u > -.33 + slope && u < .25 - slope && std::abs(u + .03) > .015;
    return {kCar, glass ? blended({.1, .12, .15}, o.second, .2) : o.first, true};
  }
  return {};
}

Spot pole_at(const Object& o, double u, double v) {
  if (o.sign) {
    const double a = u * o.width, b = v * o.height - (o.height - kSignRadius);
    double inner = 2;
    if (o.sign_shape == 0) inner = (a * a + b * b) / (kSignRadius * kSignRadius);
    if (o.sign_shape == 1) inner = std::max(std::abs(a) * 2 + b, -2 * b) / kSignRadius;
    if (o.sign_shape == 2) inner = std::max(std::abs(a), std::abs(b)) / kSignRadius;
    if (inner < 1) return {kSign, inner > .6 ? o.second : o.third, true};
  }
  if (std::abs(u) < .5) return {kPole, scaled(o.first, .75 + .5 * (u + .5)), false};
  return {};
}

Spot tree_at(const Object& o, double u, double v) {
  const double a = u * o.width, b = v * o.height;
  const double edge = .75 + .5 * noise(a * 2.5, b * 2.5, o.key);
  if (inside_ellipse(u, v, 0, .68, .5 * edge, .34 * edge)) {
    return {kVegetation, scaled(o.first, .4 + .6 * noise(a * 5, b * 5, o.key) + .5 * noise(a * 14, b * 14, o.key)),
            false};
  }
  if (v < .6 && std::abs(a) < .14)
    return {kVegetation, scaled({.35, .27, .2}, .7 + .5 * noise(a * 20, b * 4, o.key)), false};
  return {};
}

}  // namespace

Spot spot_of(const Object& o, double u, double v) {
  switch (o.shape) {
    case Shape::person:
      return person_at(o, u, v);
    case Shape::car_rear:
      return car_rear_at(o, u, v);
    case Shape::car_side:
      return car_side_at(o, u, v);
    case Shape::pole:
      return pole_at(o, u, v);
    case Shape::tree:
      return tree_at(o, u, v);
    case Shape::bin:
      return {kDynamic, scaled(o.first, v > .85 ? .6 : 1), false};
  }
  return {};
}

}  // namespace convoy::synth
