// The one CUDA header that a kernels/*.cu includes. nvcc compiles the file for the GPU; g++ (-x c++) compiles the same
// file against the emulator (kernels/emulator/README.md), which runs it on the CPU. Three things are written
// differently from plain CUDA so that both can read them:
//   CONVOY_SHARED(float[32][33], tile);       for  __shared__ float tile[32][33];
//   CONVOY_DYNAMIC_SHARED(float, buffer);     for  extern __shared__ float buffer[];
//   launch({grid, block, shared_bytes, stream}, kernel<T>, args...);   for  kernel<T><<<...>>>(args...);
// Everything stands in namespace convoy::CONVOY_DEVICE, which is `cuda` or `emulated`, so that one program can hold
// both.
#pragma once
#ifdef __CUDACC__
#define CONVOY_DEVICE cuda
#define CONVOY_DEVICE_NAME "cuda"
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <stdexcept>
#include <string>
#include <type_traits>

namespace convoy::CONVOY_DEVICE {

/// Where and how large a kernel runs: blocks per grid, threads per block, bytes of dynamic shared memory per block.
struct Launch {
  dim3 grid, block;
  size_t shared_bytes = 0;
  cudaStream_t stream = nullptr;
};

/// Launches `kernel` with arguments converted to its parameter types. Throws std::runtime_error with the runtime's
/// message when the launch is refused; faults inside the kernel show at the next synchronisation.
template <class... Params, class... Args>
void launch(const Launch& l, void (*kernel)(Params...), Args&&... args) {
  constexpr size_t kWithoutOptIn = 48 * 1024;
  cudaError_t error = cudaSuccess;
  if (l.shared_bytes > kWithoutOptIn)
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(l.shared_bytes));
  cudaLaunchConfig_t config{};
  config.gridDim = l.grid;
  config.blockDim = l.block;
  config.dynamicSmemBytes = l.shared_bytes;
  config.stream = l.stream;
  if (error == cudaSuccess) error = cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...);
  if (error != cudaSuccess) throw std::runtime_error(std::string("kernel launch: ") + cudaGetErrorString(error));
}

}  // namespace convoy::CONVOY_DEVICE

#define CONVOY_SHARED(type, name) __shared__ std::type_identity_t<type> name
#define CONVOY_DYNAMIC_SHARED(type, name)                                \
  extern __shared__ __align__(16) unsigned char convoy_dynamic_shared[]; \
  type* name = reinterpret_cast<type*>(convoy_dynamic_shared)
#else
#include "kernels/emulator/device_language.h"
#endif
