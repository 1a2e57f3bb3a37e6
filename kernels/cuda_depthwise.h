// What the two files of depthwise convolutions share. Included by *.cu only.
#pragma once
#include "kernels/cuda_conv.h"
#include "kernels/depthwise.h"

namespace convoy::CONVOY_DEVICE {

constexpr int kTile = 4;  ///< pixels of y (of dx) that a thread handles at once, along w

/// kLanes channels from p on, by one access.
template <int kLanes, class T>
__device__ inline void load_pack(const T* p, float (&value)[kLanes]) {
  const auto pack = *reinterpret_cast<const Pack<T, kLanes>*>(p);
#pragma unroll
  for (int j = 0; j < kLanes; ++j) value[j] = to_float(pack.lane[j]);
}

/// Whole vectors of channels only: a thread reads its lanes without looking at each.
inline bool whole_vectors(const View& source, const View& target) {
  const int64_t lanes = 16 / static_cast<int64_t>(dtype_size(target.dtype));
  return vectors_fit({&source, &target}, 2) && target.blocks() * target.block % lanes == 0;
}

/// Calls f with kKernel and kStride, integral constants: a sliding kernel where there is one for the width, else 1.
template <class F>
void dispatch_kernel(const ConvAxis& w, bool slides, int stride, F f) {
  const auto with_stride = [&](auto kernel) {
    if (stride == 1) return f(kernel, std::integral_constant<int, 1>{});
    return f(kernel, std::integral_constant<int, 2>{});
  };
  if (slides && stride <= 2 && w.kernel == 3) return with_stride(std::integral_constant<int, 3>{});
  if (slides && stride <= 2 && w.kernel == 5) return with_stride(std::integral_constant<int, 5>{});
  if (slides && stride <= 2 && w.kernel == 7) return with_stride(std::integral_constant<int, 7>{});
  f(std::integral_constant<int, 1>{}, std::integral_constant<int, 1>{});
}

/// Throws unless the operands and the kernel are such as the launchers take.
inline void check_depthwise(const char* kernel, const View& source, const View& target, int64_t taps) {
  check_operands(kernel, {&source, &target}, true);
  const std::string fault = std::string(CONVOY_DEVICE_NAME "::") + kernel + ": ";
  if (source.n != target.n) throw std::invalid_argument(fault + "numbers of images differ");
  if (taps > kMaxDepthwiseTaps) throw std::invalid_argument(fault + "the kernel is too large");
}

}  // namespace convoy::CONVOY_DEVICE
