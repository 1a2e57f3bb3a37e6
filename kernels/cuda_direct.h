// What the files of the plain convolution share. Included by *.cu only.
#pragma once
#include "kernels/cuda_common.h"

namespace convoy::CONVOY_DEVICE {

constexpr int kChannels = 8;  ///< channels of a thread's tile

/// An nhwc or nchw image: element (n, c, p) at data + n*image + c*channel + p*pixel.
template <class T>
struct ImageOperand {
  T* data;
  int64_t image, channel, pixel;
};

template <class T>
ImageOperand<T> image_operand(const View& v) {
  const bool nhwc = v.layout == Layout::kNhwc;
  return {static_cast<T*>(v.data), v.image_stride(), nhwc ? 1 : v.pixels(), nhwc ? v.pitch : 1};
}

/// kChannels neighbouring channels from p on, which is a multiple of 16 bytes.
template <class T>
__device__ inline void load_channel_tile(const T* p, float (&value)[kChannels]) {
  constexpr int kLanes = kVectorLanes<T>;
#pragma unroll
  for (int q = 0; q < kChannels; q += kLanes) {
    const auto pack = *reinterpret_cast<const Pack<T, kLanes>*>(p + q);
#pragma unroll
    for (int j = 0; j < kLanes; ++j) value[q + j] = to_float(pack.lane[j]);
  }
}

template <class T>
__device__ inline void store_channel_tile(T* p, const float (&value)[kChannels]) {
  constexpr int kLanes = kVectorLanes<T>;
#pragma unroll
  for (int q = 0; q < kChannels; q += kLanes) {
    Pack<T, kLanes> pack;
#pragma unroll
    for (int j = 0; j < kLanes; ++j) pack.lane[j] = from_float<T>(value[q + j]);
    *reinterpret_cast<Pack<T, kLanes>*>(p + q) = pack;
  }
}

/// Throws unless `image` is one that the launchers read and `other` one that they write, of the same dtype.
inline void check_direct(const char* kernel, const View& image, const View& other) {
  check_operands(kernel, {&other}, true);
  const std::string fault = std::string(CONVOY_DEVICE_NAME "::") + kernel + ": ";
  if (image.layout == Layout::kBlocked) throw std::invalid_argument(fault + "layout blocked, expected nhwc or nchw");
  if (image.dtype != other.dtype || image.n != other.n)
    throw std::invalid_argument(fault + "operands differ in dtype or number of images");
}

}  // namespace convoy::CONVOY_DEVICE
