// A device with memory and streams of its own, as a context holds it.
#pragma once
#include <memory>
#include <vector>

#include "engine/memory.h"
#include "kernels/device_runtime.h"
#include "kernels/view.h"

namespace convoy {

enum class DeviceKind : uint8_t;

/// A tensor of a device, fetched with its geometry: slices come with what lies between their pixels.
struct HostCopy {
  std::vector<char> bytes;
  View view;  ///< of `bytes`
};

/// One device: its memory, the stream on which steps are computed, and one for copies beside it.
class Device {
 public:
  /// Throws Error when the build has no such device.
  explicit Device(DeviceKind kind);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  DeviceRuntime& runtime() const { return runtime_; }
  cudaStream_t compute() const { return compute_; }
  cudaStream_t copies() const { return copies_; }
  const std::shared_ptr<Allocator>& memory() const { return memory_; }

  /// Copies behind all that the compute stream holds; done when they return. Any host memory will do.
  void upload(void* to, const void* from, size_t bytes);
  void download(void* to, const void* from, size_t bytes);
  HostCopy download(const View& view);
  /// Waits for everything that was enqueued.
  void synchronize();

 private:
  void reserve_staging(size_t bytes);

  DeviceRuntime& runtime_;
  cudaStream_t compute_, copies_;
  std::shared_ptr<Allocator> memory_;
  void* staging_ = nullptr;  ///< pinned
  size_t staging_bytes_ = 0;
};

}  // namespace convoy
