// Rearrangements of channels and pixels of nhwc images. Bytes: every element read once and written once; no arithmetic.
// Bound by memory: 100 M bf16 elements should take 0.12 ms on an H100 (3.35 TB/s). Threads next to each other write
// channels next to each other, one element each: what a warp reads then lies in few lines, and the rest of those is
// read by the same block from the first-level cache. Wider accesses would spread a warp's reads over more lines than
// they save. Where a channel comes from is found once per thread, which then goes down the rows.
#include "kernels/shuffle.h"

#include "kernels/cuda_image.h"

namespace convoy::CONVOY_DEVICE {
namespace {

constexpr int64_t kEnoughBlocks = 16384;

// The deep channel of place (corner, c): corner * of_corner + c % groups * of_low + c / groups * of_high.
struct ChannelMap {
  int of_corner, groups, of_low, of_high;
};

ChannelMap map_of(DepthOrder order, int64_t r, int64_t channels) {
  const int c = static_cast<int>(channels);
  return order == DepthOrder::kChannelSlow ? ChannelMap{1, c, static_cast<int>(r * r), 0} : ChannelMap{c, c, 1, 0};
}

// The channels and columns of a walk as its blocks take them: f(image, column, channel).
template <class F>
__device__ void for_each_column(const PixelWalk& walk, const F& f) {
  const int column = static_cast<int>(blockIdx.x * blockDim.y + threadIdx.y);
  if (column >= walk.width) return;
  for (int64_t z = blockIdx.z; z < walk.images * walk.tiles; z += gridDim.z) {
    const int64_t n = walk.tiles > 1 ? z / walk.tiles : z;
    const int64_t c = (z - n * walk.tiles) * blockDim.x + threadIdx.x;
    if (c < walk.padded) f(n, column, static_cast<int>(c));
  }
}

// The walk goes over columns of `wide` and rows of `deep`.
template <class T>
__global__ void __launch_bounds__(kBlockThreads)
    to_space_kernel(Operand<const T> deep, Operand<T> wide, PixelWalk walk, int channels, int r, ChannelMap map) {
  for_each_column(walk, [&](int64_t n, int column, int c) {
    const int source_column = column / r, high = c / map.groups;
    const int first =
        (column - source_column * r) * map.of_corner + (c - high * map.groups) * map.of_low + high * map.of_high;
    for (int row = blockIdx.y; row < walk.height; row += gridDim.y) {
      const int64_t line = n * walk.height + row;
      const T* from = deep.data + (line * (walk.width / r) + source_column) * deep.pitch + first;
      T* to = wide.data + (line * r * walk.width + column) * wide.pitch + c;
      for (int a = 0; a < r; ++a) {
        *to = c < channels ? *from : T{};
        from += static_cast<int64_t>(r) * map.of_corner;
        to += walk.width * wide.pitch;
      }
    }
  });
}

// The walk goes over `deep`.
template <class T>
__global__ void __launch_bounds__(kBlockThreads)
    to_depth_kernel(Operand<const T> wide, Operand<T> deep, PixelWalk walk, int channels, int r, bool channel_slow) {
  for_each_column(walk, [&](int64_t n, int column, int k) {
    const int period = channel_slow ? r * r : channels / (r * r), slow = k / period, fast = k - slow * period;
    const int c = channel_slow ? slow : fast, corner = channel_slow ? fast : slow, a = corner / r;
    const int64_t source_column = static_cast<int64_t>(column) * r + corner - a * r;
    for (int row = blockIdx.y; row < walk.height; row += gridDim.y) {
      const int64_t line = n * walk.height + row;
      const T* from = wide.data + ((line * r + a) * walk.width * r + source_column) * wide.pitch + c;
      deep.data[(line * walk.width + column) * deep.pitch + k] = k < channels ? *from : T{};
    }
  });
}

WalkGeometry column_geometry(View to, int64_t rows) {
  to.h = rows;
  WalkGeometry g = walk_geometry(to, 1);
  const int64_t others = static_cast<int64_t>(g.grid.x) * g.grid.z;
  g.grid.y = static_cast<unsigned>(std::clamp<int64_t>(kEnoughBlocks / others, 1, g.grid.y));
  return g;
}

// Calls f(T) with an integer type of the elements' size, where deep and wide fit each other.
template <class F>
void for_elements(const char* name, const View& deep, const View& wide, int64_t r, F f) {
  const std::string fault = std::string(CONVOY_DEVICE_NAME "::") + name + ": ";
  if (deep.layout != Layout::kNhwc || wide.layout != Layout::kNhwc || deep.dtype != wide.dtype)
    throw std::invalid_argument(fault + "nhwc images of one dtype are expected");
  if (r < 1 || deep.n != wide.n || deep.c != wide.c * r * r || deep.h * r != wide.h || deep.w * r != wide.w ||
      deep.c > INT32_MAX / 2)
    throw std::invalid_argument(fault + "sizes of the images do not fit each other");
  if (wide.count() == 0) return;
  switch (dtype_size(wide.dtype)) {
    case 2:
      return f(uint16_t{});
    case 4:
      return f(uint32_t{});
    default:
      throw std::invalid_argument(fault + "dtype " + dtype_name(wide.dtype) + ", expected one of 2 or 4 bytes");
  }
}

void to_space(const char* name, cudaStream_t stream, const View& deep, const ChannelMap& map, int64_t r,
              const View& wide) {
  for_elements(name, deep, wide, r, [&]<class T>(T) {
    const WalkGeometry g = column_geometry(wide, deep.h);
    launch({g.grid, g.block, 0, stream}, to_space_kernel<T>, operand<const T>(deep), operand<T>(wide), g.walk, wide.c,
           r, map);
  });
}

}  // namespace

void depth_to_space(cudaStream_t stream, const View& deep, DepthOrder order, int64_t r, const View& wide) {
  to_space("depth_to_space", stream, deep, map_of(order, r, wide.c), r, wide);
}

void space_to_depth(cudaStream_t stream, const View& wide, DepthOrder order, int64_t r, const View& deep) {
  for_elements("space_to_depth", deep, wide, r, [&]<class T>(T) {
    const WalkGeometry g = column_geometry(deep, deep.h);
    launch({g.grid, g.block, 0, stream}, to_depth_kernel<T>, operand<const T>(wide), operand<T>(deep), g.walk, deep.c,
           r, order == DepthOrder::kChannelSlow);
  });
}

void channel_shuffle(cudaStream_t stream, const View& x, int64_t groups, const View& y) {
  if (groups < 1 || x.c % groups != 0)
    throw std::invalid_argument(CONVOY_DEVICE_NAME "::channel_shuffle: channels are no multiple of the groups");
  to_space("channel_shuffle", stream, x, {0, static_cast<int>(groups), static_cast<int>(x.c / groups), 1}, 1, y);
}

}  // namespace convoy::CONVOY_DEVICE
