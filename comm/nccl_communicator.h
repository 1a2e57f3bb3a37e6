// DeviceCommunicator by NCCL, or by what has its functions (comm/nccl_api.h).
#pragma once
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "comm/nccl_api.h"
#include "engine/device_communicator.h"
#include "kernels/device_runtime.h"

namespace convoy {

struct NcclOptions {
  double join_seconds = 60;  ///< for all ranks to join, and for NCCL to take a call
  /// Told when the host begins and ends to wait for the collectives of its streams; see Liveness.
  std::function<void(const std::string& name)> enter = [](const std::string&) {};
  std::function<void()> leave = [] {};
};

/// Two NCCL communicators: the inline channel's on the caller's streams, the gradient channel's on a stream of its own.
/// The host communicator carries their ids, and word of failures: a thread looks for errors of NCCL and for the host
/// communicator's failure, makes the first the latter, and aborts both, so that no stream waits for ever.
class NcclCommunicator : public DeviceCommunicator {
 public:
  /// Collective on the host communicator's inline channel. Throws Error when the ranks do not join in time.
  NcclCommunicator(const nccl::NcclApi& api, Communicator& host, DeviceRuntime& runtime, NcclOptions options = {});
  ~NcclCommunicator() override;

  int rank() const override { return host_.rank(); }
  int size() const override { return host_.size(); }
  void all_reduce(float* data, size_t count, ReduceOp op, cudaStream_t stream, const std::string& name) override;
  void all_reduce(int64_t* data, size_t count, ReduceOp op, cudaStream_t stream, const std::string& name) override;
  void all_gather(const void* part, size_t bytes, void* all, cudaStream_t stream, const std::string& name) override;
  void broadcast(void* data, size_t bytes, int root, cudaStream_t stream, const std::string& name) override;
  void start_sum(const std::vector<std::span<float>>& segments, cudaStream_t stream, const std::string& name) override;
  void finish_sums(cudaStream_t stream) override;
  void synchronize(cudaStream_t stream, const std::string& name) override;
  void abort() override;

 private:
  struct Channel {
    const char* what;
    nccl::ncclComm_t comm = nullptr;  ///< null when aborted
  };
  void join(Channel& channel);
  /// Enqueues by `call`, one NCCL call or a group.
  template <class Call>
  void enqueue(Channel& channel, const char* function, size_t bytes, const std::string& name, Call call);
  void throw_if_failed() const;
  std::string explain(const Channel& channel, nccl::ncclResult_t result) const;
  void watch();
  void abort_channels();

  const nccl::NcclApi& api_;
  Communicator& host_;
  DeviceRuntime& runtime_;
  NcclOptions options_;
  cudaStream_t communication_ = nullptr;
  cudaEvent_t ready_ = nullptr, summed_ = nullptr;
  Channel inline_{.what = "inline channel"}, gradients_{.what = "gradient channel"};
  mutable std::mutex lock_;  ///< of the channels, between the caller and the watching thread
  std::condition_variable end_;
  bool ended_ = false;
  std::thread watcher_;
};

}  // namespace convoy
