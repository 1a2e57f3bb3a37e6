// Softmax cross entropy of nhwc logits fused with their bilinear upsampling: loss and gradient in one pass over the
// output pixels, of which nothing is stored.
//
// A block takes a tile of 8 x 32 output pixels, a thread per pixel: it mixes the four logits around the pixel (from the
// first-level cache: neighbouring pixels read the same ones), takes the softmax and leaves the exponentials in shared
// memory. Then the threads change sides: a warp owns a row of the tile, a lane a class, and sums the row's gradients
// column by column of the source in one sweep; last, rows are summed. What a tile adds to the few source pixels that it
// reads (3 x 6 at a factor of 8) goes to the workspace, and a second kernel sums it over the tiles in order. Why not a
// gather by source pixels alone: every output pixel is read by four, each of which would repeat its exponentials. Why
// tiles of the output: they bound both the shared memory and the longest sum for every factor, and there are enough of
// them at batch 1. Without a resize the gradient is written at once. More than 32 classes go in chunks of 32, and the
// gradient's exponentials are computed again.
//   For 19 classes, 1024 x 2048 from 1/8, bf16, per image: bytes 8.4 MB of labels, 1.6 MB of logits, the workspace 11
//   MB written and read, 1.6 MB of gradients: 0.01 ms at 3.35 TB/s. About 40 M exponentials and 25 FLOPs with each,
//   four accesses to shared memory: 0.06 to 0.1 ms expected on an H100, bound by instructions issued. Numerics: storage
//   fp32, fp16 or bf16, arithmetic in fp32, the loss summed in double. Tiles depend on the shape only and everything is
//   summed in a fixed order.
#include "kernels/softmax_ce.h"

#include "kernels/cuda_common.h"
#include "kernels/cuda_reduce.h"
#include "kernels/cuda_resize_axis.h"

