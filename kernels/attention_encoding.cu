// Encoding by codewords. Distances are kept for the backward pass; assignments (softmax over codewords) are made again.
// Per pixel a warp owns the codewords; everything per codeword is a product over pixels, cut into parts.
// FLOPs: forward 5 N HW K D, backward 8 N HW K D. Bytes: x twice forward, four times backward. One 97 x 97 image of 512
// channels and 32 codewords: 0.8 GFLOP and 40 MB forward, 0.02 ms on an H100 (67 TFLOP/s, 3.35 TB/s) either way.
// Numerics: distances as fp32 sums of squared differences, no cancellation; where they are stored in 16 bits, both
// passes compute with fp32 ones, made again backward. Sums over pixels in fp32 within parts, the parts in double.
#include "kernels/attention.h"
#include "kernels/cuda_attention.h"
#include "kernels/cuda_pixel_sums.h"

namespace convoy::CONVOY_DEVICE {
namespace {

constexpr int kTilePixels = 64, kTileWords = 32, kSlice = 32;

/// Per-pixel arrays of the codewords: pixels of all images x `count`, `pitch` floats apart.
struct Words {
  int64_t count, pitch;
};

// distances(i, k) = sum over d of (x(i, d) - codewords(k, d))^2, in fp32 and, where `stored` has data, as an image.
// Grid (tiles of pixels, tiles of codewords, images); a thread makes 4 pixels x 2 codewords.
template <class T, class D>
__global__ void __launch_bounds__(kBlockThreads)
    distances_kernel(Operand<const T> x, int64_t channels, int64_t pixels, int64_t images,
                     const float* __restrict__ codewords, Words words, float* __restrict__ distances, Operand<D> stored,
                     int64_t padded) {
  CONVOY_SHARED(float[kTilePixels][kSlice + 1], of_pixels);
  CONVOY_SHARED(float[kTileWords][kSlice + 1], of_words);
  const int thread = threadIdx.x, lane = thread % kWarp, tx = thread % 16, ty = thread / 16;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kTilePixels,
                word = static_cast<int64_t>(blockIdx.y) * kTileWords;
  for (int64_t n = blockIdx.z; n < images; n += gridDim.z) {
    float sum[4][2] = {};
    for (int64_t d = 0; d < channels; d += kSlice) {
      const bool inside = d + lane < channels;
      __syncthreads();
      for (int p = thread / kWarp; p < kTilePixels; p += kRowsOfBlock)
        of_pixels[p][lane] =
            inside && first + p < pixels ? to_float(x.data[(n * pixels + first + p) * x.pitch + d + lane]) : 0.f;
      for (int k = thread / kWarp; k < kTileWords; k += kRowsOfBlock)
        of_words[k][lane] = inside && word + k < words.count ? codewords[(word + k) * channels + d + lane] : 0.f;
      __syncthreads();
#pragma unroll 8
      for (int j = 0; j < kSlice; ++j) {
#pragma unroll
        for (int k = 0; k < 2; ++k)
#pragma unroll
          for (int p = 0; p < 4; ++p) {
            const float difference = of_pixels[ty * 4 + p][j] - of_words[tx + 16 * k][j];
            sum[p][k] += difference * difference;
          }
      }
    }
#pragma unroll
    for (int p = 0; p < 4; ++p)
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const int64_t pixel = n * pixels + first + ty * 4 + p, column = word + tx + 16 * k;
        if (first + ty * 4 + p >= pixels) continue;
        if (column < words.count) distances[pixel * words.pitch + column] = sum[p][k];
        if (stored.data && column < padded)
          stored.data[pixel * stored.pitch + column] = from_float<D>(column < words.count ? sum[p][k] : 0.f);
      }
  }
}

/// Calls body(pixel) for the pixel of this warp.
template <class Body>
__device__ inline void for_pixels_of_warp(int64_t pixels, const Body& body) {
  const int64_t warps = static_cast<int64_t>(gridDim.x) * blockDim.y;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y; i < pixels; i += warps) body(i);
}

