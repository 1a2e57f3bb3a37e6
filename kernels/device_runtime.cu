// The CUDA runtime API behind DeviceRuntime: one call each, with its error turned into an exception.
#include "kernels/device_runtime.h"

#include <stdexcept>
#include <string>

#include "kernels/cuda_compat.h"

namespace convoy::CONVOY_DEVICE {
namespace {

void check(cudaError_t error, const char* call) {
  if (error != cudaSuccess) throw std::runtime_error(std::string(call) + ": " + cudaGetErrorString(error));
}

class Runtime : public DeviceRuntime {
 public:
  void* allocate(size_t bytes) override {
    void* data = nullptr;
    const cudaError_t error = cudaMalloc(&data, bytes);
    if (error == cudaErrorMemoryAllocation) {
      cudaGetLastError();  // or the next launch would report it
      return nullptr;
    }
    check(error, "cudaMalloc");
    return data;
  }
  void free(void* data) override { cudaFree(data); }
  void* allocate_pinned(size_t bytes) override {
    void* data = nullptr;
    const cudaError_t error = cudaMallocHost(&data, bytes);
    if (error == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      return nullptr;
    }
    check(error, "cudaMallocHost");
    return data;
  }
  void free_pinned(void* data) override { cudaFreeHost(data); }

  cudaStream_t create_stream() override {
    cudaStream_t stream = nullptr;
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    return stream;
  }
  void destroy_stream(cudaStream_t stream) override { cudaStreamDestroy(stream); }
  cudaEvent_t create_event() override {
    cudaEvent_t event = nullptr;
    check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags");
    return event;
  }
  void destroy_event(cudaEvent_t event) override { cudaEventDestroy(event); }
  void record(cudaEvent_t event, cudaStream_t stream) override {
    check(cudaEventRecord(event, stream), "cudaEventRecord");
  }
  void wait(cudaStream_t stream, cudaEvent_t event) override {
    check(cudaStreamWaitEvent(stream, event, 0), "cudaStreamWaitEvent");
  }
  void synchronize(cudaStream_t stream) override { check(cudaStreamSynchronize(stream), "cudaStreamSynchronize"); }

  void copy(void* to, const void* from, size_t bytes, cudaStream_t stream) override {
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream), "cudaMemcpyAsync");
  }
  void fill(void* data, unsigned char byte, size_t bytes, cudaStream_t stream) override {
    check(cudaMemsetAsync(data, byte, bytes, stream), "cudaMemsetAsync");
  }
};

}  // namespace

DeviceRuntime& device_runtime() {
  static Runtime runtime;
  return runtime;
}

void copy_bytes(cudaStream_t stream, const void* from, void* to, size_t bytes) {
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream), "cudaMemcpyAsync");
}

}  // namespace convoy::CONVOY_DEVICE
