// The runtime API's memory: device and pinned memory are malloc's, copies find out what lies where.
#include <cstdlib>
#include <cstring>
#include <map>

#include "kernels/emulator/streams.h"

namespace convoy::emulator {
namespace {

enum class Kind { kPageable, kPinned, kDevice };

struct Allocation {
  void* raw;
  size_t bytes;
  Kind kind;
};
/// Never destroyed: threads may end after main.
std::map<const char*, Allocation>& live = *new std::map<const char*, Allocation>;
std::mutex& live_lock = *new std::mutex;

thread_local cudaError_t last_error = cudaSuccess;
thread_local std::map<cudaError_t, std::string> texts;

// Unmapped is not possible for malloc's memory, so allocations lie apart: a small overrun hits no neighbour, and the
// checker can name it.
void* allocate(size_t bytes, void** raw) {
#if defined(__SANITIZE_ADDRESS__)
  return posix_memalign(raw, 256, bytes) ? nullptr : *raw;  // the exact size, for AddressSanitizer's redzone
#else
  constexpr size_t kPage = 4096;
  *raw = aligned_alloc(kPage, ((bytes + kPage - 1) & ~(kPage - 1)) + 2 * kPage);
  return *raw ? static_cast<char*>(*raw) + kPage : nullptr;
#endif
}

cudaError_t allocate(void** p, size_t bytes, Kind kind) {
  void* raw = nullptr;
  *p = nullptr;
  if (bytes == 0) return cudaSuccess;
  void* data = allocate(bytes, &raw);
  if (!data) return report_error(cudaErrorMemoryAllocation, "out of memory: " + std::to_string(bytes) + " bytes");
  std::memset(data, 0xff, bytes);
  if (kind == Kind::kDevice) {
    const std::lock_guard turn(check_lock);
    check_range(data, bytes, true, false);
  }
  const std::lock_guard lock(live_lock);
  live[static_cast<const char*>(data)] = {raw, bytes, kind};
  *p = data;
  return cudaSuccess;
}

cudaError_t release(void* p, Kind kind, const char* call) {
  if (!p) return cudaSuccess;
  size_t bytes = 0;
  {
    const std::lock_guard lock(live_lock);
    const auto it = live.find(static_cast<const char*>(p));
    if (it == live.end() || it->second.kind != kind)
      return report_error(cudaErrorInvalidValue, std::string(call) + ": not the start of such memory, or freed twice");
    bytes = it->second.bytes;
  }
  const std::string user = user_of(p, bytes);
  if (!user.empty())
    return report_error(cudaErrorInvalidValue, std::string(call) + ": memory of " + std::to_string(bytes) +
                                                   " bytes is still to be touched by the " + user +
                                                   "; wait for that stream first");
  const cudaError_t fault = wait_for_device();
  if (kind == Kind::kDevice) {
    const std::lock_guard turn(check_lock);
    check_range(p, bytes, false, false);
  }
  const std::lock_guard lock(live_lock);
  const auto it = live.find(static_cast<const char*>(p));
  std::free(it->second.raw);
  live.erase(it);
  return fault;
}

struct Place {
  Kind kind;
  size_t left;  ///< bytes to the end of the allocation; no limit is known for pageable memory
};
Place place_of(const void* p) {
  const auto c = static_cast<const char*>(p);
  const std::lock_guard lock(live_lock);
  auto it = live.upper_bound(c);
  if (it == live.begin()) return {Kind::kPageable, SIZE_MAX};
  --it;
  const size_t offset = static_cast<size_t>(c - it->first);
  if (offset >= it->second.bytes) return {Kind::kPageable, SIZE_MAX};
  return {it->second.kind, it->second.bytes - offset};
}

cudaError_t copy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream, bool wait,
                 const char* call, const char* file, int line) {
  const std::string fault =
      std::string(call) + " of " + std::to_string(bytes) + " bytes at " + file + ":" + std::to_string(line);
  if (bytes == 0) return cudaSuccess;
  const Place target = place_of(to), source = place_of(from);
  const bool to_device = target.kind == Kind::kDevice, from_device = source.kind == Kind::kDevice;
  if (kind != cudaMemcpyDefault &&
      (to_device != (kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice) ||
       from_device != (kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice)))
    return report_error(cudaErrorInvalidValue, fault + ": it goes from " + (from_device ? "device" : "host") + " to " +
                                                   (to_device ? "device" : "host") + ", which its kind denies");
  if (bytes > target.left || bytes > source.left)
    return report_error(cudaErrorInvalidValue,
                        fault + (bytes > target.left ? ": it runs past the end of the memory that it writes"
                                                     : ": it runs past the end of the memory that it reads"));
  auto work = std::make_shared<Work>();
  work->what = std::string(call) + " of " + std::to_string(bytes) + " bytes";
  work->file = file;
  work->line = line;
  if (to_device || target.kind == Kind::kPinned) work->touched.push_back({to, bytes, true});
  if (!wait && to_device && source.kind == Kind::kPageable) {
    const auto begin = static_cast<const char*>(from);
    work->step = [to, staged = std::vector<char>(begin, begin + bytes)] {
      std::memcpy(to, staged.data(), staged.size());
      return true;
    };
  } else {
    if (source.kind != Kind::kPageable) work->touched.push_back({from, bytes, false});
    work->step = [to, from, bytes] {
      std::memmove(to, from, bytes);
      return true;
    };
  }
  return enqueue(std::move(work), stream, wait || target.kind == Kind::kPageable || !(to_device || from_device));
}

cudaError_t fill(void* p, int value, size_t bytes, cudaStream_t stream, const char* call, const char* file, int line) {
  if (bytes == 0) return cudaSuccess;
  const Place target = place_of(p);
  if (target.kind == Kind::kPageable || bytes > target.left)
    return report_error(cudaErrorInvalidValue,
                        std::string(call) + " of " + std::to_string(bytes) + " bytes at " + file + ":" +
                            std::to_string(line) +
                            (target.kind == Kind::kPageable ? ": not memory of the device" : ": it runs past the end"));
  auto work = std::make_shared<Work>();
  work->what = std::string(call) + " of " + std::to_string(bytes) + " bytes";
  work->file = file;
  work->line = line;
  work->touched.push_back({p, bytes, true});
  work->step = [p, value, bytes] {
    std::memset(p, value, bytes);
    return true;
  };
  return enqueue(std::move(work), stream, false);
}

}  // namespace

