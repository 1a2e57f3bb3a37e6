// The runtime API over host memory: device memory is malloc's, streams and events are done when the call returns.
#include <cstdlib>
#include <cstring>
#include <map>

#include "kernels/emulator/state.h"

namespace convoy::emulator {
namespace {

struct Allocation {
  void* raw;
  size_t bytes;
};
std::map<void*, Allocation> live;  // guarded by check_lock

// Unmapped is not possible for malloc's memory, so allocations lie apart: a small overrun hits no neighbour, and the
// checker can name it.
void* allocate(size_t bytes, void** raw) {
#if defined(__SANITIZE_ADDRESS__)
  return posix_memalign(raw, 256, bytes) ? nullptr : *raw;  // the exact size, for AddressSanitizer's redzone
#else
  constexpr size_t kPage = 4096;
  *raw = aligned_alloc(kPage, ((bytes + kPage - 1) & ~(kPage - 1)) + 2 * kPage);
  return *raw ? static_cast<char*>(*raw) + kPage : nullptr;
#endif
}

}  // namespace
}  // namespace convoy::emulator

using namespace convoy::emulator;

extern "C" {

cudaError_t cudaMalloc(void** p, size_t bytes) {
  void* raw = nullptr;
  *p = nullptr;
  if (bytes == 0) return cudaSuccess;
  void* data = allocate(bytes, &raw);
  if (!data) return cudaErrorMemoryAllocation;
  std::memset(data, 0xff, bytes);
  std::lock_guard lock(check_lock);
  check_range(data, bytes, true, false);
  live[data] = {raw, bytes};
  *p = data;
  return cudaSuccess;
}

cudaError_t cudaFree(void* p) {
  if (!p) return cudaSuccess;
  std::lock_guard lock(check_lock);
  const auto it = live.find(p);
  if (it == live.end()) return cudaErrorInvalidValue;
  check_range(p, it->second.bytes, false, false);
  std::free(it->second.raw);
  live.erase(it);
  return cudaSuccess;
}

cudaError_t cudaMallocHost(void** p, size_t bytes) {
  *p = std::malloc(bytes ? bytes : 1);
  return *p ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t cudaFreeHost(void* p) {
  std::free(p);
  return cudaSuccess;
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  if (bytes == 0) return cudaSuccess;
  std::lock_guard lock(check_lock);
  check_host_read(from, bytes);
  check_written(to, bytes);
  std::memcpy(to, from, bytes);
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t) {
  return cudaMemcpy(to, from, bytes, kind);
}

cudaError_t cudaMemset(void* p, int value, size_t bytes) {
  if (bytes == 0) return cudaSuccess;
  std::lock_guard lock(check_lock);
  check_written(p, bytes);
  std::memset(p, value, bytes);
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void* p, int value, size_t bytes, cudaStream_t) {
  return cudaMemset(p, value, bytes);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = nullptr;
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t) {
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t) {
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) {
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = nullptr;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t) {
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) {
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t) {
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  return device == 0 ? cudaSuccess : cudaErrorInvalidValue;
}
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaGetLastError() {
  return cudaSuccess;
}

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorInvalidValue:
      return "invalid argument";
    case cudaErrorMemoryAllocation:
      return "out of memory";
  }
  return "unknown error";
}
}
