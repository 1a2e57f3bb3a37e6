// The ranks of a Communicator for data in device memory: collectives are work on streams, and host memory never sees
// what they exchange.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/communicator.h"
#include "kernels/cuda_stream.h"

namespace convoy {

/// All pointers are device memory; calls enqueue and return. The inline channel (all_reduce, all_gather, broadcast)
/// works on the stream that it is given, the gradient channel (start_sum, finish_sums) on one of its own. On each
/// channel every rank makes the same calls in the same order. Sums are formed in an order that is the same in every
/// run.
///
/// A collective that cannot complete ends at synchronize(), which throws Error with a message that is the same on every
/// rank; what it should have written is undefined. Enqueuing throws Error once a failure is known.
class DeviceCommunicator {
 public:
  virtual ~DeviceCommunicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// In place. A maximum is NaN where a part is.
  virtual void all_reduce(float* data, size_t count, ReduceOp op, cudaStream_t stream, const std::string& name) = 0;
  virtual void all_reduce(int64_t* data, size_t count, ReduceOp op, cudaStream_t stream, const std::string& name) = 0;
  /// `all` holds size() * bytes: the parts in the order of ranks. Every rank gives the same number of bytes.
  virtual void all_gather(const void* part, size_t bytes, void* all, cudaStream_t stream, const std::string& name) = 0;
  virtual void broadcast(void* data, size_t bytes, int root, cudaStream_t stream, const std::string& name) = 0;

  /// Sums the segments over the ranks, in place, beside the work of `stream`, but after what it holds now. They must be
  /// left alone until finish_sums.
  virtual void start_sum(const std::vector<std::span<float>>& segments, cudaStream_t stream,
                         const std::string& name) = 0;
  /// What `stream` is given from now on runs after all sums that were started.
  virtual void finish_sums(cudaStream_t stream) = 0;

  /// The host waits until `stream` is empty. Every rank comes to it in the same order among its collectives on the
  /// host: whoever is late for it is named.
  virtual void synchronize(cudaStream_t stream, const std::string& name) = 0;
  /// This rank gives up: its streams do not wait for other ranks any more. Throws nothing.
  virtual void abort() = 0;
};

}  // namespace convoy