// assignments(i, k) = softmax over k of scale(k)^2 * distances(i, k); may be the distances' memory.
template <class T>
__global__ void __launch_bounds__(kBlockThreads)
    assign_kernel(Operand<const float> distances, const T* __restrict__ scale, int64_t pixels, Words words,
                  float* assignments) {
  for_pixels_of_warp(pixels, [&](int64_t i) {
    const float* from = distances.data + i * distances.pitch;
    float* to = assignments + i * words.pitch;
    float high = -INFINITY, sum = 0;
    for (int64_t k = threadIdx.x; k < words.count; k += kWarp) high = fmaxf(high, scale[k] * scale[k] * from[k]);
#pragma unroll
    for (int step = kWarp / 2; step > 0; step /= 2) high = fmaxf(high, __shfl_xor_sync(~0u, high, step));
    for (int64_t k = threadIdx.x; k < words.count; k += kWarp) {
      const float weight = weight_of(scale[k] * scale[k] * from[k] - high);
      to[k] = weight;
      sum += weight;
    }
    const float factor = 1 / warp_all_sum(sum);
    for (int64_t k = threadIdx.x; k < words.count; k += kWarp) to[k] *= factor;
  });
}

// Sums over pixels of the assignments, and backward of the energies' gradients and of those times the distances.
struct AssignedTerms {
  Operand<const float> assignments;
  template <int kLanes>
  __device__ AssignedTerms at(const Rows&, int64_t, int64_t) const {
    return *this;
  }
  template <int kLanes, int kSums>
  __device__ void add(const Rows&, int64_t row, int64_t c, float (&sums)[kSums][kLanes]) const {
    sums[0][0] += assignments.data[row * assignments.pitch + c];
  }
};
struct EnergyTerms {
  Operand<const float> assignments, energies, distances;
  template <int kLanes>
  __device__ EnergyTerms at(const Rows&, int64_t, int64_t) const {
    return *this;
  }
  template <int kLanes, int kSums>
  __device__ void add(const Rows&, int64_t row, int64_t c, float (&sums)[kSums][kLanes]) const {
    const float energy = energies.data[row * energies.pitch + c];
    sums[0][0] += assignments.data[row * assignments.pitch + c];
    sums[1][0] += energy;
    sums[2][0] += energy * distances.data[row * distances.pitch + c];
  }
};
// to[(s * images + n) * channels + c] = sum s.
template <int kSums>
struct KeepSums {
  float* to;
  int64_t images, channels;
  __device__ void operator()(int64_t n, int64_t c, const double (&totals)[kSums]) const {
#pragma unroll
    for (int s = 0; s < kSums; ++s) to[(s * images + n) * channels + c] = static_cast<float>(totals[s]);
  }
};

// y(n, k, d) = sums(n, k, d) - assigned(n, k) * codewords(k, d); a warp per (n, k).
template <class T>
__global__ void __launch_bounds__(kBlockThreads)
    codes_kernel(const float* __restrict__ sums, int64_t pitch, const float* __restrict__ assigned,
                 const float* __restrict__ codewords, int64_t images, int64_t count, int64_t channels,
                 T* __restrict__ y) {
  for_pixels_of_warp(images * count, [&](int64_t i) {
    const int64_t k = i % count;
    for (int64_t d = threadIdx.x; d < channels; d += kWarp)
      y[i * channels + d] = from_float<T>(sums[i * pitch + d] - assigned[i] * codewords[k * channels + d]);
  });
}