namespace convoy::CONVOY_DEVICE {
namespace {

constexpr int kTileRows = SoftmaxCeTiles::kRows, kTileColumns = SoftmaxCeTiles::kMostColumns;
constexpr int kTilePixels = kTileRows * kTileColumns;
constexpr int kClassChunk = 32;
constexpr int kMergeColumns = 32;  // most threads of a block of the merge along the channels
constexpr float kAbsent = -1e30f;
static_assert(kTilePixels == kBlockThreads && kTileColumns == 32);

struct Problem {
  const int32_t* target;
  int32_t ignore_index;
  const float* class_weight;
  const float* normalizer;
  float alpha, gamma;
  bool focal;
  Axis rows, columns;
};

struct Tiles {
  int width, source_rows, source_columns;  // width: a power of two
};

// The four source pixels of an output pixel and their shares.
struct Corners {
  int64_t upper_left, upper_right, lower_left, lower_right;
  float lower, right;
};

// Logits [first, first + count) of a pixel go to `values`; returns the largest.
template <bool kResized, int kLanes, class T>
__device__ float mix_logits(const Operand<const T>& x, const Rows& shape, const Corners& at, int64_t first, int count,
                            float* values) {
  float high = kAbsent;
  const float upper = 1.f - at.lower, left = 1.f - at.right;
  for (int k = 0; k < count; k += kLanes) {
    float v[kLanes];
    load_lanes<kLanes>(x, shape, at.upper_left, first + k, v);
    if constexpr (kResized) {
      float below[kLanes], beside[kLanes], across[kLanes];
      load_lanes<kLanes>(x, shape, at.lower_left, first + k, below);
      load_lanes<kLanes>(x, shape, at.upper_right, first + k, beside);
      load_lanes<kLanes>(x, shape, at.lower_right, first + k, across);
#pragma unroll
      for (int j = 0; j < kLanes; ++j)
        v[j] = (v[j] * upper + below[j] * at.lower) * left + (beside[j] * upper + across[j] * at.lower) * at.right;
    }
#pragma unroll
    for (int j = 0; j < kLanes; ++j) {
      if (k + j >= count) break;
      values[k + j] = v[j];
      high = fmaxf(high, v[j]);
    }
  }
  return high;
}

// Turns the loss -log p into alpha (1 - p)^gamma -log p and returns the factor between the gradients of the two:
// alpha (1 - p)^gamma (1 + gamma p (-log p) / (1 - p)).
__device__ float focus(float alpha, float gamma, float* loss) {
  const float p = expf(fminf(0.f, -*loss)), q = fmaxf(1.f - p, 1e-30f);
  const float power = gamma == 2.f ? q * q : gamma == 0.f ? 1.f : expf(gamma * logf(q));
  const float slope = q > 1e-6f ? __fdividef(*loss, q) : 1.f;  // tends to 1 where both vanish
  *loss *= alpha * power;
  return alpha * power * (1.f + gamma * p * slope);
}

__device__ int pitch_of(int64_t channels) {
  return static_cast<int>(channels < kClassChunk ? channels : kClassChunk) | 1;
}

// Per row of a tile the gradients of one class, summed over its pixels, column by column of the source.
__device__ void sum_row(const float* gradient, int pitch, const float (*weights)[2], const int* column_of, int width,
                        int columns, float* sums) {
  float left = 0.f, right = 0.f;
  int at = column_of[0];
  for (int i = 0; i < width; ++i) {
    const int next = column_of[i];
    if (next != at) {
      sums[at * pitch] = left;
      left = right;
      right = 0.f;
      while (++at < next) {  // columns that no pixel reads
        sums[at * pitch] = left;
        left = 0.f;
      }
    }
    const float g = gradient[i * pitch];
    left += g * weights[i][0];
    right += g * weights[i][1];
  }
  sums[at * pitch] = left;
  if (at + 1 < columns) sums[(at + 1) * pitch] = right;
}

// Grid (tiles across, tiles down, images). With `probability` nothing else is written.
template <class T, int kLanes, bool kResized>
__global__ void __launch_bounds__(kBlockThreads, 3)
    loss_kernel(Operand<const T> logits, Operand<T> d_logits, Rows shape, Problem p, Tiles tiles,
                float* __restrict__ probability, double* __restrict__ losses, float* __restrict__ partial,
                int64_t* fault) {
  CONVOY_DYNAMIC_SHARED(float, shared);
  CONVOY_SHARED(float[kTilePixels][2], weights);
  CONVOY_SHARED(int[kTileColumns], column_of);
  CONVOY_SHARED(int[kTileRows], row_of);
  CONVOY_SHARED(float[kTileRows], row_weight);
  const int x = threadIdx.x, y = threadIdx.y, pixel_of_tile = y * kTileColumns + x;
  const int pitch = pitch_of(shape.channels);
  float* const exponentials = shared + pixel_of_tile * pitch;
  const int64_t first_w = static_cast<int64_t>(blockIdx.x) * tiles.width, w = first_w + x;
  const int64_t first_h = static_cast<int64_t>(blockIdx.y) * kTileRows, h = first_h + y;
  const bool inside = x < tiles.width && w < p.columns.out && h < p.rows.out;
  const int64_t n = blockIdx.z, pixel = (n * p.rows.out + h) * p.columns.out + w;
  int32_t label = -1;
  if (inside) {
    label = p.target[pixel];
    const bool is_class = label >= 0 && label < shape.channels;
    if (!is_class && label != p.ignore_index && fault) report_fault(fault, pixel);
    if (!is_class || label == p.ignore_index) label = -1;
  }

  Source row{h, h, 0.f}, column{w, w, 0.f};
  if (kResized && inside) {
    row = p.rows.source(h);
    column = p.columns.source(w);
  }
  const int64_t upper = (n * p.rows.in + row.low) * p.columns.in, lower = (n * p.rows.in + row.high) * p.columns.in;
  const Corners at{upper + column.low,  upper + column.high, lower + column.low,
                   lower + column.high, row.weight,          column.weight};
  float high = kAbsent, sum = 0.f, at_label = 0.f;
  if (label >= 0) {
    for (int64_t first = 0; first < shape.channels; first += kClassChunk) {
      const int count = static_cast<int>(min(shape.channels - first, static_cast<int64_t>(kClassChunk)));
      const float highest = fmaxf(high, mix_logits<kResized, kLanes>(logits, shape, at, first, count, exponentials));
      if (label >= first && label < first + count) at_label = exponentials[label - first];
      sum *= expf(high - highest);
      high = highest;
      for (int k = 0; k < count; ++k) {
        const float e = expf(exponentials[k] - high);
        exponentials[k] = e;
        sum += e;
      }
    }
  }
  float loss = label >= 0 ? logf(sum) + (high - at_label) : 0.f;
  if (probability) {
    if (inside) probability[pixel] = label < 0 ? kNoProbability : loss < 0.f ? 1.f : expf(-loss);
    return;
  }
  float scale = 0.f;
  if (label >= 0) {
    const float class_weight = p.class_weight ? p.class_weight[label] : 1.f, normalizer = *p.normalizer;
    const float slope = p.focal ? focus(p.alpha, p.gamma, &loss) : 1.f;
    scale = normalizer != 0.f ? __fdividef(class_weight * slope, normalizer * sum) : 0.f;
    loss *= class_weight;
  }
  const int64_t tile = (n * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  const double tile_loss = block_sum(static_cast<double>(loss));
  if (pixel_of_tile == 0) losses[tile] = tile_loss;
  if (!d_logits.data) return;

  int width = 0, height = 0, columns = 0, rows = 0;
  if constexpr (kResized) {
    width = static_cast<int>(min(p.columns.out - first_w, static_cast<int64_t>(tiles.width)));
    height = static_cast<int>(min(p.rows.out - first_h, static_cast<int64_t>(kTileRows)));
    const int64_t first_column = p.columns.source(first_w).low, first_row = p.rows.source(first_h).low;
    columns = static_cast<int>(p.columns.source(first_w + width - 1).high - first_column) + 1;
    rows = static_cast<int>(p.rows.source(first_h + height - 1).high - first_row) + 1;
    weights[pixel_of_tile][0] = scale * (1.f - column.weight);
    weights[pixel_of_tile][1] = scale * column.weight;
    if (y == 0 && x < width) column_of[x] = static_cast<int>(column.low - first_column);
    if (x == 0 && y < height) {
      row_of[y] = static_cast<int>(row.low - first_row);
      row_weight[y] = row.weight;
    }
    __syncthreads();
  }
  float* const column_sums = shared + kTilePixels * pitch;  // [row of the tile][column of the source][class]
  for (int64_t first = 0; first < shape.channels; first += kClassChunk) {
    const int count = static_cast<int>(min(shape.channels - first, static_cast<int64_t>(kClassChunk)));
    if (label < 0) {
      for (int k = 0; k < count; ++k) exponentials[k] = 0.f;
    } else {
      if (shape.channels > kClassChunk) {
        mix_logits<kResized, kLanes>(logits, shape, at, first, count, exponentials);
        for (int k = 0; k < count; ++k) exponentials[k] = expf(exponentials[k] - high);
      }
      if (label >= first && label < first + count) exponentials[label - first] -= sum;
    }
    if constexpr (!kResized) {
      const int64_t end = first + kClassChunk < shape.channels ? first + kClassChunk : shape.padded;
      for (int64_t c = first; inside && c < end; c += kLanes) {
        float g[kLanes];
#pragma unroll
        for (int j = 0; j < kLanes; ++j) g[j] = c + j < shape.channels ? exponentials[c + j - first] * scale : 0.f;
        store_lanes<kLanes>(d_logits, shape, pixel, c, g);
      }
    } else {
      __syncwarp();
      if (y < height && x < count)
        sum_row(shared + y * kTileColumns * pitch + x, pitch, weights + y * kTileColumns, column_of, width, columns,
                column_sums + y * tiles.source_columns * pitch + x);
      __syncthreads();
      for (int i = 0; i < rows; ++i) {
        for (int j = y; j < columns; j += kTileRows) {
          if (x >= count) continue;
          float total = 0.f;
          for (int r = 0; r < height; ++r) {
            const float value = column_sums[(r * tiles.source_columns + j) * pitch + x];
            if (row_of[r] == i) total += value * (1.f - row_weight[r]);
            if (row_of[r] + 1 == i) total += value * row_weight[r];
          }
          partial[((tile * tiles.source_rows + i) * tiles.source_columns + j) * shape.channels + first + x] = total;
        }
      }
      __syncthreads();
    }
  }
}

// Grid (columns, rows, images) and block (channels, columns) of d_logits.
template <class T, int kLanes>
__global__ void __launch_bounds__(kBlockThreads, 3)
    merge_kernel(const float* __restrict__ partial, Operand<T> d_logits, Rows shape, int64_t images, Axis rows,
                 Axis columns, Tiles tiles, int64_t tiles_down, int64_t tiles_across) {
  const int64_t w = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y, step = blockDim.x * kLanes;
  if (w >= columns.in) return;
  const Range across = columns.readers(w);
  const int shift = __ffs(tiles.width) - 1;
  const int64_t tx0 = across.begin >> shift, tx1 = (across.end + tiles.width - 1) >> shift;
  for (int64_t h = blockIdx.y; h < rows.in; h += gridDim.y) {
    const Range down = rows.readers(h);
    const int64_t ty0 = down.begin / kTileRows, ty1 = (down.end + kTileRows - 1) / kTileRows;
    const bool is_read = down.begin < down.end && across.begin < across.end;
    for (int64_t n = blockIdx.z; n < images; n += gridDim.z) {
      for (int64_t c = threadIdx.x * kLanes; c < shape.padded; c += step) {
        float sum[kLanes] = {};
        for (int64_t ty = ty0; is_read && ty < ty1; ++ty) {
          const int64_t i = h - rows.source(ty * kTileRows).low;
          for (int64_t tx = tx0; tx < tx1; ++tx) {
            const int64_t j = w - columns.source(tx * tiles.width).low;
            const int64_t tile = (n * tiles_down + ty) * tiles_across + tx;
            const float* in = partial + ((tile * tiles.source_rows + i) * tiles.source_columns + j) * shape.channels;
#pragma unroll
            for (int k = 0; k < kLanes; ++k)
              if (c + k < shape.channels) sum[k] += in[c + k];
          }
        }
        store_lanes<kLanes>(d_logits, shape, (n * rows.in + h) * columns.in + w, c, sum);
      }
    }
  }
}

__global__ void __launch_bounds__(kBlockThreads)
    total_kernel(const double* __restrict__ losses, int64_t count, const float* normalizer, float* loss) {
  const double total = array_sum(losses, count), by = *normalizer;
  if (threadIdx.x == 0) *loss = by != 0 ? static_cast<float>(total / by) : 0.f;
}

__global__ void __launch_bounds__(kBlockThreads)
    weight_sum_kernel(const int32_t* __restrict__ target, int64_t count, int64_t classes, int32_t ignore_index,
                      const float* __restrict__ class_weight, double* __restrict__ parts) {
  double sum = 0;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    const int32_t t = target[i];
    if (t == ignore_index || t < 0 || t >= classes) continue;
    sum += class_weight ? class_weight[t] : 1.f;
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kBlockThreads)
    weight_total_kernel(const double* __restrict__ parts, int64_t count, float* result) {
  const double total = array_sum(parts, count);
  if (threadIdx.x == 0) *result = static_cast<float>(total);
}

// What the three launchers have in common. d_logits: null, or without data, where no gradient is wanted.
void run(const char* kernel, cudaStream_t stream, const View& logits, Problem p, int64_t H, int64_t W,
         bool align_corners, float* probability, float* loss, const View* d_logits, int64_t* fault, void* workspace) {
  if (d_logits && !d_logits->data) d_logits = nullptr;
  check_operands(kernel, {&logits, d_logits}, true);
  const SoftmaxCeTiles cut = softmax_ce_tiles(logits.h, logits.w, H, W, align_corners);
  const Tiles tiles{static_cast<int>(cut.width), static_cast<int>(cut.source_rows),
                    static_cast<int>(cut.source_columns)};
  const bool resized = cut.source_rows != 0;
  p.rows = make_axis(logits.h, H, align_corners, 0);
  p.columns = make_axis(logits.w, W, align_corners, 0);
  const int64_t count = logits.n * cut.down * cut.across;
  auto* const losses = static_cast<double*>(workspace);
  auto* const partial = reinterpret_cast<float*>(losses + count);
  const Rows shape = pixel_rows(logits);
  const int64_t pitch = std::min<int64_t>(logits.c, kClassChunk) | 1;
  const size_t shared_bytes =
      static_cast<size_t>((kTilePixels + (d_logits ? kTileRows * cut.source_columns : 0)) * pitch) * sizeof(float);
  const dim3 grid(static_cast<unsigned>(cut.across), static_cast<unsigned>(cut.down), static_cast<unsigned>(logits.n));
  dispatch(kernel, logits.dtype, vectors_fit({&logits, d_logits}, 2),
           [&]<class T, int kLanes>(Element<T>, std::integral_constant<int, kLanes>) {
             const Operand<T> gradient = d_logits ? operand<T>(*d_logits) : Operand<T>{nullptr, 0};
             launch({grid, dim3(kTileColumns, kTileRows), shared_bytes, stream},
                    resized ? loss_kernel<T, kLanes, true> : loss_kernel<T, kLanes, false>, operand<const T>(logits),
                    gradient, shape, p, tiles, probability, losses, partial, fault);
             if (!d_logits || !resized) return;
             Geometry g = geometry({logits.w, shape.channels, shape.padded}, kLanes, kMergeColumns, INT32_MAX, 1);
             g.grid.y = static_cast<unsigned>(std::min<int64_t>(logits.h, UINT16_MAX));
             g.grid.z = static_cast<unsigned>(logits.n);
             launch({g.grid, g.block, 0, stream}, merge_kernel<T, kLanes>, partial, gradient, shape, logits.n, p.rows,
                    p.columns, tiles, cut.down, cut.across);
           });
  if (loss) launch({dim3(1), dim3(kBlockThreads), 0, stream}, total_kernel, losses, count, p.normalizer, loss);
}

}  // namespace

void upsample_softmax_ce(cudaStream_t stream, const View& logits, const int32_t* target, int64_t H, int64_t W,
                         bool align_corners, int32_t ignore_index, const float* class_weight, const float* normalizer,
                         float* loss, const View& d_logits, int64_t* fault, void* workspace) {
  const Problem p{target, ignore_index, class_weight, normalizer, 1.f, 0.f, false, {}, {}};
  run("upsample_softmax_ce", stream, logits, p, H, W, align_corners, nullptr, loss, &d_logits, fault, workspace);
}

void upsample_focal_ce(cudaStream_t stream, const View& logits, const int32_t* target, int64_t H, int64_t W,
                       bool align_corners, int32_t ignore_index, const float* class_weight, const float* normalizer,
                       float alpha, float gamma, float* loss, const View& d_logits, int64_t* fault, void* workspace) {
  const Problem p{target, ignore_index, class_weight, normalizer, alpha, gamma, true, {}, {}};
  run("upsample_focal_ce", stream, logits, p, H, W, align_corners, nullptr, loss, &d_logits, fault, workspace);
}

void upsample_label_probability(cudaStream_t stream, const View& logits, const int32_t* target, int64_t H, int64_t W,
                                bool align_corners, int32_t ignore_index, float* probability) {
  const Problem p{target, ignore_index, nullptr, nullptr, 1.f, 0.f, false, {}, {}};
  run("upsample_label_probability", stream, logits, p, H, W, align_corners, probability, nullptr, nullptr, nullptr,
      nullptr);
}

void label_weight_sum(cudaStream_t stream, const int32_t* target, int64_t count, int64_t classes, int32_t ignore_index,
                      const float* class_weight, float* result, double* workspace) {
  const int64_t parts = label_weight_sum_parts(count);
  launch({dim3(static_cast<unsigned>(parts)), dim3(kBlockThreads), 0, stream}, weight_sum_kernel, target, count,
         classes, ignore_index, class_weight, workspace);
  launch({dim3(1), dim3(kBlockThreads), 0, stream}, weight_total_kernel, workspace, parts, result);
}

}  // namespace convoy::CONVOY_DEVICE
