#include "engine/rng.h"

#include <cmath>
#include <numbers>

namespace convoy {

double RandomStream::normal() {
  const double u = 1.0 - uniform(0.0, 1.0);  // in (0,1], so that the logarithm is finite
  const double v = uniform(0.0, 1.0);
  return std::sqrt(-2.0 * std::log(u)) * std::cos(2.0 * std::numbers::pi * v);
}

}  // namespace convoy
