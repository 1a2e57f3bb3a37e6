// Updates of flat parameter arrays and the reductions over gradients that go with them.
#pragma once
#include <cmath>

#include "kernels/cuda_stream.h"
#include "kernels/isa.h"

namespace convoy {

enum class UpdateKind : uint8_t { kSgd, kAdam, kAdamW, kRmsprop, kAdadelta };

/// One update of all parameters. The rules are PyTorch's: g is the gradient times the factor, wd the decay, t the step.
///   all but adamw: g += wd * p
///   sgd       v = momentum * v + g (v = g at t = 1);  p -= lr * (nesterov ? g + momentum * v : v)
///   adam      m += (1 - beta1) * (g - m);  s = beta2 * s + (1 - beta2) * g * g;
///             p -= lr / (1 - beta1^t) * m / (sqrt(s) / sqrt(1 - beta2^t) + eps)
///   adamw     p *= 1 - lr * wd, then as adam
///   rmsprop   s = alpha * s + (1 - alpha) * g * g;  d = g / (sqrt(s) + eps);  b = momentum * b + d;
///             p -= lr * b (without momentum: lr * d, and there is no b)
///   adadelta  s = alpha * s + (1 - alpha) * g * g;  d = sqrt(e + eps) / sqrt(s + eps) * g;  p -= lr * d;
///             e = alpha * e + (1 - alpha) * d * d
/// States are v; m, s; s, b; s, e in this order. All but v must start at zero; v is kept even without momentum.
struct UpdateRule {
  UpdateKind kind = UpdateKind::kSgd;
  double lr = 0;
  double momentum = 0;
  bool nesterov = false;
  double beta1 = 0.9, beta2 = 0.999;
  double alpha = 0.9;
  double eps = 1e-8;
  int64_t step = 1;  ///< t, from 1
};

/// Neighbours in the flat arrays that are updated alike. Offsets are multiples of 4.
struct UpdateRun {
  int64_t offset, count;
  double lr_factor, weight_decay;
};

/// The flat arrays, each aligned to 16 bytes.
struct UpdateArrays {
  float* values = nullptr;
  const float* gradients = nullptr;
  float* states[2] = {nullptr, nullptr};
  void* copy = nullptr;  ///< receives the new values rounded to copy_type, f16 or bf16; may be null
  DType copy_type = DType::kBF16;
};

/// State arrays that a rule needs.
inline int update_states(const UpdateRule& rule) {
  return rule.kind == UpdateKind::kSgd || (rule.kind == UpdateKind::kRmsprop && rule.momentum == 0) ? 1 : 2;
}

/// What an update needs of its rule, computed once, in double before it is rounded.
struct UpdateScalars {
  double lr, rate;  ///< `rate` with adam's correction of m
  float momentum, beta1_rest, beta2, beta2_rest, root_scale, alpha, alpha_rest, eps;
  bool nesterov, first;

  explicit UpdateScalars(const UpdateRule& r)
      : lr(r.lr),
        rate(is_adam(r) ? r.lr / (1 - std::pow(r.beta1, static_cast<double>(r.step))) : r.lr),
        momentum(static_cast<float>(r.momentum)),
        beta1_rest(static_cast<float>(1 - r.beta1)),
        beta2(static_cast<float>(r.beta2)),
        beta2_rest(static_cast<float>(1 - r.beta2)),
        root_scale(static_cast<float>(1 / std::sqrt(1 - std::pow(r.beta2, static_cast<double>(r.step))))),
        alpha(static_cast<float>(r.alpha)),
        alpha_rest(static_cast<float>(1 - r.alpha)),
        eps(static_cast<float>(r.eps)),
        nesterov(r.nesterov),
        first(r.step == 1) {}
  static bool is_adam(const UpdateRule& r) { return r.kind == UpdateKind::kAdam || r.kind == UpdateKind::kAdamW; }
};

/// Elements of workspace that sum_of_squares and all_finite need on a device.
constexpr int64_t kReductionParts = 1024;

}  // namespace convoy

// update_parameters  one update of the runs' elements, nothing beside them is written. `factor`, where not null, points
//                    at what gradients are multiplied by; where that is NaN nothing is written at all.
// sum_of_squares     in double; the order of summation depends on `count` alone, on a device also on how x is aligned.
// all_finite         false if any element is infinite or NaN.
// gradient_factor    what undoes a loss scale (`unscale`) and makes the norm of the gradients max_norm where it is
//                    larger (0: any norm will do): unscale * min(1, max_norm / (norm + 1e-6)), norm = unscale *
//                    sqrt(sum_of_squares). NaN where the sum is not finite, so that such a step is left out.
CONVOY_CPU_KERNELS(void update_parameters(const UpdateArrays& arrays, const UpdateRun* runs, int64_t run_count,
                                          const UpdateRule& rule, const float* factor);
                   double sum_of_squares(const float* x, int64_t count); bool all_finite(const float* x, int64_t count);
                   void gradient_factor(const double* sum_of_squares, float unscale, float max_norm, float* factor);)

// On the GPU results stay in device memory, `runs` and `factor` lie there, too. One block works on a run at a time, so
// long runs should be cut into pieces of a few thousand elements. `workspace` has kReductionParts elements. Throws
// std::invalid_argument where an array is not aligned.
CONVOY_CUDA_KERNELS(void update_parameters(cudaStream_t stream, const UpdateArrays& arrays, const UpdateRun* runs,
                                           int64_t run_count, const UpdateRule& rule, const float* factor);
                    void sum_of_squares(cudaStream_t stream, const float* x, int64_t count, double* result,
                                        double* workspace);
                    void all_finite(cudaStream_t stream, const float* x, int64_t count, int32_t* result,
                                    int32_t* workspace);
                    void gradient_factor(cudaStream_t stream, const double* sum_of_squares, float unscale,
                                         float max_norm, float* factor);)
