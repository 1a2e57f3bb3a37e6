// The part of the CUDA runtime API that the emulator implements (runtime.cpp, streams.cpp), with CUDA's names and
// types. The functions live in namespace convoy::emulator, so that a program may hold them beside libcudart.
#pragma once
#include <cstddef>

#include "kernels/cuda_stream.h"
#include "kernels/emulator/emulator.h"

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInvalidResourceHandle = 400,
  cudaErrorLaunchFailure = 719,  ///< a fault of queued work: returned by every call from then on
  cudaErrorNotPermitted = 800
};
enum cudaMemcpyKind {
  cudaMemcpyHostToHost,
  cudaMemcpyHostToDevice,
  cudaMemcpyDeviceToHost,
  cudaMemcpyDeviceToDevice,
  cudaMemcpyDefault
};
constexpr unsigned cudaStreamDefault = 0, cudaStreamNonBlocking = 1;
constexpr unsigned cudaEventDefault = 0, cudaEventDisableTiming = 2;
using cudaHostFn_t = void (*)(void*);

namespace convoy::emulator {

/// Device memory, filled with 0xff bytes: NaN in every float type, -1 as an integer.
cudaError_t cudaMalloc(void** p, size_t bytes);
template <class T>
cudaError_t cudaMalloc(T** p, size_t bytes) {
  return cudaMalloc(reinterpret_cast<void**>(p), bytes);
}
/// Waits for all work of the calling thread's streams. An error, and nothing is freed, while a copy or memset of any
/// stream that was not waited for touches the memory.
cudaError_t cudaFree(void* p);
/// Pinned host memory, filled with 0xff bytes; kernels may not touch it.
cudaError_t cudaMallocHost(void** p, size_t bytes);
cudaError_t cudaFreeHost(void* p);

/// Waits for the copy. Errors: a kind that does not suit the addresses, the end of an allocation overrun.
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, CONVOY_CALLER);
/// Reads and writes pinned and device memory when the stream gets there. Pageable memory is read at once and is written
/// before the call returns.
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream,
                            CONVOY_CALLER);
/// On the default stream; does not wait.
cudaError_t cudaMemset(void* p, int value, size_t bytes, CONVOY_CALLER);
cudaError_t cudaMemsetAsync(void* p, int value, size_t bytes, cudaStream_t stream, CONVOY_CALLER);
/// `function` may not call the runtime API.
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data, CONVOY_CALLER);

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
/// Does not wait: what the stream holds runs later.
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags, CONVOY_CALLER);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream, CONVOY_CALLER);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
/// All streams that the calling thread has made: each thread is a device of its own.
cudaError_t cudaDeviceSynchronize();

cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDevice(int* device);
cudaError_t cudaGetLastError();
/// What this thread's last error of the kind was about, in full; CUDA gives the kind only.
const char* cudaGetErrorString(cudaError_t error);

}  // namespace convoy::emulator

using convoy::emulator::cudaDeviceSynchronize;
using convoy::emulator::cudaEventCreateWithFlags;
using convoy::emulator::cudaEventDestroy;
using convoy::emulator::cudaEventRecord;
using convoy::emulator::cudaEventSynchronize;
using convoy::emulator::cudaFree;
using convoy::emulator::cudaFreeHost;
using convoy::emulator::cudaGetDevice;
using convoy::emulator::cudaGetDeviceCount;
using convoy::emulator::cudaGetErrorString;
using convoy::emulator::cudaGetLastError;
using convoy::emulator::cudaLaunchHostFunc;
using convoy::emulator::cudaMalloc;
using convoy::emulator::cudaMallocHost;
using convoy::emulator::cudaMemcpy;
using convoy::emulator::cudaMemcpyAsync;
using convoy::emulator::cudaMemset;
using convoy::emulator::cudaMemsetAsync;
using convoy::emulator::cudaSetDevice;
using convoy::emulator::cudaStreamCreateWithFlags;
using convoy::emulator::cudaStreamDestroy;
using convoy::emulator::cudaStreamSynchronize;
using convoy::emulator::cudaStreamWaitEvent;
