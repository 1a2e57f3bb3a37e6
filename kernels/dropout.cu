// Dropout: the mask is the CPU twin's, bit by bit, whatever the layout.
// Bytes: x read and y written once; 100 M bf16 elements should take 0.12 ms on an H100 (3.35 TB/s). Operations: a
// thread has kRun consecutive pixels of kLanes channels, so that a counter's four words, which belong to consecutive
// elements of one channel, are used together: 5 counters (4 where the number of pixels is a multiple of 4) of about 60
// integer operations for 16 elements.
// Numerics: one product in fp32 and one rounding. Deterministic.
#include "kernels/dropout.h"

#include "kernels/cuda_common.h"
#include "kernels/cuda_philox.h"

namespace convoy::CONVOY_DEVICE {
namespace {

constexpr int kRun = 16;
constexpr int kMostTileThreads = 32;
constexpr int64_t kMostGrid = 65535;

struct Mask {
  uint64_t key, global_step;
  int64_t first_slot;
  uint32_t threshold;  // words from here on keep their element
  float factor;        // of what is kept
  int64_t plane;       // whole channels: elements that share a word; else 0
};

// Bit i is set where element first + i of the image in `slot` is kept.
__device__ uint32_t kept_bits(const Mask& mask, uint64_t slot, uint64_t first) {
  uint32_t bits = 0;
  const int skipped = static_cast<int>(first % 4), counters = skipped == 0 ? kRun / 4 : kRun / 4 + 1;
  for (int k = 0; k < counters; ++k) {
    const PhiloxWords words = philox_words(mask.key, mask.global_step, slot | (first / 4 + k));
    const auto kept = [&](uint32_t word, int i) { return (word >= mask.threshold ? 1u : 0u) << (4 * k + i); };
    bits |= kept(words.word[0], 0) | kept(words.word[1], 1) | kept(words.word[2], 2) | kept(words.word[3], 3);
  }
  return bits >> skipped;
}

// Grid (runs of pixels, tiles of channels, images); `shape` is one image's.
template <class T, int kLanes>
__global__ void __launch_bounds__(kBlockThreads)
    dropout_kernel(Operand<const T> x, Operand<T> y, Rows shape, int64_t images, Mask mask) {
  const int64_t column_step = static_cast<int64_t>(gridDim.y) * blockDim.x * kLanes;
  const int64_t first = (static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y) * kRun;
  if (first >= shape.rows) return;
  const int count = shape.rows - first < kRun ? static_cast<int>(shape.rows - first) : kRun;
  for (int64_t n = blockIdx.z; n < images; n += gridDim.z) {
    const uint64_t slot = static_cast<uint64_t>(mask.first_slot + n) << 32;
    for (int64_t c = (static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x) * kLanes; c < shape.padded;
         c += column_step) {
      uint32_t bits[kLanes];
#pragma unroll 1
      for (int j = 0; j < kLanes; ++j) {
        uint32_t kept = 0;
        if (c + j < shape.channels) {
          if (mask.plane == 0)
            kept = kept_bits(mask, slot, static_cast<uint64_t>((c + j) * shape.rows + first));
          else
            kept = kept_bits(mask, slot, static_cast<uint64_t>((c + j) / mask.plane)) & 1u ? ~0u : 0u;
        }
#pragma unroll
        for (int k = 0; k < kLanes; ++k)  // a register chosen without an index
          if (k == j) bits[k] = kept;
      }
      for (int i = 0; i < count; ++i) {
        const int64_t row = n * shape.rows + first + i;
        float value[kLanes];
        load_lanes<kLanes>(x, shape, row, c, value);
#pragma unroll
        for (int j = 0; j < kLanes; ++j) value[j] = bits[j] >> i & 1u ? value[j] * mask.factor : 0.f;
        store_lanes<kLanes>(y, shape, row, c, value);
      }
    }
  }
}

}  // namespace

void dropout(cudaStream_t stream, const View& x, float p, uint64_t key, uint64_t global_step, int64_t first_slot,
             bool whole_channels, const View& y) {
  check_operands("dropout", {&x, &y}, false);
  if (x.count() == 0) return;
  // A plain array's elements are counted as they lie: channels of one pixel each.
  const bool image = y.layout == Layout::kNhwc;
  const Rows shape = image ? Rows{y.pixels(), y.c, y.blocks() * y.block} : Rows{1, y.c * y.pixels(), y.c * y.pixels()};
  const Mask mask{.key = key,
                  .global_step = global_step,
                  .first_slot = first_slot,
                  .threshold = p < 1 ? static_cast<uint32_t>(philox_threshold(p)) : ~0u,
                  .factor = p < 1 ? static_cast<float>(1 / (1 - static_cast<double>(p))) : 0.f,
                  .plane = !whole_channels ? 0
                           : image         ? 1
                                           : y.pixels()};
  dispatch("dropout", y.dtype, vectors_fit({&x, &y}, y.n * shape.rows),
           [&]<class T, int kLanes>(Element<T>, std::integral_constant<int, kLanes>) {
             const Rows runs{ceil_div(shape.rows, kRun), shape.channels, shape.padded};
             Geometry g = geometry(runs, kLanes, image ? kMostTileThreads : kBlockThreads, INT32_MAX, kMostGrid);
             g.grid.z = static_cast<unsigned>(std::min(y.n, kMostGrid));
             launch({g.grid, g.block, 0, stream}, dropout_kernel<T, kLanes>, operand<const T>(x), operand<T>(y), shape,
                    y.n, mask);
           });
}

}  // namespace convoy::CONVOY_DEVICE
