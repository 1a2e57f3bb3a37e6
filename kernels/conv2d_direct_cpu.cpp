// Plain convolution. Forward and input gradient are one routine: an output row is, for every tap of the kernel, a
// source row read at a fixed offset and step. Vectors run over the output channel block, registers hold a few pixels.
//   FLOPs  2 N O OH OW (C/groups) KH KW each; grouped convolutions whose groups are narrower than a channel block
//          compute the whole block.
//   Bytes  y once per chunk of input channels, x once per output block and chunk.
//   Numerics: fp32 products with fused adds, summed within a chunk of 16 source channels, chunks then added in order
//          (weight gradient: within an image row, rows then added in order). Every output element is computed by one
//          thread in a fixed order, so results do not depend on the number of threads.
#include <omp.h>

#include <cstdlib>
#include <new>

#include "kernels/conv2d.h"
#include "kernels/conv_rows.h"
#include "kernels/simd.h"

namespace convoy::cpu::CONVOY_ISA {
namespace {

constexpr int kTile = 6;         // output pixels held in registers
constexpr int64_t kChunk = 16;   // source channels summed before their sum joins the output
constexpr int kChannelTile = 8;  // input channels of the weight gradient held in registers

/// Offset of channel c in an image; nchw is the blocked layout with a block of one.
inline int64_t channel_offset(const View& v, int64_t c) {
  return (c / v.block) * v.pixels() * v.block + c % v.block;
}

inline Vec load_lanes(const View& v, const float* image, int64_t c0, int64_t lanes, int64_t pixel) {
  if (v.block == kBlock) return load(image + channel_offset(v, c0) + pixel * kBlock);
  Vec r{};
  for (int64_t i = 0; i < lanes; ++i) r[i] = image[channel_offset(v, c0 + i) + pixel * v.block];
  return r;
}

inline void store_lanes(const View& v, float* image, int64_t c0, int64_t lanes, int64_t pixel, Vec value) {
  if (v.block == kBlock) {
    for (int64_t i = lanes; i < kBlock; ++i) value[i] = 0;
    store(image + channel_offset(v, c0) + pixel * kBlock, value);
    return;
  }
  for (int64_t i = 0; i < lanes; ++i) image[channel_offset(v, c0 + i) + pixel * v.block] = value[i];
}

template <int T>
inline void accumulate(const View& source, const float* image, int64_t c_begin, int64_t c_end, const float* packed,
                       const Row& row, int64_t kernel_size, int64_t j, bool checked, Vec* out) {
  Vec acc[T];
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) acc[t] = Vec{};
  const int64_t stride = row.source_step * source.block;
  for (int64_t c = c_begin; c < c_end; ++c) {
    const float* plane = image + channel_offset(source, c) + j * stride;
    const float* weights = packed + (c - c_begin) * kernel_size * kBlock;
    for (int64_t k = 0; k < row.tap_count; ++k) {
      const Tap& tap = row.taps[k];
      if (checked && (j < tap.lo || j >= tap.hi)) continue;
      const Vec w = load(weights + tap.index * kBlock);
      const float* p = plane + tap.offset;
#pragma GCC unroll 8
      for (int t = 0; t < T; ++t) acc[t] += p[t * stride] * w;
    }
  }
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) out[t] = acc[t];
}

/// Adds the sum over source channels [c_begin, c_end) to one output row; the first chunk starts from `initial`.
void add_row(const View& source, const float* source_image, int64_t c_begin, int64_t c_end, const float* packed,
             int64_t kernel_size, const Row& row, bool first_chunk, Vec initial, const View& out, float* out_image,
             int64_t out_c, int64_t lanes) {
  Vec sums[kTile];
  for (int64_t j = 0; j < row.count;) {
    int n = 1;
    if (j >= row.inner_lo && j + kTile <= row.inner_hi) {
      n = kTile;
      accumulate<kTile>(source, source_image, c_begin, c_end, packed, row, kernel_size, j, false, sums);
    } else {
      accumulate<1>(source, source_image, c_begin, c_end, packed, row, kernel_size, j, true, sums);
    }
    for (int t = 0; t < n; ++t) {
      const int64_t pixel = row.first_pixel + (j + t) * row.step;
      const Vec before = first_chunk ? initial : load_lanes(out, out_image, out_c, lanes, pixel);
      store_lanes(out, out_image, out_c, lanes, pixel, before + sums[t]);
    }
    j += n;
  }
}

