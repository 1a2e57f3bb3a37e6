// Streams and events of the runtime API: what is put where, and what comes after what.
#include "kernels/emulator/streams.h"

#include <algorithm>
#include <unordered_map>

namespace convoy::emulator {

std::mutex& stream_lock = *new std::mutex;
std::condition_variable& work_done = *new std::condition_variable;

namespace {

struct Event {
  std::shared_ptr<Work> record;  ///< null before the first
};

// Guarded by stream_lock; never destroyed, threads may end after main. Handles are numbers that are never given twice,
// so that the use of a destroyed one is found.
struct Handles {
  std::unordered_map<uintptr_t, std::shared_ptr<Stream>> streams;
  std::unordered_map<uintptr_t, Event> events;
  std::vector<Device*> devices;
  uintptr_t next = 0x1000;
  uint32_t streams_made = 0;
  Clock known;  ///< what hosts have waited for
};
Handles& handles = *new Handles;

thread_local bool inside_host_function = false;

std::shared_ptr<Stream> make_stream(Device& device, bool blocking) {
  auto stream = std::make_shared<Stream>();
  stream->number = handles.streams_made++;
  stream->blocking = blocking;
  stream->device = &device;
  device.streams.push_back(stream);
  return stream;
}

// Null for a handle that is none; the error is noted.
std::shared_ptr<Stream> find_stream(cudaStream_t handle, const char* call) {
  if (!handle) return device_of_this_thread().streams[0];
  const auto it = handles.streams.find(reinterpret_cast<uintptr_t>(handle));
  if (it != handles.streams.end()) return it->second;
  report_error(cudaErrorInvalidResourceHandle, std::string(call) + ": the stream was destroyed or never made");
  return nullptr;
}
Event* find_event(cudaEvent_t handle, const char* call) {
  const auto it = handles.events.find(reinterpret_cast<uintptr_t>(handle));
  if (it != handles.events.end()) return &it->second;
  report_error(cudaErrorInvalidResourceHandle, std::string(call) + ": the event was destroyed or never made");
  return nullptr;
}

cudaError_t fault_of(const Device& device) {
  return device.fault.empty() ? cudaSuccess : report_error(cudaErrorLaunchFailure, device.fault);
}

cudaError_t refuse_in_host_function() {
  return inside_host_function
             ? report_error(cudaErrorNotPermitted, "a host function on a stream calls the CUDA runtime API")
             : cudaSuccess;
}

void comes_after(Work& work, const std::shared_ptr<Work>& earlier) {
  if (!earlier) return;
  if (earlier->state != Work::kDone) work.after.push_back(earlier);
  if (checked()) join(work.clock, earlier->clock);
}

// The order that CUDA gives work by the stream on which it is put.
void append(const std::shared_ptr<Work>& work, const std::shared_ptr<Stream>& stream) {
  Device& device = *stream->device;
  const std::shared_ptr<Stream>& legacy = device.streams[0];
  if (stream == legacy) {
    for (const auto& other : device.streams)
      if (other->blocking && other != legacy) comes_after(*work, other->last);
  } else if (stream->blocking) {
    comes_after(*work, legacy->last);
  }
  work->stream = stream;
  work->position = ++stream->position;
  if (checked()) {
    join(work->clock, stream->clock);
    join(work->clock, handles.known);
    if (work->clock.size() <= stream->number) work->clock.resize(stream->number + 1);
    work->clock[stream->number] = work->position;
    stream->clock = work->clock;
  }
  stream->queue.push_back(work);
  stream->last = work;
  device.waiting_for_others += work->waits_for_others;
  ++device.calls;
}

}  // namespace

void join(Clock& clock, const Clock& other) {
  if (clock.size() < other.size()) clock.resize(other.size());
  for (size_t i = 0; i < other.size(); ++i) clock[i] = std::max(clock[i], other[i]);
}

Device& device_of_this_thread() {
  static thread_local Device* device = nullptr;  // outlives its thread: other threads may hold its streams
  if (!device) {
    device = new Device;
    device->random = options.stream_seed * 0x9e3779b97f4a7c15ull | 1;
    make_stream(*device, true);
    handles.devices.push_back(device);
  }
  return *device;
}

std::string describe(const Work& work) {
  const Device& device = *work.stream->device;
  const std::string stream =
      work.stream == device.streams[0] ? "the default stream" : "stream " + std::to_string(work.stream->number);
  return work.what + " at " + work.file + ":" + std::to_string(work.line) + " on " + stream;
}

cudaError_t enqueue(std::shared_ptr<Work> work, cudaStream_t handle, bool wait) {
  if (refuse_in_host_function() != cudaSuccess) return cudaErrorNotPermitted;
  StreamLock lock(stream_lock);
  const auto stream = find_stream(handle, work->what.c_str());
  if (!stream) return cudaErrorInvalidResourceHandle;
  Device& device = *stream->device;
  if (fault_of(device) != cudaSuccess) return cudaErrorLaunchFailure;
  append(work, stream);
  if (work->waits_for_others) keep_going(device);
  if (wait) {
    wait_for(device, work, lock);
    if (checked()) join(handles.known, work->clock);
  } else {
    run_after_call(device, lock);
  }
  return fault_of(device);
}

void enqueue_grid(const Grid& grid, cudaStream_t stream, void* call, void (*run)(const Grid&, const void*),
                  void (*destroy)(void*)) {
  const std::shared_ptr<void> arguments(call, destroy);
  check_launch(grid);
  auto work = std::make_shared<Work>();
  work->what = "kernel launched";
  work->file = grid.file;
  work->line = grid.line;
  work->step = [grid, run, arguments] {
    run(grid, arguments.get());
    return true;
  };
  const cudaError_t error = enqueue(std::move(work), stream, false);
  if (error == cudaSuccess) return;
  const std::string what = cudaGetErrorString(error);
  if (error == cudaErrorLaunchFailure && options.stream_order == StreamOrder::kImmediate) reset_streams();
  throw Error(what);
}

void enqueue_steps(cudaStream_t stream, std::function<bool()> step, std::vector<Touched> touched, std::string name,
                   const char* file, int line) {
  auto work = std::make_shared<Work>();
  work->what = std::move(name);
  work->file = file;
  work->line = line;
  work->step = std::move(step);
  work->touched = std::move(touched);
  work->waits_for_others = true;
  if (enqueue(std::move(work), stream, false) == cudaSuccess) return;
  throw Error(cudaGetErrorString(cudaGetLastError()));
}

void reset_streams() {
  StreamLock lock(stream_lock);
  Device& device = device_of_this_thread();
  drop_work(device, lock);
  device.fault.clear();
  device.random = options.stream_seed * 0x9e3779b97f4a7c15ull | 1;
  report_error(cudaSuccess, {});
}

std::string user_of(const void* data, size_t bytes) {
  const auto begin = static_cast<const char*>(data);
  const StreamLock lock(stream_lock);
  for (const Device* device : handles.devices)
    for (const auto& stream : device->streams)
      for (const auto& work : stream->queue)
        for (const Touched& touched : work->touched) {
          const auto first = static_cast<const char*>(touched.data);
          if (first < begin + bytes && begin < first + touched.bytes) return describe(*work);
        }
  return {};
}

cudaError_t wait_for_device() {
  if (refuse_in_host_function() != cudaSuccess) return cudaErrorNotPermitted;
  StreamLock lock(stream_lock);
  Device& device = device_of_this_thread();
  wait_for_all(device, lock);
  if (checked())
    for (const auto& stream : device.streams) join(handles.known, stream->clock);
  return fault_of(device);
}

cudaError_t cudaDeviceSynchronize() {
  return wait_for_device();
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data, const char* file, int line) {
  auto work = std::make_shared<Work>();
  work->what = "cudaLaunchHostFunc";
  work->file = file;
  work->line = line;
  work->step = [function, data] {
    inside_host_function = true;
    function(data);
    inside_host_function = false;
    return true;
  };
  return enqueue(std::move(work), stream, false);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  const StreamLock lock(stream_lock);
  const uintptr_t handle = handles.next += 16;
  handles.streams[handle] = make_stream(device_of_this_thread(), !(flags & cudaStreamNonBlocking));
  *stream = reinterpret_cast<cudaStream_t>(handle);
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t handle) {
  if (!handle) return report_error(cudaErrorInvalidResourceHandle, "cudaStreamDestroy of the default stream");
  const StreamLock lock(stream_lock);
  const auto stream = find_stream(handle, "cudaStreamDestroy");
  if (!stream) return cudaErrorInvalidResourceHandle;
  Device& device = *stream->device;
  handles.streams.erase(reinterpret_cast<uintptr_t>(handle));
  stream->destroyed = true;
  if (stream->queue.empty()) std::erase(device.streams, stream);
  return fault_of(device);
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  if (refuse_in_host_function() != cudaSuccess) return cudaErrorNotPermitted;
  StreamLock lock(stream_lock);
  const auto stream = find_stream(handle, "cudaStreamSynchronize");
  if (!stream) return cudaErrorInvalidResourceHandle;
  Device& device = *stream->device;
  if (stream == device.streams[0]) {  // the legacy stream stands for the blocking ones, too
    auto all = std::make_shared<Work>();
    all->what = "cudaStreamSynchronize";
    append(all, stream);
  }
  if (const auto last = stream->last) {
    wait_for(device, last, lock);
    if (checked()) join(handles.known, last->clock);
  }
  return fault_of(device);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t handle, unsigned, const char* file, int line) {
  auto work = std::make_shared<Work>();
  work->what = "cudaStreamWaitEvent";
  work->file = file;
  work->line = line;
  {
    const StreamLock lock(stream_lock);
    const Event* event = find_event(handle, "cudaStreamWaitEvent");
    if (!event) return cudaErrorInvalidResourceHandle;
    comes_after(*work, event->record);
  }
  return enqueue(std::move(work), stream, false);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  const StreamLock lock(stream_lock);
  const uintptr_t handle = handles.next += 16;
  handles.events[handle] = {};
  *event = reinterpret_cast<cudaEvent_t>(handle);
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t handle) {
  const StreamLock lock(stream_lock);
  if (!find_event(handle, "cudaEventDestroy")) return cudaErrorInvalidResourceHandle;
  handles.events.erase(reinterpret_cast<uintptr_t>(handle));
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t handle, cudaStream_t stream, const char* file, int line) {
  auto work = std::make_shared<Work>();
  work->what = "cudaEventRecord";
  work->file = file;
  work->line = line;
  {
    const StreamLock lock(stream_lock);
    if (!find_event(handle, "cudaEventRecord")) return cudaErrorInvalidResourceHandle;
  }
  const cudaError_t error = enqueue(work, stream, false);
  const StreamLock lock(stream_lock);
  Event* event = find_event(handle, "cudaEventRecord");
  if (error == cudaSuccess && event) event->record = work;
  return error;
}

cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
  if (refuse_in_host_function() != cudaSuccess) return cudaErrorNotPermitted;
  StreamLock lock(stream_lock);
  const Event* event = find_event(handle, "cudaEventSynchronize");
  if (!event) return cudaErrorInvalidResourceHandle;
  const auto record = event->record;
  if (!record || !record->stream) return cudaSuccess;
  Device& device = *record->stream->device;
  wait_for(device, record, lock);
  if (checked()) join(handles.known, record->clock);
  return fault_of(device);
}

}  // namespace convoy::emulator
