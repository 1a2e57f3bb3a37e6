#include "comm/nccl_communicator.h"

#include <chrono>
#include <exception>

#include "engine/error.h"
#include "engine/start_thread.h"

namespace convoy {

using namespace nccl;
using SteadyClock = std::chrono::steady_clock;

namespace {

ncclRedOp_t operation(ReduceOp op) {
  return op == ReduceOp::kSum ? ncclSum : ncclMax;
}

}  // namespace

NcclCommunicator::NcclCommunicator(const NcclApi& api, Communicator& host, DeviceRuntime& runtime, NcclOptions options)
    : api_(api), host_(host), runtime_(runtime), options_(std::move(options)) {
  try {
    join(inline_);
    join(gradients_);
    communication_ = runtime_.create_stream();
    ready_ = runtime_.create_event();
    summed_ = runtime_.create_event();
    watcher_ = start_thread("look for failures of NCCL", [this] { watch(); });
  } catch (...) {
    abort_channels();
    throw;
  }
}

NcclCommunicator::~NcclCommunicator() {
  {
    const std::lock_guard guard(lock_);
    ended_ = true;
  }
  end_.notify_all();
  watcher_.join();
  if (std::uncaught_exceptions() > 0) abort_channels();
  for (const Channel* channel : {&inline_, &gradients_})
    if (channel->comm) api_.ncclCommDestroy(channel->comm);
  runtime_.destroy_event(ready_);
  runtime_.destroy_event(summed_);
  runtime_.destroy_stream(communication_);
}

std::string NcclCommunicator::explain(const Channel& channel, ncclResult_t result) const {
  const std::string detail = api_.ncclGetLastError(channel.comm);
  return fmt::format("NCCL, {} of rank {}: {}{}{}", channel.what, host_.rank(), api_.ncclGetErrorString(result),
                     detail.empty() ? "" : ": ", detail);
}

void NcclCommunicator::join(Channel& channel) {
  ncclUniqueId id{};
  ncclResult_t result = ncclSuccess;
  if (host_.rank() == 0) result = api_.ncclGetUniqueId(&id);
  CONVOY_CHECK(result == ncclSuccess, "{}", explain(channel, result));
  host_.broadcast(&id, sizeof id, 0, fmt::format("NCCL id of the {}", channel.what));
  ncclConfig_t config;
  config.blocking = 0;
  result = api_.ncclCommInitRankConfig(&channel.comm, host_.size(), id, host_.rank(), &config);
  const auto end = SteadyClock::now() + std::chrono::duration<double>(options_.join_seconds);
  while (result == ncclInProgress) {
    if (const std::string failure = host_.failure(); !failure.empty()) throw Error(failure);
    CONVOY_CHECK(SteadyClock::now() < end, "not all {} ranks have joined within {} s: {}", host_.size(),
                 options_.join_seconds, explain(channel, result));
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (api_.ncclCommGetAsyncError(channel.comm, &result) != ncclSuccess) result = ncclInternalError;
  }
  CONVOY_CHECK(result == ncclSuccess, "{}", explain(channel, result));
}

void NcclCommunicator::throw_if_failed() const {
  const std::string failure = host_.failure();
  if (!failure.empty()) throw Error(failure);
}

// A call of a non-blocking communicator may be in progress for a while, a later one has to wait for it.
template <class Call>
void NcclCommunicator::enqueue(Channel& channel, const char* function, size_t bytes, const std::string& name,
                               Call call) {
  throw_if_failed();
  const std::lock_guard guard(lock_);
  const auto fault = [&](const std::string& what) {
    fail("{} '{}' of {} bytes on rank {}: {}", function, name, bytes, host_.rank(), what);
  };
  if (!channel.comm) fault("this rank has given up its communicator");
  if (api_.label) api_.label(channel.comm, name.c_str());
  ncclResult_t result = call(channel.comm);
  const auto end = SteadyClock::now() + std::chrono::duration<double>(options_.join_seconds);
  while (result == ncclInProgress && SteadyClock::now() < end)
    if (api_.ncclCommGetAsyncError(channel.comm, &result) != ncclSuccess) result = ncclInternalError;
  if (result == ncclSuccess) return;
  ncclResult_t state = ncclSuccess;  // a failure that ranks share is the watching thread's to report
  api_.ncclCommGetAsyncError(channel.comm, &state);
  if (state == ncclSuccess || state == ncclInProgress) fault(explain(channel, result));
  host_.fail_all(explain(channel, state));
  throw Error(host_.failure());
}

void NcclCommunicator::all_reduce(float* data, size_t count, ReduceOp op, cudaStream_t stream,
                                  const std::string& name) {
  enqueue(inline_, "all_reduce", count * sizeof(float), name, [&](ncclComm_t comm) {
    return api_.ncclAllReduce(data, data, count, ncclFloat32, operation(op), comm, stream);
  });
}

void NcclCommunicator::all_reduce(int64_t* data, size_t count, ReduceOp op, cudaStream_t stream,
                                  const std::string& name) {
  enqueue(inline_, "all_reduce", count * sizeof(int64_t), name, [&](ncclComm_t comm) {
    return api_.ncclAllReduce(data, data, count, ncclInt64, operation(op), comm, stream);
  });
}

void NcclCommunicator::all_gather(const void* part, size_t bytes, void* all, cudaStream_t stream,
                                  const std::string& name) {
  enqueue(inline_, "all_gather", bytes, name,
          [&](ncclComm_t comm) { return api_.ncclAllGather(part, all, bytes, ncclInt8, comm, stream); });
}

void NcclCommunicator::broadcast(void* data, size_t bytes, int root, cudaStream_t stream, const std::string& name) {
  CONVOY_CHECK(root >= 0 && root < size(), "broadcast '{}' from rank {} of {}", name, root, size());
  enqueue(inline_, "broadcast", bytes, name,
          [&](ncclComm_t comm) { return api_.ncclBroadcast(data, data, bytes, ncclInt8, root, comm, stream); });
}

void NcclCommunicator::start_sum(const std::vector<std::span<float>>& segments, cudaStream_t stream,
                                 const std::string& name) {
  runtime_.record(ready_, stream);
  runtime_.wait(communication_, ready_);
  size_t bytes = 0;
  for (const std::span<float> segment : segments) bytes += segment.size_bytes();
  enqueue(gradients_, "start_sum", bytes, name, [&](ncclComm_t comm) {
    ncclResult_t result = api_.ncclGroupStart();
    for (const std::span<float> segment : segments) {
      const ncclResult_t one = api_.ncclAllReduce(segment.data(), segment.data(), segment.size(), ncclFloat32, ncclSum,
                                                  comm, communication_);
      if (result == ncclSuccess || result == ncclInProgress) result = one;
    }
    const ncclResult_t end = api_.ncclGroupEnd();
    return result == ncclSuccess || result == ncclInProgress ? end : result;
  });
}

void NcclCommunicator::finish_sums(cudaStream_t stream) {
  runtime_.record(summed_, communication_);
  runtime_.wait(stream, summed_);
}

void NcclCommunicator::synchronize(cudaStream_t stream, const std::string& name) {
  throw_if_failed();
  options_.enter(name);
  runtime_.synchronize(stream);
  throw_if_failed();  // NCCL's kernels end when they are aborted
  const std::lock_guard guard(lock_);
  CONVOY_CHECK(inline_.comm && gradients_.comm, "'{}' on rank {}: this rank has given up its communicator", name,
               rank());
  options_.leave();
}

void NcclCommunicator::abort() {
  const std::lock_guard guard(lock_);
  abort_channels();
}

void NcclCommunicator::abort_channels() {
  for (Channel* channel : {&inline_, &gradients_}) {
    if (channel->comm) api_.ncclCommAbort(channel->comm);
    channel->comm = nullptr;
  }
}

void NcclCommunicator::watch() {
  std::unique_lock guard(lock_);
  while (!ended_ && inline_.comm) {
    std::string failure = host_.failure();
    for (const Channel* channel : {&inline_, &gradients_}) {
      ncclResult_t result = ncclSuccess;
      if (!failure.empty()) break;
      const ncclResult_t asked = api_.ncclCommGetAsyncError(channel->comm, &result);
      if (asked != ncclSuccess) result = asked;
      if (result != ncclSuccess && result != ncclInProgress) failure = explain(*channel, result);
    }
    if (!failure.empty()) {
      host_.fail_all(failure);
      abort_channels();
      return;
    }
    end_.wait_for(guard, std::chrono::milliseconds(20));
  }
}

}  // namespace convoy
