#include "engine/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace convoy {

double LrSchedule::at(int64_t step) const {
  step = std::clamp<int64_t>(step, 0, std::max<int64_t>(total_steps - 1, 0));
  const auto t = static_cast<double>(step);
  const auto total = static_cast<double>(total_steps), warmup = static_cast<double>(warmup_steps);
  double factor = 1;
  if (t < warmup) factor = linear_warmup ? warmup_factor * (1 - t / warmup) + t / warmup : warmup_factor;
  switch (kind) {
    case Kind::kPoly:
      if (t < warmup) return base * factor;
      return base * std::pow(1 - (t - warmup) / std::max(total - warmup, 1.0), power);
    case Kind::kCosine:
      return base * factor * 0.5 * (1 + std::cos(std::numbers::pi * t / total));
    case Kind::kStep: {
      const auto passed = std::count_if(milestones.begin(), milestones.end(), [&](int64_t m) { return m <= step; });
      return base * factor * std::pow(gamma, static_cast<double>(passed));
    }
  }
  return base;
}

}  // namespace convoy
