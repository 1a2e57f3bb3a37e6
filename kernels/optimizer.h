// Updates of flat parameter arrays and the reductions over gradients that go with them.
#pragma once
#include "kernels/isa.h"

// sgd_momentum     g = grad + weight_decay * param; v = first_step ? g : momentum * v + g;
//                  param -= lr * (nesterov ? g + momentum * v : v). PyTorch's SGD with dampening 0. `velocity` is kept
//                  even when momentum is 0.
// sum_of_squares   in double; the order of summation depends on `count` alone.
// all_finite       false if any element is infinite or NaN.
CONVOY_CPU_KERNELS(void sgd_momentum(float* param, const float* grad, float* velocity, int64_t count, float lr,
                                     float momentum, float weight_decay, bool nesterov, bool first_step);
                   double sum_of_squares(const float* x, int64_t count);
                   bool all_finite(const float* x, int64_t count);)
