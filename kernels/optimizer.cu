// One update of all parameters, and the reductions over gradients that go with it.
// Bytes: an update reads value, gradient and one or two states and writes all but the gradient, 20 B (sgd) or 28 B
// (adam) per element, 2 B more for the copy that a reduced precision computes with; the reductions read 4 B. FLOPs: 6
// to 15 per element. Bound by memory: on an H100 (3.35 TB/s) adam with a bf16 copy should take 0.22 ms for the 25 M
// parameters of a ResNet-50, one launch whatever their number; the norm of the gradients 0.03 ms.
// Numerics: fp32 values, gradients and states, what depends on the step alone in double on the host; sums of squares in
// double, in two launches of fixed order. No element depends on another one.
#include "kernels/optimizer.h"

#include "kernels/cuda_common.h"

namespace convoy::CONVOY_DEVICE {
namespace {

constexpr int kLanes = 4;  // 16 bytes of fp32
constexpr int64_t kMostUpdateBlocks = 1 << 20;

template <UpdateKind kKind>
struct Rule {
  UpdateScalars s;
  float rate, decay, shrink;  // of the run

  __device__ void operator()(float& value, float gradient, float& first, float& second) const {
    if constexpr (kKind == UpdateKind::kAdamW)
      value *= shrink;
    else
      gradient += decay * value;
    if constexpr (kKind == UpdateKind::kSgd) {
      first = s.first ? gradient : s.momentum * first + gradient;
      value -= rate * (s.nesterov ? gradient + s.momentum * first : first);
    } else if constexpr (kKind == UpdateKind::kRmsprop) {
      first = s.alpha * first + s.alpha_rest * (gradient * gradient);
      const float direction = gradient / (sqrtf(first) + s.eps);
      second = s.momentum * second + direction;
      value -= rate * second;
    } else if constexpr (kKind == UpdateKind::kAdadelta) {
      first = s.alpha * first + s.alpha_rest * (gradient * gradient);
      const float step = sqrtf((second + s.eps) / (first + s.eps)) * gradient;
      value -= rate * step;
      second = s.alpha * second + s.alpha_rest * (step * step);
    } else {
      first += s.beta1_rest * (gradient - first);
      second = s.beta2 * second + s.beta2_rest * (gradient * gradient);
      value -= rate * (first / (sqrtf(second) * s.root_scale + s.eps));
    }
  }
};

struct Arrays {
  float* __restrict__ values;
  const float* __restrict__ gradients;
  float* __restrict__ first;
  float* __restrict__ second;  // null where the rule has one state
  void* __restrict__ copy;     // null where none is wanted
};

using Floats = Pack<float, kLanes>;

__device__ Floats load_four(const float* p, bool present) {
  return present ? *reinterpret_cast<const Floats*>(p) : Floats{};
}

// A block takes a run, then the run a grid further on.
template <UpdateKind kKind, class Copy>
__global__ void __launch_bounds__(kBlockThreads)
    update_kernel(Arrays arrays, const UpdateRun* __restrict__ runs, int64_t run_count, UpdateScalars scalars,
                  const float* __restrict__ factor) {
  const float scale = factor ? *factor : 1.f;
  if (scale != scale) return;
  Copy* copy = static_cast<Copy*>(arrays.copy);
  for (int64_t r = blockIdx.x; r < run_count; r += gridDim.x) {
    const UpdateRun run = runs[r];
    const Rule<kKind> rule{scalars, static_cast<float>(scalars.rate * run.lr_factor),
                           static_cast<float>(run.weight_decay),
                           static_cast<float>(1 - scalars.lr * run.lr_factor * run.weight_decay)};
    for (int64_t i = static_cast<int64_t>(threadIdx.x) * kLanes; i < run.count; i += blockDim.x * kLanes) {
      const int64_t at = run.offset + i;
      if (i + kLanes <= run.count) {
        Floats value = load_four(arrays.values + at, true), first = load_four(arrays.first + at, true);
        Floats second = load_four(arrays.second + at, arrays.second);
        const Floats gradient = load_four(arrays.gradients + at, true);
        Pack<Copy, kLanes> narrow;
#pragma unroll
        for (int j = 0; j < kLanes; ++j) {
          rule(value.lane[j], gradient.lane[j] * scale, first.lane[j], second.lane[j]);
          narrow.lane[j] = from_float<Copy>(value.lane[j]);
        }
        *reinterpret_cast<Floats*>(arrays.values + at) = value;
        *reinterpret_cast<Floats*>(arrays.first + at) = first;
        if (arrays.second) *reinterpret_cast<Floats*>(arrays.second + at) = second;
        if (copy) *reinterpret_cast<Pack<Copy, kLanes>*>(copy + at) = narrow;
        continue;
      }
      for (int64_t k = at; k < run.offset + run.count; ++k) {
        float second = arrays.second ? arrays.second[k] : 0.f;
        rule(arrays.values[k], arrays.gradients[k] * scale, arrays.first[k], second);
        if (arrays.second) arrays.second[k] = second;
        if (copy) copy[k] = from_float<Copy>(arrays.values[k]);
      }
    }
  }
}

// value(thread's share) merged over a block by `merge`, in thread 0.
template <class T, class Merge>
__device__ T merge_block(T value, Merge merge) {
  CONVOY_SHARED(T[kBlockThreads], shared);
  shared[threadIdx.x] = value;
  for (int half = kBlockThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (static_cast<int>(threadIdx.x) < half)
      shared[threadIdx.x] = merge(shared[threadIdx.x], shared[threadIdx.x + half]);
  }
  return threadIdx.x == 0 ? shared[0] : value;
}

struct SumOfSquares {
  using Result = double;
  static constexpr double kStart = 0;
  __device__ static double of(float x) { return static_cast<double>(x) * static_cast<double>(x); }
  __device__ double operator()(double a, double b) const { return a + b; }
};
struct AllFinite {
  using Result = int32_t;
  static constexpr int32_t kStart = 1;
  __device__ static int32_t of(float x) { return x - x == 0.f; }
  __device__ int32_t operator()(int32_t a, int32_t b) const { return a & b; }
};

// First stage: each of gridDim.x blocks takes every gridDim.x-th piece of an array; its head is what lies before the
// first 16-byte boundary.
template <class Reduction>
__global__ void __launch_bounds__(kBlockThreads) reduce_kernel(const float* __restrict__ x, int64_t head, int64_t count,
                                                               typename Reduction::Result* __restrict__ partial) {
  constexpr Reduction kMerge{};
  typename Reduction::Result total = Reduction::kStart;
  const int64_t packs = (count - head) / kLanes,
                thread = static_cast<int64_t>(blockIdx.x) * kBlockThreads + threadIdx.x;
  for (int64_t p = thread; p < packs; p += static_cast<int64_t>(gridDim.x) * kBlockThreads) {
    const Floats four = load_four(x + head + p * kLanes, true);
#pragma unroll
    for (int j = 0; j < kLanes; ++j) total = kMerge(total, Reduction::of(four.lane[j]));
  }
  if (thread < head) total = kMerge(total, Reduction::of(x[thread]));
  const int64_t rest = head + packs * kLanes + thread;
  if (rest < count && thread < kLanes) total = kMerge(total, Reduction::of(x[rest]));
  total = merge_block(total, kMerge);
  if (threadIdx.x == 0) partial[blockIdx.x] = total;
}

template <class Reduction>
__global__ void __launch_bounds__(kBlockThreads)
    reduce_merge_kernel(const typename Reduction::Result* __restrict__ partial, int64_t parts,
                        typename Reduction::Result* __restrict__ result) {
  constexpr Reduction kMerge{};
  typename Reduction::Result total = Reduction::kStart;
  for (int64_t i = threadIdx.x; i < parts; i += kBlockThreads) total = kMerge(total, partial[i]);
  total = merge_block(total, kMerge);
  if (threadIdx.x == 0) *result = total;
}

template <class Reduction>
void reduce(cudaStream_t stream, const float* x, int64_t count, typename Reduction::Result* result,
            typename Reduction::Result* workspace) {
  const auto past = static_cast<int64_t>(reinterpret_cast<uintptr_t>(x) / sizeof(float) % kLanes);
  const int64_t head = std::min<int64_t>(count, past ? kLanes - past : 0);
  const int64_t parts = std::clamp<int64_t>(ceil_div(count, kBlockThreads * kLanes), 1, kReductionParts);
  launch({static_cast<unsigned>(parts), kBlockThreads, 0, stream}, reduce_kernel<Reduction>, x, head, count, workspace);
  launch({1, kBlockThreads, 0, stream}, reduce_merge_kernel<Reduction>, workspace, parts, result);
}

__global__ void factor_kernel(const double* sum_of_squares, float unscale, float max_norm, float* factor) {
  const double norm = static_cast<double>(unscale) * sqrt(*sum_of_squares);
  const double share = max_norm > 0.f ? static_cast<double>(max_norm) / (norm + 1e-6) : 1.0;
  *factor = norm - norm == 0.0 ? static_cast<float>(static_cast<double>(unscale) * (share < 1.0 ? share : 1.0))
                               : static_cast<float>(norm - norm);
}

}  // namespace

void update_parameters(cudaStream_t stream, const UpdateArrays& arrays, const UpdateRun* runs, int64_t run_count,
                       const UpdateRule& rule, const float* factor) {
  const bool two = update_states(rule) == 2;
  const Arrays a{arrays.values, arrays.gradients, arrays.states[0], two ? arrays.states[1] : nullptr, arrays.copy};
  const std::initializer_list<const void*> all = {a.values, a.gradients, a.first, a.second, a.copy};
  for (const void* array : all)
    if (reinterpret_cast<uintptr_t>(array) % 16)
      throw std::invalid_argument(CONVOY_DEVICE_NAME "::update_parameters: an array is not aligned to 16 bytes");
  if (run_count == 0) return;
  const auto blocks = static_cast<unsigned>(std::min(run_count, kMostUpdateBlocks));
  const auto start = [&](auto kernel) {
    launch({blocks, kBlockThreads, 0, stream}, kernel, a, runs, run_count, UpdateScalars(rule), factor);
  };
  const auto with = [&]<UpdateKind kKind>(std::integral_constant<UpdateKind, kKind>) {
    if (arrays.copy && arrays.copy_type == DType::kF16)
      start(update_kernel<kKind, __half>);
    else if (!arrays.copy || arrays.copy_type == DType::kBF16)
      start(update_kernel<kKind, __nv_bfloat16>);
    else
      throw std::invalid_argument(std::string(CONVOY_DEVICE_NAME "::update_parameters: a copy of dtype ") +
                                  dtype_name(arrays.copy_type) + ", expected f16 or bf16");
  };
  switch (rule.kind) {
    case UpdateKind::kSgd:
      return with(std::integral_constant<UpdateKind, UpdateKind::kSgd>{});
    case UpdateKind::kAdam:
      return with(std::integral_constant<UpdateKind, UpdateKind::kAdam>{});
    case UpdateKind::kAdamW:
      return with(std::integral_constant<UpdateKind, UpdateKind::kAdamW>{});
    case UpdateKind::kRmsprop:
      return with(std::integral_constant<UpdateKind, UpdateKind::kRmsprop>{});
    case UpdateKind::kAdadelta:
      return with(std::integral_constant<UpdateKind, UpdateKind::kAdadelta>{});
  }
}

void sum_of_squares(cudaStream_t stream, const float* x, int64_t count, double* result, double* workspace) {
  reduce<SumOfSquares>(stream, x, count, result, workspace);
}
void all_finite(cudaStream_t stream, const float* x, int64_t count, int32_t* result, int32_t* workspace) {
  reduce<AllFinite>(stream, x, count, result, workspace);
}
void gradient_factor(cudaStream_t stream, const double* sum_of_squares, float unscale, float max_norm, float* factor) {
  launch({1, 1, 0, stream}, factor_kernel, sum_of_squares, unscale, max_norm, factor);
}

}  // namespace convoy::CONVOY_DEVICE
