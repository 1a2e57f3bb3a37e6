// Augmentation, a thread per pixel of the crop.
// Bytes: the part of the source under the crop once from memory (its taps from the first-level cache), the crop once.
// A 769 x 769 crop from 2048 x 1024 to fp16 with 8 channels and int32 labels: about 4 MB read, 12 MB written, 5 us on
// an H100 (3.35 TB/s); a 3 x 3 to 5 x 5 neighbourhood in integers is 30 to 80 operations per channel, below that.
// Contrast reads the source once more for the mean luma. Numerics: kernels/augment_math.h.
#include "kernels/augment.h"

#include "kernels/augment_math.h"
#include "kernels/cuda_common.h"
#include "kernels/cuda_reduce.h"

namespace convoy::CONVOY_DEVICE {
namespace {

constexpr int kAcross = 32, kDown = 8;

struct Crop {
  AugmentAxis rows, columns;
  bool mirrored;
  int64_t height, width;

  __device__ bool inside(int64_t y, int64_t x) const {
    return y >= rows.place && y < rows.place + rows.length && x >= columns.place && x < columns.place + columns.length;
  }
  __device__ Rgb pixel(const uint8_t* image, int64_t y, int64_t x) const {
    if (!inside(y, x)) return {};
    return resampled(image, rows, columns, mirrored, y - rows.place, x - columns.place);
  }
};

template <class T>
__global__ void clear_sum_kernel(T* sum) {
  *sum = 0;
}

// Integer sums may be added in any order.
template <class T>
__global__ void __launch_bounds__(kAcross* kDown, 4)
    luma_kernel(const T* __restrict__ image, Crop crop, ColorChain chain, int steps, int64_t* luma_sum) {
  const int64_t x = static_cast<int64_t>(blockIdx.x) * kAcross + threadIdx.x;
  int64_t sum = 0;
  for (int64_t y = static_cast<int64_t>(blockIdx.y) * kDown + threadIdx.y; x < crop.width && y < crop.height;
       y += static_cast<int64_t>(gridDim.y) * kDown)
    sum += luma_of(colored(crop.pixel(image, y, x), chain, steps, 0));
  sum = block_sum(sum);
  if (threadIdx.x == 0 && threadIdx.y == 0)
    atomicAdd(reinterpret_cast<unsigned long long*>(luma_sum), static_cast<unsigned long long>(sum));
}

template <class T, int kLanes>
__global__ void __launch_bounds__(kAcross* kDown, 4)
    augment_kernel(const uint8_t* __restrict__ image, const uint8_t* __restrict__ labels, Crop crop, ColorChain chain,
                   const int64_t* __restrict__ luma_sum, const float* __restrict__ normalized,
                   const int32_t* __restrict__ label_table, int32_t ignore, Operand<T> out, Rows shape,
                   int32_t* __restrict__ out_labels) {
  const int64_t x = static_cast<int64_t>(blockIdx.x) * kAcross + threadIdx.x;
  if (x >= crop.width) return;
  const int mean = luma_sum ? mean_luma(*luma_sum, crop.height * crop.width) : 0;
  for (int64_t y = static_cast<int64_t>(blockIdx.y) * kDown + threadIdx.y; y < crop.height;
       y += static_cast<int64_t>(gridDim.y) * kDown) {
    const int64_t row = y * crop.width + x;
    const Rgb p = colored(crop.pixel(image, y, x), chain, chain.steps, mean);
    for (int64_t c = 0; c < shape.padded; c += kLanes) {
      float value[kLanes] = {};
#pragma unroll
      for (int j = 0; j < kLanes; ++j)
        for (int k = 0; k < 3; ++k)  // constant indices keep the pixel in registers
          if (c + j == k) value[j] = normalized[256 * k + p.channel[k]];
      store_lanes<kLanes>(out, shape, row, c, value);
    }
    if (!out_labels) continue;
    int32_t label = ignore;
    if (crop.inside(y, x)) {
      const int64_t nearest = crop.columns.nearest[x - crop.columns.place];
      const int64_t column = crop.mirrored ? crop.columns.source - 1 - nearest : nearest;
      label = label_table[labels[crop.rows.nearest[y - crop.rows.place] * crop.columns.source + column]];
    }
    out_labels[row] = label;
  }
}

}  // namespace

void augment(cudaStream_t stream, const uint8_t* image, const uint8_t* labels, const Augmentation& a, const View& out,
             int32_t* out_labels, int64_t* luma_sum) {
  if (out.layout != Layout::kNhwc || out.n != 1 || out.c != 3)
    throw std::invalid_argument(CONVOY_DEVICE_NAME "::augment: the result has to be one nhwc image of 3 channels");
  const Crop crop{a.rows, a.columns, a.mirrored, out.h, out.w};
  const ColorChain chain = color_chain(a);
  const int before = steps_before_contrast(chain);
  const dim3 block(kAcross, kDown), grid(static_cast<unsigned>(ceil_div(out.w, kAcross)),
                                         static_cast<unsigned>(std::min<int64_t>(ceil_div(out.h, kDown), 65535)));
  if (before >= 0) {
    launch({dim3(1), dim3(1), 0, stream}, clear_sum_kernel<int64_t>, luma_sum);
    launch({grid, block, 0, stream}, luma_kernel<uint8_t>, image, crop, chain, before, luma_sum);
  }
  const int64_t* sum = before >= 0 ? luma_sum : nullptr;
  const Rows shape = pixel_rows(out);
  dispatch("augment", out.dtype, vectors_fit({&out}, shape.rows), [&]<class T>(Element<T>, auto lanes) {
    launch({grid, block, 0, stream}, augment_kernel<T, lanes>, image, labels, crop, chain, sum, a.normalized,
           a.label_table, a.ignore, operand<T>(out), shape, out_labels);
  });
}

}  // namespace convoy::CONVOY_DEVICE
