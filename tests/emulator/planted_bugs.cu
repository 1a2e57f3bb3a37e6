// One planted bug per kernel; every kernel looks reasonable.
#include "tests/emulator/planted_bugs.h"

#include "tests/emulator/device_buffer.h"

namespace convoy::test {
namespace {

using CONVOY_DEVICE::launch;

// Neighbour exchange across warps without a barrier.
__global__ void missing_sync(const float* x, float* y) {
  CONVOY_SHARED(float[256], s);
  s[threadIdx.x] = x[threadIdx.x];
  y[threadIdx.x] = s[255 - threadIdx.x];
}
// The second round's writes race with the first round's readers.
__global__ void missing_second_sync(const float* x, float* y) {
  CONVOY_SHARED(float[256], s);
  for (int r = 0; r < 2; ++r) {
    s[threadIdx.x] = x[r * 256 + threadIdx.x];
    __syncthreads();
    y[r * 256 + threadIdx.x] = s[(threadIdx.x + 1) % 256];
  }
}
// The warp-synchronous reduction of the years before independent thread scheduling.
__global__ void missing_syncwarp(const float* x, float* y) {
  CONVOY_SHARED(float[32], s);
  s[threadIdx.x] = x[threadIdx.x];
  for (int d = 16; d > 0; d /= 2)
    if (static_cast<int>(threadIdx.x) < d) s[threadIdx.x] += s[threadIdx.x + d];
  if (threadIdx.x == 0) y[0] = s[0];
}
// The control: the same reduction, correct.
__global__ void correct_syncwarp(const float* x, float* y) {
  CONVOY_SHARED(float[32], s);
  s[threadIdx.x] = x[threadIdx.x];
  __syncwarp();
  for (int d = 16; d > 0; d /= 2) {
    float sum = 0;
    if (static_cast<int>(threadIdx.x) < d) sum = s[threadIdx.x] + s[threadIdx.x + d];
    __syncwarp();
    if (static_cast<int>(threadIdx.x) < d) s[threadIdx.x] = sum;
    __syncwarp();
  }
  if (threadIdx.x == 0) y[0] = s[0];
}
// <= for <.
__global__ void global_overrun(const float* x, float* y, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i <= n) y[i] = x[i < n ? i : 0] * 2.f;
}
__global__ void global_underrun(const float* x, float* y) {
  y[threadIdx.x] = x[static_cast<int>(threadIdx.x) - 1];
}
__global__ void shared_overrun(const float* x, float* y) {
  CONVOY_SHARED(float[128], s);
  CONVOY_SHARED(float[128], other);
  s[threadIdx.x + 1] = x[threadIdx.x];
  other[threadIdx.x] = 1.f;
  __syncthreads();
  y[threadIdx.x] = s[threadIdx.x] + other[threadIdx.x];
}
// Launched with room for one float less.
__global__ void dynamic_overrun(const float* x, float* y) {
  CONVOY_DYNAMIC_SHARED(float, s);
  s[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  y[threadIdx.x] = s[threadIdx.x];
}
// Leaves a row but stays inside the tile.
__global__ void row_overrun(const float* x, float* y) {
  CONVOY_SHARED(float[8][8], t);
  t[threadIdx.x / 8][threadIdx.x % 8] = x[threadIdx.x];
  __syncthreads();
  const int c = threadIdx.x % 8;
  y[threadIdx.x] = threadIdx.x < 56 ? t[threadIdx.x / 8][c + 1] : 0.f;
}
__global__ void early_return(const float* x, float* y, int n) {
  CONVOY_SHARED(float[256], s);
  const int i = threadIdx.x;
  if (i >= n) return;
  s[i] = x[i];
  __syncthreads();
  y[i] = s[n - 1 - i];
}
__global__ void barrier_in_branches(const float* x, float* y) {
  CONVOY_SHARED(float[256], s);
  s[threadIdx.x] = x[threadIdx.x];
  if (threadIdx.x < 100) {
    __syncthreads();
    y[threadIdx.x] = s[threadIdx.x + 1];
  } else {
    __syncthreads();
    y[threadIdx.x] = 0;
  }
}
__global__ void divergent_shuffle(const float* x, float* y) {
  float v = x[threadIdx.x];
  if (threadIdx.x < 20)
    for (int d = 16; d > 0; d /= 2) v += __shfl_down_sync(0xffffffffu, v, d);
  y[threadIdx.x] = v;
}
__global__ void shuffle_from_inactive(const float* x, float* y) {
  float v = x[threadIdx.x];
  if (threadIdx.x < 16) v += __shfl_down_sync(0x0000ffffu, v, 8);
  y[threadIdx.x] = v;
}
// The tail of the tile is never filled.
__global__ void uninitialised_shared(const float* x, float* y) {
  CONVOY_SHARED(float[64], s);
  if (threadIdx.x < 60) s[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  float sum = 0;
  for (int i = 0; i < 64; ++i) sum += s[i];
  y[threadIdx.x] = sum;
}
// Launched without the cudaMemset that it needs, or by several blocks at once.
__global__ void increment(float* y) {
  y[threadIdx.x] += 1.f;
}
// Compaction in order of arrival.
__global__ void order_dependent(const float* x, float* y, unsigned* slot) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  y[atomicAdd(slot, 1u)] = x[i];
}
// The last block sums up, but nobody called __threadfence.
__global__ void last_block_without_fence(const float* x, float* part, unsigned* done, float* y) {
  CONVOY_SHARED(bool, last);
  if (threadIdx.x == 0) {
    part[blockIdx.x] = x[blockIdx.x];
    last = atomicAdd(done, 1u) == gridDim.x - 1;
  }
  __syncthreads();
  if (last && threadIdx.x == 0) {
    float sum = 0;
    for (unsigned i = 0; i < gridDim.x; ++i) sum += part[i];
    y[0] = sum;
  }
}
__global__ void misaligned(const float* x, float* y) {
  const float4 v = reinterpret_cast<const float4*>(x + 1)[threadIdx.x];
  y[threadIdx.x] = v.x + v.y + v.z + v.w;
}
__global__ void copy(const float* x, float* y) {
  y[threadIdx.x] = x[threadIdx.x];
}
// int where int64_t was needed.
__global__ void index_overflow(float* y, int n, int c) {
  const int i = (n - 1) * c + static_cast<int>(threadIdx.x);
  y[i < 0 ? 0 : i % 64] = 1.f;
}
__global__ void nothing(float* y) {
  if (y == nullptr) return;
}
__global__ void large_static(float* y) {
  CONVOY_SHARED(float[13000], s);
  s[threadIdx.x] = 1.f;
  y[threadIdx.x] = s[threadIdx.x];
}

__global__ void atomic_sum(float* sum) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  atomicAdd(sum, 1.f / static_cast<float>(1 + i * i));
}

// x[i] = i + 1 and an uninitialised y of 1024 floats each.
struct Data {
  std::vector<float> h = numbers();
  DeviceBuffer<float> x{h}, y{1024};

