// Memory, streams and events of a device, as the engine uses the CUDA runtime API. device_runtime.cu implements it
// twice: over CUDA, and over the emulator, whose streams run late and in any order that events allow.
#pragma once
#include <cstddef>

#include "kernels/cuda_stream.h"

namespace convoy {

/// One device. Calls that enqueue return at once; all else is as CUDA has it. Throws std::runtime_error with the call
/// and the runtime's message, faults of earlier launches included; freeing and destroying never do.
class DeviceRuntime {
 public:
  virtual ~DeviceRuntime() = default;
  /// Device memory, aligned to 256 bytes; null when there is none left.
  virtual void* allocate(size_t bytes) = 0;
  virtual void free(void* data) = 0;
  /// Host memory that copies read and write while the host goes on; null when there is none left.
  virtual void* allocate_pinned(size_t bytes) = 0;
  virtual void free_pinned(void* data) = 0;

  virtual cudaStream_t create_stream() = 0;
  virtual void destroy_stream(cudaStream_t stream) = 0;
  virtual cudaEvent_t create_event() = 0;
  virtual void destroy_event(cudaEvent_t event) = 0;
  /// The event stands for all that `stream` holds now.
  virtual void record(cudaEvent_t event, cudaStream_t stream) = 0;
  /// What `stream` is given from now on runs after the event.
  virtual void wait(cudaStream_t stream, cudaEvent_t event) = 0;
  /// The host waits until the stream is empty.
  virtual void synchronize(cudaStream_t stream) = 0;

  /// Between host and device or within either. Host memory must be pinned and be left alone until the copy is done.
  virtual void copy(void* to, const void* from, size_t bytes, cudaStream_t stream) = 0;
  virtual void fill(void* data, unsigned char byte, size_t bytes, cudaStream_t stream) = 0;
};

}  // namespace convoy

// device_runtime   the device that this OS thread works with
// copy_bytes       within device memory, as a launch among others
CONVOY_CUDA_KERNELS(DeviceRuntime& device_runtime();
                    void copy_bytes(cudaStream_t stream, const void* from, void* to, size_t bytes);)
