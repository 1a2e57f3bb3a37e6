#include "engine/device.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string_view>

#include "engine/context.h"
#include "engine/error.h"
#include "kernels/emulator/emulator.h"

namespace convoy {

namespace {

constexpr size_t kMostStaged = size_t{16} << 20;  // larger copies go in pieces

/// In what order the emulator runs what streams and events leave open: as late as can be, or as
/// CONVOY_EMULATED_STREAMS says.
void choose_stream_order() {
  using emulator::StreamOrder;
  const char* wanted = std::getenv("CONVOY_EMULATED_STREAMS");
  const std::string text = wanted ? wanted : "lazy";
  emulator::Options& options = emulator::options;
  if (text == "immediate" || text == "lazy" || text == "others-first") {
    options.stream_order = text == "immediate" ? StreamOrder::kImmediate
                           : text == "lazy"    ? StreamOrder::kLazy
                                               : StreamOrder::kOthersFirst;
    return;
  }
  const std::string_view seed = std::string_view(text).substr(std::min<size_t>(text.size(), 7));
  const auto [end, error] = std::from_chars(seed.data(), seed.data() + seed.size(), options.stream_seed);
  CONVOY_CHECK(text.starts_with("random:") && error == std::errc() && end == seed.data() + seed.size(),
               "CONVOY_EMULATED_STREAMS is immediate, lazy, others-first or random:SEED, not '{}'", text);
  options.stream_order = StreamOrder::kRandom;
}

DeviceRuntime& runtime_of(DeviceKind kind) {
  CONVOY_CHECK(kind == DeviceKind::kEmulated, "device '{}' is not part of this build; use cpu or emulated",
               device_name(kind));
  static std::once_flag once;
  std::call_once(once, choose_stream_order);
  return emulated::device_runtime();
}

/// Bytes from the first to behind the last element, pad lanes included.
size_t extent_bytes(const View& v) {
  const int64_t lanes = v.blocks() * v.block;
  const int64_t last_image = v.layout == Layout::kNhwc ? (v.pixels() - 1) * v.pitch + lanes : lanes * v.pixels();
  return static_cast<size_t>((v.n - 1) * v.image_stride() + last_image) * dtype_size(v.dtype);
}

}  // namespace

Device::Device(DeviceKind kind)
    : runtime_(runtime_of(kind)),
      compute_(runtime_.create_stream()),
      copies_(runtime_.create_stream()),
      memory_(Allocator::create({.name = std::string("memory of device ") + device_name(kind),
                                 .allocate = [&runtime = runtime_](size_t bytes) { return runtime.allocate(bytes); },
                                 .free = [&runtime = runtime_](void* data) { runtime.free(data); }})) {}

Device::~Device() {
  runtime_.destroy_stream(copies_);
  runtime_.destroy_stream(compute_);
  if (staging_) runtime_.free_pinned(staging_);
}

void Device::reserve_staging(size_t bytes) {
  bytes = std::min(bytes, kMostStaged);
  if (staging_bytes_ >= bytes) return;
  if (staging_) runtime_.free_pinned(staging_);
  staging_ = runtime_.allocate_pinned(bytes);
  staging_bytes_ = staging_ ? bytes : 0;
  CONVOY_CHECK(staging_, "out of pinned host memory: {} bytes were asked for", bytes);
}

void Device::upload(void* to, const void* from, size_t bytes) {
  reserve_staging(bytes);
  for (size_t done = 0; done < bytes;) {
    const size_t part = std::min(bytes - done, staging_bytes_);
    std::memcpy(staging_, static_cast<const char*>(from) + done, part);
    runtime_.copy(static_cast<char*>(to) + done, staging_, part, compute_);
    runtime_.synchronize(compute_);
    done += part;
  }
}

void Device::download(void* to, const void* from, size_t bytes) {
  reserve_staging(bytes);
  for (size_t done = 0; done < bytes;) {
    const size_t part = std::min(bytes - done, staging_bytes_);
    runtime_.copy(staging_, static_cast<const char*>(from) + done, part, compute_);
    runtime_.synchronize(compute_);
    std::memcpy(static_cast<char*>(to) + done, staging_, part);
    done += part;
  }
}

HostCopy Device::download(const View& view) {
  HostCopy copy{.bytes = std::vector<char>(view.count() ? extent_bytes(view) : 0), .view = view};
  copy.view.data = copy.bytes.data();
  download(copy.bytes.data(), view.data, copy.bytes.size());
  return copy;
}

void Device::synchronize() {
  runtime_.synchronize(copies_);
  runtime_.synchronize(compute_);
}

}  // namespace convoy