/// packed[source channel][tap][lane]: the weights that connect source channels [c_begin, c_end) with the lanes of an
/// output block, zero where they belong to different groups.
void pack(const Pass& pass, const float* w, int64_t source_per_group, int64_t out_per_group, int64_t c_begin,
          int64_t c_end, int64_t out_c, int64_t lanes, float* packed) {
  const int64_t size = pass.kernel_h * pass.kernel_w;
  for (int64_t c = c_begin; c < c_end; ++c) {
    float* to = packed + (c - c_begin) * size * kBlock;
    for (int64_t i = 0; i < size * kBlock; ++i) to[i] = 0;
    for (int64_t lane = 0; lane < lanes; ++lane) {
      const int64_t o = out_c + lane;
      if (o / out_per_group != c / source_per_group) continue;
      const float* from = pass.forward ? w + (o * source_per_group + c % source_per_group) * size
                                       : w + (c * out_per_group + o % out_per_group) * size;
      for (int64_t k = 0; k < size; ++k) to[k * kBlock + lane] = from[k];
    }
  }
}

void convolve(const Pass& pass, const View& source, const float* w, const float* bias, const View& out) {
  const int64_t size = pass.kernel_h * pass.kernel_w;
  const int64_t source_per_group = source.c / pass.p.groups, out_per_group = out.c / pass.p.groups;
  const int64_t out_blocks = (out.c + kBlock - 1) / kBlock;
  const int64_t residues = pass.forward ? 1 : pass.p.stride_w;
  const size_t packed_bytes = static_cast<size_t>(kChunk * size * kBlock) * sizeof(float);
  const size_t bytes_per_thread = packed_bytes + static_cast<size_t>(size) * sizeof(Tap);
  char* scratch = static_cast<char*>(std::malloc(bytes_per_thread * static_cast<size_t>(omp_get_max_threads())));
  if (scratch == nullptr) throw std::bad_alloc();
#pragma omp parallel for schedule(dynamic)
  for (int64_t task = 0; task < out.n * out_blocks; ++task) {
    char* mine = scratch + bytes_per_thread * static_cast<size_t>(omp_get_thread_num());
    float* packed = reinterpret_cast<float*>(mine);
    Tap* taps = reinterpret_cast<Tap*>(mine + packed_bytes);
    const int64_t n = task / out_blocks, out_c = task % out_blocks * kBlock;
    const int64_t lanes = out.c - out_c < kBlock ? out.c - out_c : kBlock;
    const float* source_image = source.f32() + n * source.image_stride();
    float* out_image = out.f32() + n * out.image_stride();
    const Vec initial = bias ? load_partial(bias + out_c, lanes) : Vec{};
    const int64_t begin = out_c / out_per_group * source_per_group;
    const int64_t end = ((out_c + lanes - 1) / out_per_group + 1) * source_per_group;
    for (int64_t c = begin; c < end; c += kChunk) {
      const int64_t c_end = c + kChunk < end ? c + kChunk : end;
      pack(pass, w, source_per_group, out_per_group, c, c_end, out_c, lanes, packed);
      for (int64_t r = 0; r < out.h; ++r)
        for (int64_t residue = 0; residue < residues && residue < out.w; ++residue) {
          const Row row = make_row(pass, source, out, r, residue, taps);
          add_row(source, source_image, c, c_end, packed, size, row, c == begin, initial, out, out_image, out_c, lanes);
        }
    }
  }
  std::free(scratch);
}

/// Weight gradient of one tap for kChannelTile input channels and one output block: the sum over all images and
/// pixels of x[offsets[i]] * dy.
void weight_tile(const View& x, const View& dy, const Conv2dParams& p, int64_t row_shift, int64_t column_shift,
                 const int64_t* offsets, int64_t out_c, int64_t lanes, Vec* total) {
  for (int i = 0; i < kChannelTile; ++i) total[i] = Vec{};
  int64_t lo = 0, hi = dy.w;
  if (column_shift < 0) lo = ceil_div(-column_shift, p.stride_w);
  const int64_t last = ceil_div(x.w - column_shift, p.stride_w);
  if (last < hi) hi = last;
  for (int64_t n = 0; n < dy.n; ++n) {
    const float* x_image = x.f32() + n * x.image_stride();
    const float* dy_image = dy.f32() + n * dy.image_stride();
    for (int64_t oh = 0; oh < dy.h; ++oh) {
      const int64_t ih = oh * p.stride_h + row_shift;
      if (ih < 0 || ih >= x.h) continue;
      Vec acc[kChannelTile];
#pragma GCC unroll 8
      for (int i = 0; i < kChannelTile; ++i) acc[i] = Vec{};
      for (int64_t ow = lo; ow < hi; ++ow) {
        const Vec d = load_lanes(dy, dy_image, out_c, lanes, oh * dy.w + ow);
        const float* p_x = x_image + (ih * x.w + ow * p.stride_w + column_shift) * x.block;
#pragma GCC unroll 8
        for (int i = 0; i < kChannelTile; ++i) acc[i] += p_x[offsets[i]] * d;
      }
#pragma GCC unroll 8
      for (int i = 0; i < kChannelTile; ++i) total[i] += acc[i];
    }
  }
}

}  // namespace