// to(n, k) = dy(n, k) . codewords(k)
template <class T>
__global__ void __launch_bounds__(kBlockThreads)
    code_products_kernel(const T* __restrict__ dy, const float* __restrict__ codewords, int64_t images, int64_t count,
                         int64_t channels, float* __restrict__ to) {
  for_pixels_of_warp(images * count, [&](int64_t i) {
    const int64_t k = i % count;
    float sum = 0;
    for (int64_t d = threadIdx.x; d < channels; d += kWarp)
      sum += to_float(dy[i * channels + d]) * codewords[k * channels + d];
    sum = warp_all_sum(sum);
    if (threadIdx.x == 0) to[i] = sum;
  });
}

// energies holds x . dy and becomes the energies' gradient; pulls(i, k) = -2 scale^2 times that, own(i) = -sum of
// pulls.
template <class T>
__global__ void __launch_bounds__(kBlockThreads)
    energies_kernel(const T* __restrict__ assignments, const T* __restrict__ code_products, const T* __restrict__ scale,
                    int64_t images, int64_t pixels, Words words, T* __restrict__ energies, T* __restrict__ pulls,
                    T* __restrict__ own) {
  for_pixels_of_warp(images * pixels, [&](int64_t i) {
    const T *a = assignments + i * words.pitch, *product = code_products + i / pixels * words.count;
    T *energy = energies + i * words.pitch, *pull = pulls + i * words.pitch;
    float mean = 0, pulled = 0;
    for (int64_t k = threadIdx.x; k < words.count; k += kWarp) mean += a[k] * (energy[k] - product[k]);
    mean = warp_all_sum(mean);
    for (int64_t k = threadIdx.x; k < words.count; k += kWarp) {
      const float gradient = a[k] * (energy[k] - product[k] - mean), factor = 2 * scale[k] * scale[k];
      energy[k] = gradient;
      pull[k] = -factor * gradient;
      pulled += factor * gradient;
    }
    pulled = warp_all_sum(pulled);
    if (threadIdx.x == 0) own[i] = pulled;
  });
}

// Gradients of the codewords and scales; a warp per codeword. sums: those of EnergyTerms.
template <class T>
__global__ void __launch_bounds__(kBlockThreads, kRoomyBlocks)
    word_gradients_kernel(const float* __restrict__ products, int64_t pitch, const float* __restrict__ sums,
                          const float* __restrict__ codewords, const float* __restrict__ scale,
                          const T* __restrict__ dy, int64_t images, int64_t count, int64_t channels,
                          float* __restrict__ dcodewords, float* __restrict__ dscale) {
  const int64_t all = images * count;
  for_pixels_of_warp(count, [&](int64_t k) {
    double energy = 0, weighted = 0;
    for (int64_t n = 0; n < images; ++n) {
      energy += sums[all + n * count + k];
      weighted += sums[2 * all + n * count + k];
    }
    const float factor = -2 * scale[k] * scale[k];
    for (int64_t d = threadIdx.x; d < channels; d += kWarp) {
      float product = 0, gradient = 0;
      for (int64_t n = 0; n < images; ++n) {
        const int64_t i = n * count + k;
        product += products[i * pitch + d];
        gradient -= sums[i] * to_float(dy[i * channels + d]);
      }
      dcodewords[k * channels + d] =
          factor * (product - static_cast<float>(energy) * codewords[k * channels + d]) + gradient;
    }
    if (threadIdx.x == 0) dscale[k] = static_cast<float>(2 * static_cast<double>(scale[k]) * weighted);
  });
}

/// Grid for a warp per row.
Launch per_warp(cudaStream_t stream, int64_t rows) {
  return {grid_extent(ceil_div(rows, kRowsOfBlock), kMostRowBlocks), dim3(kWarp, kRowsOfBlock), 0, stream};
}

/// (N,K,H,W) in fp32, pitch a multiple of 4.
View word_image(const View& x, int64_t count, float* data) {
  View v = x;
  v.data = data;
  v.dtype = DType::kF32;
  v.c = count;
  v.pitch = row_floats(count);
  v.block = 1;
  return v;
}

