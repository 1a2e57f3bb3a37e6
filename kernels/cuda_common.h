// What the CUDA kernels share: element types, vector accesses to nhwc pixels, launch geometry. Included by *.cu only.
//
// A tensor is seen as `rows` of `channels` elements, `pitch` elements apart: the pixels of an nhwc image, or one long
// row for a plain array. A thread handles kLanes neighbouring channels of a row, 16 bytes, where all pointers and
// pitches allow it, else one channel. threadIdx.x runs over the channels and threadIdx.y over the rows, so no index is
// ever divided.
#pragma once
#include <algorithm>
#include <initializer_list>
#include <stdexcept>
#include <string>

#include "kernels/activation.h"
#include "kernels/cuda_compat.h"
#include "kernels/view.h"

namespace convoy::CONVOY_DEVICE {

constexpr int kBlockThreads = 256;
constexpr int64_t kMostRowBlocks = 2048;  ///< enough for every GPU at 8 to 16 resident blocks per multiprocessor
constexpr int64_t kMostColumnBlocks = 4096;

template <class T, int kLanes>
struct alignas(sizeof(T) * kLanes) Pack {
  T lane[kLanes];
};

__host__ __device__ inline float to_float(float x) {
  return x;
}
__host__ __device__ inline float to_float(__half x) {
  return __half2float(x);
}
__host__ __device__ inline float to_float(__nv_bfloat16 x) {
  return __bfloat162float(x);
}
template <class T>
__host__ __device__ inline T from_float(float x) {
  if constexpr (std::is_same_v<T, __half>)
    return __float2half(x);
  else if constexpr (std::is_same_v<T, __nv_bfloat16>)
    return __float2bfloat16(x);
  else
    return x;
}

/// Lanes of one 16-byte access.
template <class T>
constexpr int kVectorLanes = 16 / sizeof(T);

/// The common shape of a call's tensors. Channels from `channels` to `padded` are pad lanes.
struct Rows {
  int64_t rows, channels, padded;
};

/// One tensor of a call, read or written.
template <class T>
struct Operand {
  T* data;
  int64_t pitch;
};

/// The channels [c, c + kLanes) of a row; lanes from `channels` on come as zero, whatever the pads hold.
template <int kLanes, class T>
__device__ inline void load_lanes(const Operand<const T>& x, const Rows& shape, int64_t row, int64_t c,
                                  float (&value)[kLanes]) {
  const T* p = x.data + row * x.pitch + c;
  if (c + kLanes <= shape.padded) {
    const auto pack = *reinterpret_cast<const Pack<T, kLanes>*>(p);
#pragma unroll
    for (int j = 0; j < kLanes; ++j) value[j] = c + j < shape.channels ? to_float(pack.lane[j]) : 0.f;
  } else {
#pragma unroll
    for (int j = 0; j < kLanes; ++j) value[j] = c + j < shape.channels ? to_float(p[j]) : 0.f;
  }
}

/// Stores them; pad lanes up to `padded` become zero, nothing behind them is touched.
template <int kLanes, class T>
__device__ inline void store_lanes(const Operand<T>& y, const Rows& shape, int64_t row, int64_t c,
                                   const float (&value)[kLanes]) {
  T* p = y.data + row * y.pitch + c;
  if (c + kLanes <= shape.padded) {
    Pack<T, kLanes> pack;
#pragma unroll
    for (int j = 0; j < kLanes; ++j) pack.lane[j] = from_float<T>(c + j < shape.channels ? value[j] : 0.f);
    *reinterpret_cast<Pack<T, kLanes>*>(p) = pack;
  } else {
#pragma unroll
    for (int j = 0; j < kLanes; ++j)
      if (c + j < shape.padded) p[j] = from_float<T>(c + j < shape.channels ? value[j] : 0.f);
  }
}

/// Channels [c, c + kLanes) of an array per channel, `otherwise` past its end.
template <int kLanes>
__device__ inline void load_channels(const float* array, int64_t channels, int64_t c, float otherwise,
                                     float (&value)[kLanes]) {
#pragma unroll
  for (int j = 0; j < kLanes; ++j) value[j] = c + j < channels ? array[c + j] : otherwise;
}

/// act(x); NaN passes through. The exponential is the accurate one.
__device__ inline float activate(float x, Activation act) {
  switch (act) {
    case Activation::kRelu:
      return x < 0.f ? 0.f : x;
    case Activation::kRelu6:
      return x < 0.f ? 0.f : x > 6.f ? 6.f : x;
    case Activation::kSigmoid:
      return 1.f / (1.f + expf(-x));
    default:
      return x;
  }
}

/// dy times the derivative, from the activation's output y.
__device__ inline float activate_backward(float dy, float y, Activation act) {
  switch (act) {
    case Activation::kRelu:
      return y > 0.f ? dy : 0.f;
    case Activation::kRelu6:
      return y > 0.f && y < 6.f ? dy : 0.f;
    case Activation::kSigmoid:
      return dy * (y * (1.f - y));
    default:
      return dy;
  }
}

inline int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

template <class T>
Operand<T> operand(const View& v) {
  const int64_t pitch = v.layout == Layout::kNhwc ? v.pitch : v.image_stride();
  return {static_cast<T*>(v.data), pitch};
}

/// The shape of a call on nhwc images.
inline Rows pixel_rows(const View& v) {
  return {v.n * v.pixels(), v.c, v.blocks() * v.block};
}

/// Threads of a block over channels (x) and rows (y), and blocks over both.
struct Geometry {
  dim3 grid, block;
};

/// Channels get a power of two of threads, up to `most_x`; the rest of the block goes to rows.
inline Geometry geometry(const Rows& shape, int lanes, int most_x, int64_t row_blocks, int64_t column_blocks) {
  const int64_t groups = ceil_div(shape.padded, lanes);
  int x = 1;
  while (x < groups && x < most_x) x *= 2;
  const int y = kBlockThreads / x;
  const auto clamp = [](int64_t blocks, int64_t most) {
    return static_cast<unsigned>(std::clamp<int64_t>(blocks, 1, most));
  };
  return {dim3(clamp(ceil_div(shape.rows, y), row_blocks), clamp(ceil_div(groups, x), column_blocks)), dim3(x, y)};
}

/// Throws unless every view has the dtype, layout and channels of the first one, in a layout that the launcher takes.
/// Null views are skipped.
inline void check_operands(const char* kernel, std::initializer_list<const View*> views, bool images_only) {
  const View& first = **views.begin();
  for (const View* v : views) {
    if (!v) continue;
    const std::string fault = std::string(CONVOY_DEVICE_NAME "::") + kernel + ": ";
    if (v->layout == Layout::kBlocked || (images_only && v->layout != Layout::kNhwc))
      throw std::invalid_argument(fault + "layout " + layout_name(v->layout) + ", expected nhwc");
    if (v->dtype != first.dtype || v->layout != first.layout || v->c != first.c || v->block != first.block)
      throw std::invalid_argument(fault + "operands differ in dtype, layout, channels or block");
  }
}

/// Whether 16-byte accesses are possible for all views: pointers and, from the second row on, pitches are multiples of
/// 16 bytes.
inline bool vectors_fit(std::initializer_list<const View*> views, int64_t rows) {
  bool fit = true;
  for (const View* v : views) {
    if (!v) continue;
    const int64_t pitch = v->layout == Layout::kNhwc ? v->pitch : v->image_stride();
    fit &= reinterpret_cast<uintptr_t>(v->data) % 16 == 0;
    fit &= rows == 1 || pitch * static_cast<int64_t>(dtype_size(v->dtype)) % 16 == 0;
  }
  return fit;
}

template <class T>
struct Element {
  using Type = T;
};

/// Calls f(Element<T>, lanes), lanes an integral constant, for the dtype and for vector or single accesses.
template <class F>
void dispatch(const char* kernel, DType dtype, bool vectors, F f) {
  const auto with = [&]<class T>(Element<T> element) {
    if (vectors)
      f(element, std::integral_constant<int, kVectorLanes<T>>{});
    else
      f(element, std::integral_constant<int, 1>{});
  };
  switch (dtype) {
    case DType::kF32:
      return with(Element<float>{});
    case DType::kF16:
      return with(Element<__half>{});
    case DType::kBF16:
      return with(Element<__nv_bfloat16>{});
    default:
      throw std::invalid_argument(std::string(CONVOY_DEVICE_NAME "::") + kernel + ": dtype " + dtype_name(dtype) +
                                  ", expected f32, f16 or bf16");
  }
}

}  // namespace convoy::CONVOY_DEVICE
