// Programs as an engine runs them: copies, kernels and sums on streams of their own, kept in order by events.
#include "tests/emulator/stream_bugs.h"

#include <algorithm>
#include <memory>
#include <stdexcept>

#include "tests/emulator/device_buffer.h"

namespace convoy::test {
namespace {

using CONVOY_DEVICE::launch;

constexpr int kCount = 64;
constexpr size_t kBytes = kCount * sizeof(float);

__global__ void twice(const float* x, float* y) {
  y[threadIdx.x] = 2.f * x[threadIdx.x];
}
__global__ void accumulate(const float* x, float* sum) {
  sum[threadIdx.x] += x[threadIdx.x];
}
__global__ void set(float* y, float value) {
  y[threadIdx.x] = value;
}
__global__ void diverge(float* y) {
  if (threadIdx.x < 16) __syncthreads();
  y[threadIdx.x] = 1.f;
}

void must(cudaError_t error) {
  if (error != cudaSuccess) throw std::runtime_error(cudaGetErrorString(error));
}

struct Stream {
  cudaStream_t handle;
  Stream(unsigned flags = cudaStreamNonBlocking) { must(cudaStreamCreateWithFlags(&handle, flags)); }
  Stream(const Stream&) = delete;
  ~Stream() { cudaStreamDestroy(handle); }
  operator cudaStream_t() const { return handle; }
  void wait() const { must(cudaStreamSynchronize(handle)); }
};
struct Event {
  cudaEvent_t handle;
  Event() { must(cudaEventCreateWithFlags(&handle, cudaEventDisableTiming)); }
  Event(const Event&) = delete;
  ~Event() { cudaEventDestroy(handle); }
  void record(cudaStream_t stream) const { must(cudaEventRecord(handle, stream)); }
  void hold(cudaStream_t stream) const { must(cudaStreamWaitEvent(stream, handle, 0)); }
};
struct Pinned {
  float* data;
  Pinned() { must(cudaMallocHost(reinterpret_cast<void**>(&data), kBytes)); }
  explicit Pinned(float value) : Pinned() { fill(value); }
  Pinned(const Pinned&) = delete;
  ~Pinned() { cudaFreeHost(data); }
  void fill(float value) { std::fill(data, data + kCount, value); }
  bool holds(float value) const {
    return std::all_of(data, data + kCount, [=](float v) { return v == value; });
  }
};
using Buffer = DeviceBuffer<float>;

void to_device(const Buffer& to, const Pinned& from, cudaStream_t stream) {
  must(cudaMemcpyAsync(to.data(), from.data, kBytes, cudaMemcpyHostToDevice, stream));
}
void to_host(const Pinned& to, const Buffer& from, cudaStream_t stream) {
  must(cudaMemcpyAsync(to.data, from.data(), kBytes, cudaMemcpyDefault, stream));
}
void run_twice(const Buffer& x, const Buffer& y, cudaStream_t stream) {
  launch({1, kCount, 0, stream}, twice, x.data(), y.data());
}

bool copy_without_event(bool corrected) {
  Pinned in(3), out;
  Buffer x(kCount), y(kCount);
  Stream copies, compute;
  Event copied;
  to_device(x, in, copies);
  copied.record(copies);
  if (corrected) copied.hold(compute);
  run_twice(x, y, compute);
  to_host(out, y, compute);
  compute.wait();
  return out.holds(6);
}

bool event_before_producer(bool corrected) {
  Pinned in(3), out;
  Buffer x(kCount), y(kCount), z(kCount);
  Stream first, second;
  Event produced;
  to_device(x, in, first);
  if (!corrected) produced.record(first);
  run_twice(x, y, first);
  if (corrected) produced.record(first);
  produced.hold(second);
  run_twice(y, z, second);
  to_host(out, z, second);
  second.wait();
  first.wait();
  return out.holds(12);
}

bool wrong_event(bool corrected) {
  Pinned in_a(1), in_b(2), out;
  Buffer a(kCount), b(kCount);
  Stream copy_a, copy_b, compute;
  Event copied_a, copied_b;
  to_device(a, in_a, copy_a);
  copied_a.record(copy_a);
  to_device(b, in_b, copy_b);
  copied_b.record(copy_b);
  copied_a.hold(compute);
  if (corrected)
    copied_b.hold(compute);
  else
    copied_a.hold(compute);
  launch({1, kCount, 0, compute}, accumulate, a.data(), b.data());
  to_host(out, b, compute);
  compute.wait();
  return out.holds(3);
}

// The wait stands before the record, so it is for the record of the round before.
bool wait_before_record(bool corrected) {
  Pinned out;
  Buffer x(kCount);
  Stream producer, consumer;
  Event produced;
  bool right = true;
  for (int round = 0; round < 2; ++round) {
    launch({1, kCount, 0, producer}, set, x.data(), round + 1.f);
    if (!corrected) produced.hold(consumer);
    produced.record(producer);
    if (corrected) produced.hold(consumer);
    to_host(out, x, consumer);
    consumer.wait();
    right &= out.holds(round + 1.f);
  }
  producer.wait();
  return right;
}

bool host_reads_too_early(bool corrected) {
  Pinned in(3), out(0);
  Buffer x(kCount), y(kCount);
  Stream stream;
  to_device(x, in, stream);
  run_twice(x, y, stream);
  to_host(out, y, stream);
  if (corrected) stream.wait();
  const bool right = out.holds(6);
  stream.wait();
  return right;
}

bool staging_reused(bool corrected) {
  Pinned staging, out;
  Buffer x(kCount), sum(kCount);
  Stream stream;
  Event copied;
  must(cudaMemsetAsync(sum.data(), 0, kBytes, stream));
  for (int batch = 1; batch <= 4; ++batch) {
    if (corrected && batch > 1) must(cudaEventSynchronize(copied.handle));
    staging.fill(static_cast<float>(batch));
    to_device(x, staging, stream);
    copied.record(stream);
    launch({1, kCount, 0, stream}, accumulate, x.data(), sum.data());
  }
  to_host(out, sum, stream);
  stream.wait();
  return out.holds(10);
}

// A sum over ranks as a communicator enqueues it: a step on its own stream that works in device memory.
bool gradient_summed_too_early(bool corrected) {
  Pinned in(3), out;
  Buffer x(kCount), gradient(kCount);
  Stream compute, communication;
  Event ready, summed;
  to_device(x, in, compute);
  if (!corrected) ready.record(compute);
  run_twice(x, gradient, compute);
  if (corrected) ready.record(compute);
  ready.hold(communication);
  float* const data = gradient.data();
  emulator::enqueue_steps(
      communication,
      [data] {
        for (int i = 0; i < kCount; ++i) data[i] *= 2.f;
        return true;
      },
      {{data, kBytes, false}, {data, kBytes, true}}, "sum of a gradient");
  summed.record(communication);
  summed.hold(compute);
  to_host(out, gradient, compute);
  compute.wait();
  return out.holds(12);
}

// The optimizer takes the gradient without waiting for its sum.
bool sum_not_waited_for(bool corrected) {
  Pinned in(3), out;
  Buffer gradient(kCount), update(kCount);
  Stream compute, communication;
  Event ready, summed;
  to_device(gradient, in, compute);
  ready.record(compute);
  ready.hold(communication);
  run_twice(gradient, gradient, communication);
  summed.record(communication);
  if (corrected) summed.hold(compute);
  run_twice(gradient, update, compute);
  to_host(out, update, compute);
  compute.wait();
  communication.wait();
  return out.holds(12);
}

bool freed_while_copied(bool corrected) {
  Pinned in(3);
  float* x = nullptr;
  must(cudaMalloc(&x, kBytes));
  Stream stream;
  must(cudaMemcpyAsync(x, in.data, kBytes, cudaMemcpyHostToDevice, stream));
  if (corrected) stream.wait();
  const cudaError_t error = cudaFree(x);
  if (error == cudaSuccess) return true;
  const std::string what = cudaGetErrorString(error);
  stream.wait();
  must(cudaFree(x));
  throw std::runtime_error(what);
}

bool pinned_freed_while_copied(bool corrected) {
  auto out = std::make_unique<Pinned>();
  Buffer x(kCount);
  Stream stream;
  launch({1, kCount, 0, stream}, set, x.data(), 1.f);
  to_host(*out, x, stream);
  if (corrected) stream.wait();
  const cudaError_t error = cudaFreeHost(out->data);
  const std::string what = cudaGetErrorString(error);
  stream.wait();
  if (error == cudaSuccess)
    out->data = nullptr;
  else
    throw std::runtime_error(what);
  return true;
}

// A workspace of one stream given to another one.
bool workspace_shared(bool corrected) {
  Pinned in_a(1), in_b(5), out_a, out_b;
  Buffer a(kCount), b(kCount), workspace(kCount), y_a(kCount), y_b(kCount);
  Stream first, second;
  Event released;
  to_device(a, in_a, first);
  to_device(b, in_b, second);
  run_twice(a, workspace, first);
  run_twice(workspace, y_a, first);
  released.record(first);
  if (corrected) released.hold(second);
  run_twice(b, workspace, second);
  run_twice(workspace, y_b, second);
  to_host(out_a, y_a, first);
  to_host(out_b, y_b, second);
  second.wait();
  first.wait();
  return out_a.holds(4) && out_b.holds(20);
}

bool stream_used_after_destroy(bool corrected) {
  Buffer x(kCount);
  cudaStream_t stream = nullptr;
  must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  must(cudaMemsetAsync(x.data(), 0, kBytes, stream));
  if (corrected) must(cudaMemsetAsync(x.data(), 1, kBytes, stream));
  must(cudaStreamSynchronize(stream));
  must(cudaStreamDestroy(stream));
  if (!corrected) launch({1, kCount, 0, stream}, set, x.data(), 1.f);
  return true;
}

bool event_used_after_destroy(bool corrected) {
  Stream stream;
  cudaEvent_t event = nullptr;
  must(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  must(cudaEventRecord(event, stream));
  if (!corrected) must(cudaEventDestroy(event));
  must(cudaStreamWaitEvent(stream, event, 0));
  if (corrected) must(cudaEventDestroy(event));
  stream.wait();
  return true;
}

// Destroying a stream does not wait for it.
bool destroy_taken_for_wait(bool corrected) {
  Pinned out(0);
  Buffer x(kCount);
  Event done;
  {
    Stream stream;
    launch({1, kCount, 0, stream}, set, x.data(), 7.f);
    to_host(out, x, stream);
    done.record(stream);
  }
  if (corrected) must(cudaEventSynchronize(done.handle));
  const bool right = out.holds(7);
  must(cudaDeviceSynchronize());
  return right;
}

// Batches are copied ahead into slots of device memory; a slot may be filled again when its reader is done.
bool ring(bool corrected) {
  constexpr int kBatches = 6, kSlots = 2;
  std::vector<std::unique_ptr<Pinned>> in;
  for (int batch = 0; batch < kBatches; ++batch) in.push_back(std::make_unique<Pinned>(batch + 1.f));
  Pinned out;
  Buffer slot_a(kCount), slot_b(kCount), sum(kCount);
  const Buffer* slots[kSlots] = {&slot_a, &slot_b};
  Stream copies, compute;
  Event copied[kSlots], read[kBatches];
  must(cudaMemsetAsync(sum.data(), 0, kBytes, compute));
  for (int batch = 0; batch < kBatches; ++batch) {
    const int slot = batch % kSlots;
    const int reader = batch - (corrected ? kSlots : kSlots + 1);  // the bug: as if there were a slot more
    if (reader >= 0) read[reader].hold(copies);
    to_device(*slots[slot], *in[static_cast<size_t>(batch)], copies);
    copied[slot].record(copies);
    copied[slot].hold(compute);
    launch({1, kCount, 0, compute}, accumulate, slots[slot]->data(), sum.data());
    read[batch].record(compute);
  }
  to_host(out, sum, compute);
  compute.wait();
  return out.holds(21);
}

// cudaMemset runs on the default stream, for which a non-blocking stream does not wait.
bool memset_before_non_blocking(bool corrected) {
  Pinned out;
  Buffer sum(kCount), x(std::vector<float>(kCount, 3.f));
  Stream stream(corrected ? cudaStreamDefault : cudaStreamNonBlocking);
  must(cudaMemset(sum.data(), 0, kBytes));
  launch({1, kCount, 0, stream}, accumulate, x.data(), sum.data());
  to_host(out, sum, stream);
  stream.wait();
  must(cudaDeviceSynchronize());
  return out.holds(3);
}

// The host prepares the next step in a host function, on which nothing waits.
bool host_function_not_waited_for(bool corrected) {
  Pinned in(1), out;
  Buffer x(kCount);
  Stream host, compute;
  Event prepared;
  must(cudaLaunchHostFunc(
      host, [](void* p) { std::fill_n(static_cast<float*>(p), kCount, 9.f); }, in.data));
  prepared.record(host);
  if (corrected) prepared.hold(compute);
  to_device(x, in, compute);
  to_host(out, x, compute);
  compute.wait();
  host.wait();
  return out.holds(9);
}

}  // namespace

const std::vector<StreamBug>& stream_bugs() {
  static const std::vector<StreamBug> bugs = {
      {"no event between copy and compute stream", true, copy_without_event},
      {"event recorded before the producer", true, event_before_producer},
      {"wait on the wrong event", true, wrong_event},
      {"wait before the record", true, wait_before_record},
      {"host reads before synchronising", false, host_reads_too_early},
      {"staging buffer reused before its copy ran", false, staging_reused},
      {"gradient summed before its producer", true, gradient_summed_too_early},
      {"sum of the gradient not waited for", true, sum_not_waited_for},
      {"device memory freed while a copy is queued", false, freed_while_copied},
      {"pinned memory freed while a copy is queued", false, pinned_freed_while_copied},
      {"workspace shared by two streams", true, workspace_shared},
      {"stream used after destroy", false, stream_used_after_destroy},
      {"event used after destroy", false, event_used_after_destroy},
      {"destroying a stream taken for a wait", false, destroy_taken_for_wait},
      {"ring of buffers one slot short", true, ring},
      {"memset on the default stream, kernel on a non-blocking one", true, memset_before_non_blocking},
      {"host function not waited for", false, host_function_not_waited_for},
  };
  return bugs;
}

std::vector<std::string> deferred_fault(int& line) {
  Buffer x(kCount);
  Stream stream, other;
  line = __LINE__ + 1;
  launch({1, kCount, 0, stream}, diverge, x.data());
  launch({1, kCount, 0, other}, set, x.data(), 1.f);
  std::vector<std::string> messages;
  const auto note = [&](cudaError_t error) {
    if (error != cudaSuccess) messages.push_back(cudaGetErrorString(error));
  };
  note(cudaStreamSynchronize(stream));
  note(cudaStreamSynchronize(other));
  note(cudaMemset(x.data(), 0, kBytes));
  return messages;
}

}  // namespace convoy::test