int64_t pixel_sum_floats(const View& x, int64_t count, int sums) {
  return partial_floats(x.n, pixel_parts(x.pixels()).parts, count, sums);
}

/// `stored` may be null.
void make_distances(cudaStream_t stream, const View& x, const View& codewords, const View* stored, float* distances) {
  const int64_t count = codewords.n, padded = stored ? stored->blocks() * stored->block : count;
  const dim3 grid(grid_extent(ceil_div(x.pixels(), kTilePixels), INT32_MAX),
                  grid_extent(ceil_div(padded, kTileWords), kMostGridPlanes), grid_extent(x.n, kMostGridPlanes));
  const Words words{count, row_floats(count)};
  dispatch("encoding", x.dtype, false, [&]<class T>(Element<T>, auto) {
    const auto run = [&]<class D>(Operand<D> to) {
      launch({grid, dim3(kBlockThreads), 0, stream}, distances_kernel<T, D>, operand<const T>(x), x.c, x.pixels(), x.n,
             codewords.f32(), words, distances, to, padded);
    };
    if (stored && stored->dtype == DType::kF32)
      run(operand<float>(*stored));
    else
      run(stored ? operand<T>(*stored) : Operand<T>{nullptr, 0});
  });
}

struct ForwardSpace {
  PixelProduct product;
  float *assignments, *sums, *partial, *assigned, *pixel_sums;
  size_t bytes;
  ForwardSpace(const View& x, int64_t count, float* workspace) : product(x.n, count, x.c, x.pixels()) {
    Carver carver(workspace);
    assignments = carver.take(x.n * x.pixels() * row_floats(count));
    sums = carver.take(product.result_floats());
    partial = carver.take(product.partial_floats());
    assigned = carver.take(x.n * count);
    pixel_sums = carver.take(pixel_sum_floats(x, count, 1));
    bytes = carver.bytes();
  }
};

struct BackwardSpace {
  PixelProduct product;
  float *distances, *assignments, *energies, *pulls, *own, *code_products, *words, *partial, *sums, *pixel_sums;
  View dx;
  size_t bytes;
  BackwardSpace(const View& x, const View& stored, const View& to, int64_t count, float* workspace)
      : product(x.n, count, x.c, x.pixels()) {
    Carver carver(workspace);
    const int64_t image = x.n * x.pixels() * row_floats(count);
    distances = carver.take(stored.dtype == DType::kF32 ? 0 : image);
    assignments = carver.take(image);
    energies = carver.take(image);
    pulls = carver.take(image);
    own = carver.take(x.n * x.pixels());
    code_products = carver.take(x.n * count);
    words = carver.take(product.result_floats());
    partial = carver.take(product.partial_floats());
    sums = carver.take(3 * x.n * count);
    pixel_sums = carver.take(pixel_sum_floats(x, count, 3));
    dx = sums_for(to, carver);
    bytes = carver.bytes();
  }
};

void require_stored(const char* kernel, const View& x, const View& distances) {
  require_nhwc(kernel, {&x, &distances});
  if (distances.dtype != DType::kF32 && distances.dtype != x.dtype)
    throw std::invalid_argument(std::string(CONVOY_DEVICE_NAME "::") + kernel + ": distances of dtype " +
                                dtype_name(distances.dtype) + ", expected f32 or that of x");
}

}  // namespace

size_t encoding_cuda_workspace_bytes(const View& x, int64_t codewords) {
  return ForwardSpace(x, codewords, nullptr).bytes;
}