void conv2d_direct(const View& x, const float* w, int64_t kernel_h, int64_t kernel_w, const float* bias,
                   const Conv2dParams& params, const View& y) {
  convolve({true, kernel_h, kernel_w, params}, x, w, bias, y);
}

void conv2d_direct_backward_data(const View& dy, const float* w, int64_t kernel_h, int64_t kernel_w,
                                 const Conv2dParams& params, const View& dx) {
  convolve({false, kernel_h, kernel_w, params}, dy, w, nullptr, dx);
}

void conv2d_direct_backward_weights(const View& x, const View& dy, int64_t kernel_h, int64_t kernel_w,
                                    const Conv2dParams& params, float* dw) {
  const int64_t size = kernel_h * kernel_w;
  const int64_t in_per_group = x.c / params.groups, out_per_group = dy.c / params.groups;
  const int64_t out_blocks = (dy.c + kBlock - 1) / kBlock;
  const int64_t tiles = (in_per_group + kChannelTile - 1) / kChannelTile;
#pragma omp parallel for collapse(2) schedule(dynamic)
  for (int64_t block = 0; block < out_blocks; ++block)
    for (int64_t tile = 0; tile < tiles; ++tile) {
      const int64_t out_c = block * kBlock;
      const int64_t lanes = dy.c - out_c < kBlock ? dy.c - out_c : kBlock;
      const int64_t c0 = tile * kChannelTile;
      const int64_t channels = in_per_group - c0 < kChannelTile ? in_per_group - c0 : kChannelTile;
      for (int64_t g = out_c / out_per_group; g <= (out_c + lanes - 1) / out_per_group; ++g) {
        int64_t offsets[kChannelTile];
        for (int i = 0; i < kChannelTile; ++i)
          offsets[i] = channel_offset(x, g * in_per_group + c0 + (i < channels ? i : 0));
        for (int64_t k = 0; k < size; ++k) {
          Vec total[kChannelTile];
          weight_tile(x, dy, params, k / kernel_w * params.dilation_h - params.pad_h,
                      k % kernel_w * params.dilation_w - params.pad_w, offsets, out_c, lanes, total);
          for (int64_t lane = 0; lane < lanes; ++lane) {
            if ((out_c + lane) / out_per_group != g) continue;
            for (int64_t i = 0; i < channels; ++i)
              dw[((out_c + lane) * in_per_group + c0 + i) * size + k] = total[i][lane];
          }
        }
      }
    }
}

void conv2d_backward_bias(const View& dy, float* dbias) {
  const int64_t blocks = (dy.c + kBlock - 1) / kBlock;
#pragma omp parallel for schedule(dynamic)
  for (int64_t block = 0; block < blocks; ++block) {
    const int64_t c0 = block * kBlock;
    const int64_t lanes = dy.c - c0 < kBlock ? dy.c - c0 : kBlock;
    double total[kBlock] = {};
    for (int64_t n = 0; n < dy.n; ++n)
      for (int64_t h = 0; h < dy.h; ++h) {
        Vec row{};
        for (int64_t w = 0; w < dy.w; ++w)
          row += load_lanes(dy, dy.f32() + n * dy.image_stride(), c0, lanes, h * dy.w + w);
        for (int i = 0; i < kBlock; ++i) total[i] += static_cast<double>(row[i]);
      }
    for (int64_t i = 0; i < lanes; ++i) dbias[c0 + i] = static_cast<float>(total[i]);
  }
}

}  // namespace convoy::cpu::CONVOY_ISA