cudaError_t report_error(cudaError_t error, const std::string& what) {
  texts[error] = what;
  return last_error = error;
}

cudaError_t cudaMalloc(void** p, size_t bytes) {
  return allocate(p, bytes, Kind::kDevice);
}
cudaError_t cudaFree(void* p) {
  return release(p, Kind::kDevice, "cudaFree");
}
cudaError_t cudaMallocHost(void** p, size_t bytes) {
  return allocate(p, bytes ? bytes : 1, Kind::kPinned);
}
cudaError_t cudaFreeHost(void* p) {
  return release(p, Kind::kPinned, "cudaFreeHost");
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, const char* file, int line) {
  return copy(to, from, bytes, kind, nullptr, true, "cudaMemcpy", file, line);
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream,
                            const char* file, int line) {
  return copy(to, from, bytes, kind, stream, false, "cudaMemcpyAsync", file, line);
}
cudaError_t cudaMemset(void* p, int value, size_t bytes, const char* file, int line) {
  return fill(p, value, bytes, nullptr, "cudaMemset", file, line);
}
cudaError_t cudaMemsetAsync(void* p, int value, size_t bytes, cudaStream_t stream, const char* file, int line) {
  return fill(p, value, bytes, stream, "cudaMemsetAsync", file, line);
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  return device == 0 ? cudaSuccess : report_error(cudaErrorInvalidValue, "cudaSetDevice: the emulator has device 0");
}
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}

cudaError_t cudaGetLastError() {
  const cudaError_t error = last_error;
  if (error != cudaErrorLaunchFailure) last_error = cudaSuccess;
  return error;
}
const char* cudaGetErrorString(cudaError_t error) {
  if (error == cudaSuccess) return "no error";
  const auto it = texts.find(error);
  return it == texts.end() ? "error of another thread" : it->second.c_str();
}

}  // namespace convoy::emulator
