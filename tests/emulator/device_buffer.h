// Device memory for the tests, by nothing but the CUDA runtime API, so that the same tests can run on a GPU.
#pragma once
#include <vector>

#include "kernels/cuda_compat.h"

namespace convoy::test {

template <class T>
class DeviceBuffer {
 public:
  /// Uninitialised.
  explicit DeviceBuffer(size_t count) : count_(count) { cudaMalloc(&data_, count * sizeof(T)); }
  explicit DeviceBuffer(const std::vector<T>& values) : DeviceBuffer(values.size()) {
    cudaMemcpy(data_, values.data(), count_ * sizeof(T), cudaMemcpyHostToDevice);
  }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;
  ~DeviceBuffer() { cudaFree(data_); }

  void zero() { cudaMemset(data_, 0, count_ * sizeof(T)); }
  T* data() const { return data_; }
  std::vector<T> host() const { return host(count_); }
  std::vector<T> host(size_t first) const {
    std::vector<T> values(first);
    cudaMemcpy(values.data(), data_, first * sizeof(T), cudaMemcpyDeviceToHost);
    return values;
  }

 private:
  T* data_ = nullptr;
  size_t count_;
};

}  // namespace convoy::test
