// Learning rates as a pure function of the step, so that resuming needs nothing but the step.
#pragma once
#include <cstdint>
#include <vector>

namespace convoy {

/// With T = total_steps, w = warmup_steps and the warm-up factor f = warmup_factor*(1-t/w) + t/w (linear) or
/// warmup_factor (constant) for t < w, and 1 behind it:
///   poly    base * f for t < w, else base * (1 - (t-w)/(T-w))^power
///   cosine  base * f * (1 + cos(pi*t/T)) / 2
///   step    base * f * gamma^(milestones passed)
struct LrSchedule {
  enum class Kind : uint8_t { kPoly, kCosine, kStep };
  Kind kind = Kind::kPoly;
  double base = 1e-4;
  int64_t total_steps = 1;
  int64_t warmup_steps = 0;
  double warmup_factor = 1.0 / 3;
  bool linear_warmup = true;
  double power = 0.9;
  double gamma = 0.1;
  std::vector<int64_t> milestones;

  /// Rate of the step with this number (0 is the first). Behind the last step it is the last step's.
  double at(int64_t step) const;
};

}  // namespace convoy