  static std::vector<float> numbers() {
    std::vector<float> v(1024);
    for (size_t i = 0; i < v.size(); ++i) v[i] = static_cast<float>(i + 1);
    return v;
  }
  template <class F>
  void expect(size_t count, F value) const {
    const auto got = y.host(count);
    for (size_t i = 0; i < count; ++i)
      if (!(got[i] == value(i)))
        throw std::runtime_error("wrong result at [" + std::to_string(i) + "]: " + std::to_string(got[i]) + " for " +
                                 std::to_string(value(i)));
  }
};

// Runs `launches(data, x, y)`.
template <auto launches>
void with_data() {
  Data d;
  launches(d, d.x.data(), d.y.data());
}
using Floats = float*;

}  // namespace

const std::vector<PlantedBug>& planted_bugs() {
  static const std::vector<PlantedBug> bugs = {
      {"none: correct __syncwarp", nullptr, false, false, with_data<[](Data& d, Floats x, Floats y) {
         launch({1, 32}, correct_syncwarp, x, y);
         d.expect(1, [](size_t) { return 528.f; });
       }>},
      {"missing __syncthreads", "uninitialised", true, true, with_data<[](Data& d, Floats x, Floats y) {
         launch({1, 256}, missing_sync, x, y);
         d.expect(256, [&](size_t i) { return d.h[255 - i]; });
       }>},
      {"missing second __syncthreads", "data race in shared", true, true, with_data<[](Data& d, Floats x, Floats y) {
         launch({1, 256}, missing_second_sync, x, y);
         d.expect(512, [&](size_t i) { return d.h[i / 256 * 256 + (i + 1) % 256]; });
       }>},
      {"missing __syncwarp", "in shared memory", true, true, with_data<[](Data& d, Floats x, Floats y) {
         launch({1, 32}, missing_syncwarp, x, y);
         d.expect(1, [](size_t) { return 528.f; });
       }>},
      {"global write past the end", "bytes after the end", false, true, with_data<[](Data&, Floats x, Floats) {
         DeviceBuffer<float> z(100);
         launch({1, 128}, global_overrun, x, z.data(), 100);
       }>},
      {"global read before the start", "bytes before an allocation", false, true,
       with_data<[](Data&, Floats x, Floats y) {
         launch({1, 32}, global_underrun, x, y);
       }>},
      {"static shared array overrun", "index 128 is out of bounds", false, true,
       with_data<[](Data&, Floats x, Floats y) {
         launch({1, 128}, shared_overrun, x, y);
       }>},
      {"dynamic shared array overrun", "outside every shared array", false, true,
       with_data<[](Data&, Floats x, Floats y) {
         launch({1, 128, 127 * 4}, dynamic_overrun, x, y);
       }>},
      {"row overrun inside a 2-D tile", "index 8 is out of bounds", false, true,
       with_data<[](Data&, Floats x, Floats y) {
         launch({1, 64}, row_overrun, x, y);
       }>},
      {"early return before a barrier", "56 threads exited", true, true, with_data<[](Data&, Floats x, Floats y) {
         launch({1, 256}, early_return, x, y, 200);
       }>},
      {"barrier in both branches", "barrier divergence", true, true, with_data<[](Data&, Floats x, Floats y) {
         launch({1, 256}, barrier_in_branches, x, y);
       }>},
      {"shuffle in a divergent branch", "barrier divergence", true, true, with_data<[](Data&, Floats x, Floats y) {
         launch({1, 32}, divergent_shuffle, x, y);
       }>},
      {"shuffle from an inactive lane", "does not take part", true, true, with_data<[](Data&, Floats x, Floats y) {
         launch({1, 32}, shuffle_from_inactive, x, y);
       }>},
      {"uninitialised shared memory", "uninitialised memory in shared", true, true,
       with_data<[](Data& d, Floats x, Floats y) {
         launch({1, 64}, uninitialised_shared, x, y);
         d.expect(64, [](size_t) { return 1830.f; });
       }>},
      {"uninitialised global memory", "uninitialised memory in global", true, true,
       with_data<[](Data& d, Floats, Floats y) {
         launch({1, 64}, increment, y);
         d.expect(64, [](size_t) { return 1.f; });
       }>},
      {"order-dependent atomics", "wrong result", true, true, with_data<[](Data& d, Floats x, Floats y) {
         DeviceBuffer<unsigned> slot(1);
         slot.zero();
         launch({4, 64}, order_dependent, x, y, slot.data());
         d.expect(256, [&](size_t i) { return d.h[i]; });
       }>},
      {"lost update between blocks", "data race in global", false, false, with_data<[](Data& d, Floats, Floats y) {
         d.y.zero();
         launch({4, 64}, increment, y);
         d.expect(64, [](size_t) { return 4.f; });
       }>},
      {"last block without fence", "data race in global", false, false, with_data<[](Data& d, Floats x, Floats y) {
         DeviceBuffer<unsigned> done(1);
         done.zero();
         DeviceBuffer<float> part(8);
         launch({8, 32}, last_block_without_fence, x, part.data(), done.data(), y);
         d.expect(1, [](size_t) { return 36.f; });
       }>},
      {"1025 threads per block", "threads per block = 1025", true, true, with_data<[](Data&, Floats, Floats y) {
         launch({1, dim3(205, 5)}, nothing, y);
       }>},
      {"grid.y of 65536", "grid.y = 65536", true, true, with_data<[](Data&, Floats, Floats y) {
         launch({dim3(1, 65536), 32}, nothing, y);
       }>},
      {"228 KiB of dynamic shared memory", "dynamic shared memory = 233472", true, true,
       with_data<[](Data&, Floats, Floats y) {
         launch({1, 32, 228 * 1024}, nothing, y);
       }>},
      {"empty grid", "grid.x = 0 is zero", true, true, with_data<[](Data&, Floats, Floats y) {
         launch({0, 32}, nothing, y);
       }>},
      {"static shared memory over 48 KiB", "static shared memory: 52000", true, true,
       with_data<[](Data&, Floats, Floats y) {
         launch({1, 32}, large_static, y);
       }>},
      {"misaligned float4", "misaligned access", false, true, with_data<[](Data&, Floats x, Floats y) {
         launch({1, 32}, misaligned, x, y);
       }>},
      {"host pointer in a kernel", "not the device's", false, false, with_data<[](Data& d, Floats, Floats y) {
         launch({1, 32}, copy, d.h.data(), y);
       }>},
      {"32-bit index overflow", "signed overflow in multiplication", false, false,
       with_data<[](Data& d, Floats, Floats y) {
         d.y.zero();
         launch({1, 32}, index_overflow, y, 70000, 40000);
       }>},
  };
  return bugs;
}

float float_atomic_sum() {
  DeviceBuffer<float> sum(1);
  sum.zero();
  launch({16, 64}, atomic_sum, sum.data());
  return sum.host()[0];
}

}  // namespace convoy::test
