// Streams as queues of work, shared by runtime.cpp, streams.cpp and stream_order.cpp.
//
// Work runs when it stands first in its stream and all of `after` is done. Everything that CUDA orders is in these two:
// a wait is work that comes after an event's record, the default stream's semantics are entries of `after`.
#pragma once
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>

#include "kernels/emulator/state.h"

namespace convoy::emulator {

struct Stream;
/// Per stream number: how much of that stream comes before. Kept in the checked flavour only.
using Clock = std::vector<uint32_t>;
void join(Clock& clock, const Clock& other);

struct Work {
  std::string what;  ///< "kernel launched", "cudaMemcpyAsync of 64 bytes"
  const char* file = "";
  int line = 0;
  std::function<bool()> step;  ///< true when done; empty for records and waits
  std::vector<Touched> touched;
  bool waits_for_others = false;  ///< step may return false
  std::shared_ptr<Stream> stream;
  std::vector<std::shared_ptr<Work>> after;
  uint32_t position = 0;  ///< in its stream, from 1 on
  Clock clock;
  enum { kQueued, kRunning, kDone } state = kQueued;
  uint64_t tried = 0;  ///< the device's round in which step returned false
};

/// The streams of one OS thread, which is one device.
struct Device {
  std::vector<std::shared_ptr<Stream>> streams;  ///< the default stream first; destroyed ones until they are empty
  std::string fault;                             ///< of queued work: every call reports it
  uint64_t random = 0;
  uint64_t round = 1;             ///< work that waits for others is tried once a round
  size_t waiting_for_others = 0;  ///< queued work of that kind
  uint64_t calls = 0;             ///< changes when the thread works with its streams
};

struct Stream {
  uint32_t number = 0;  ///< in the process; messages name it
  bool blocking = true, destroyed = false;
  Device* device = nullptr;
  std::deque<std::shared_ptr<Work>> queue;
  std::shared_ptr<Work> last;
  uint32_t position = 0;
  Clock clock;
};

/// Guards all of the above; work runs outside of it.
extern std::mutex& stream_lock;
using StreamLock = std::unique_lock<std::mutex>;
/// Notified when work has ended.
extern std::condition_variable& work_done;

Device& device_of_this_thread();
std::string describe(const Work& work);

// stream_order.cpp
/// What the stream order wants to run right after a call that enqueued something.
void run_after_call(Device& device, StreamLock& lock);
/// Until `target` is done.
void wait_for(Device& device, const std::shared_ptr<Work>& target, StreamLock& lock);
/// Until all of the device's streams are empty.
void wait_for_all(Device& device, StreamLock& lock);
/// Takes care that the device's work that waits for others goes on when its thread does not come. With stream_lock
/// held.
void keep_going(Device& device);
/// Removes all that is queued; what runs just now is waited for.
void drop_work(Device& device, StreamLock& lock);

// streams.cpp
/// Puts work on a stream. Waits for it if `wait`.
cudaError_t enqueue(std::shared_ptr<Work> work, cudaStream_t stream, bool wait);
cudaError_t wait_for_device();
/// The work of any stream that is not done and is known to touch [data, data + bytes); empty if there is none.
std::string user_of(const void* data, size_t bytes);

// runtime.cpp
/// Notes the error for cudaGetLastError and cudaGetErrorString and returns it.
cudaError_t report_error(cudaError_t error, const std::string& what);

// The checker: weak and empty in grid.cpp, defined in check.cpp.
/// All accesses up to the next call belong to this work.
void check_work_begin(const Work& work);
/// An access of a copy, memset or host function.
void check_host_access(const Touched& touched);

}  // namespace convoy::emulator