void encoding(cudaStream_t stream, const View& x, const View& codewords, const float* scale, const View& y,
              const View& distances, float* workspace) {
  require_stored("encoding", x, distances);
  const int64_t count = codewords.n;
  const ForwardSpace s(x, count, workspace);
  const View assignments = word_image(x, count, s.assignments);
  make_distances(stream, x, codewords, &distances, s.assignments);
  launch(per_warp(stream, x.n * x.pixels()), assign_kernel<float>, operand<const float>(assignments), scale,
         x.n * x.pixels(), Words{count, assignments.pitch}, s.assignments);
  sum_pixels<1, 1>(stream, assignments, AssignedTerms{operand<const float>(assignments)}, count,
                   KeepSums<1>{s.assigned, x.n, count}, s.pixel_sums);
  multiply_pixels(stream, s.product, pixel_matrix(assignments), pixel_matrix(x), s.sums, s.partial);
  dispatch("encoding", y.dtype, false, [&]<class T>(Element<T>, auto) {
    launch(per_warp(stream, x.n * count), codes_kernel<T>, s.sums, s.product.pitch, s.assigned, codewords.f32(), x.n,
           count, x.c, static_cast<T*>(y.data));
  });
}

size_t encoding_backward_cuda_workspace_bytes(const View& x, const View& distances, const View& dx, int64_t codewords) {
  return BackwardSpace(x, distances, dx, codewords, nullptr).bytes;
}

void encoding_backward(cudaStream_t stream, const View& dy, const View& x, const View& codewords, const float* scale,
                       const View& distances, const View& dx, float* dcodewords, float* dscale, float* workspace) {
  require_stored("encoding_backward", x, distances);
  require_nhwc("encoding_backward", {&dx});
  const int64_t count = codewords.n, pixels = x.pixels();
  const BackwardSpace s(x, distances, dx, count, workspace);
  const View assignments = word_image(x, count, s.assignments), energies = word_image(x, count, s.energies),
             pulls = word_image(x, count, s.pulls);
  View exact = distances;
  if (distances.dtype != DType::kF32) {
    make_distances(stream, x, codewords, nullptr, s.distances);
    exact = word_image(x, count, s.distances);
  }
  const Words words{count, assignments.pitch};
  launch(per_warp(stream, x.n * pixels), assign_kernel<float>, operand<const float>(exact), scale, x.n * pixels, words,
         s.assignments);
  const GemmMatrix codes{.data = dy.data, .pitch = x.c, .dtype = dy.dtype, .stride = count * x.c};
  const GemmMatrix centres = float_matrix(codewords.f32(), x.c, 0);
  dispatch("encoding_backward", dy.dtype, false, [&]<class T>(Element<T>, auto) {
    launch(per_warp(stream, x.n * count), code_products_kernel<T>, static_cast<const T*>(dy.data), codewords.f32(), x.n,
           count, x.c, s.code_products);
  });
  gemm(stream, {pixels, count, x.c, x.n}, 1, pixel_matrix(x), transposed(codes), 0, pixel_matrix(energies));
  launch(per_warp(stream, x.n * pixels), energies_kernel<float>, s.assignments, s.code_products, scale, x.n, pixels,
         words, s.energies, s.pulls, s.own);
  sum_pixels<1, 3>(
      stream, assignments,
      EnergyTerms{operand<const float>(assignments), operand<const float>(energies), operand<const float>(exact)},
      count, KeepSums<3>{s.sums, x.n, count}, s.pixel_sums);
  multiply_pixels(stream, s.product, pixel_matrix(energies), pixel_matrix(x), s.words, s.partial);
  dispatch("encoding_backward", dy.dtype, false, [&]<class T>(Element<T>, auto) {
    launch(per_warp(stream, count), word_gradients_kernel<T>, s.words, s.product.pitch, s.sums, codewords.f32(), scale,
           static_cast<const T*>(dy.data), x.n, count, x.c, dcodewords, dscale);
  });
  const GemmSize size{pixels, x.c, count, x.n};
  gemm(stream, size, 1, pixel_matrix(assignments), codes, 0, pixel_matrix(s.dx));
  gemm(stream, size, 1, pixel_matrix(pulls), centres, 1, pixel_matrix(s.dx));
  store_sums(stream, s.dx, dx, s.own, &x);
}

}  // namespace convoy::CONVOY_DEVICE
