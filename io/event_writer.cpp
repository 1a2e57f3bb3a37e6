#include "io/event_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "engine/error.h"
#include "io/checksum.h"
#include "io/file.h"

namespace convoy {
namespace {

// Protocol buffer wire format: key = field << 3 | type; 0 = varint, 1 = 8 bytes, 2 = length and bytes, 5 = 4 bytes.
void put_raw(std::string& out, const void* value, size_t bytes) {
  out.append(static_cast<const char*>(value), bytes);
}

void put_varint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>(value | 0x80));
  out.push_back(static_cast<char>(value));
}

void put_integer(std::string& out, int field, int64_t value) {
  put_varint(out, static_cast<uint64_t>(field) << 3);
  put_varint(out, static_cast<uint64_t>(value));
}

void put_double(std::string& out, int field, double value) {
  put_varint(out, static_cast<uint64_t>(field) << 3 | 1);
  put_raw(out, &value, 8);
}

void put_float(std::string& out, int field, float value) {
  put_varint(out, static_cast<uint64_t>(field) << 3 | 5);
  put_raw(out, &value, 4);
}

void put_bytes(std::string& out, int field, std::string_view bytes) {
  put_varint(out, static_cast<uint64_t>(field) << 3 | 2);
  put_varint(out, bytes.size());
  out += bytes;
}

double wall_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// Event {1: wall_time, 2: step}
std::string start_event(int64_t step) {
  std::string event;
  put_double(event, 1, wall_time());
  put_integer(event, 2, step);
  return event;
}

}  // namespace

EventWriter::EventWriter(const std::filesystem::path& directory, int64_t first_step) {
  make_directories(directory);
  char host[256] = "host";
  ::gethostname(host, sizeof host - 1);
  const auto seconds = static_cast<int64_t>(wall_time());
  // TensorBoard reads the files of a run in the order of their names, so the time comes first.
  for (int number = 0; descriptor_ < 0; ++number) {
    path_ = directory / fmt::format("events.out.tfevents.{}.{:03d}.{}.{}", seconds, number, host, ::getpid());
    descriptor_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666);
    if (descriptor_ < 0 && errno != EEXIST) fail("{}: cannot be created: {}", path_.string(), std::strerror(errno));
  }
  try {
    std::string version = start_event(0);
    put_bytes(version, 3, "brain.Event:2");  // Event.file_version
    write_record(version);
    if (first_step > 0) {
      std::string session;
      put_integer(session, 1, 1);  // SessionLog.status = START
      std::string event = start_event(first_step);
      put_bytes(event, 7, session);  // Event.session_log
      write_record(event);
    }
  } catch (...) {
    ::close(descriptor_);
    throw;
  }
}

EventWriter::~EventWriter() {
  ::close(descriptor_);
}

void EventWriter::add_scalar(std::string_view tag, double value, int64_t step) {
  std::string summary_value;
  put_bytes(summary_value, 1, tag);                        // Summary.Value.tag
  put_float(summary_value, 2, static_cast<float>(value));  // Summary.Value.simple_value
  std::string summary;
  put_bytes(summary, 1, summary_value);
  std::string event = start_event(step);
  put_bytes(event, 5, summary);  // Event.summary
  write_record(event);
}

void EventWriter::write_record(const std::string& data) {
  static_assert(std::endian::native == std::endian::little);
  std::string record;
  const uint64_t length = data.size();
  const uint32_t length_crc = masked_crc32c(&length, 8);
  const uint32_t data_crc = masked_crc32c(data.data(), data.size());
  put_raw(record, &length, 8);
  put_raw(record, &length_crc, 4);
  record += data;
  put_raw(record, &data_crc, 4);
  ssize_t done;
  do {
    done = ::write(descriptor_, record.data(), record.size());
  } while (done < 0 && errno == EINTR);
  if (done != static_cast<ssize_t>(record.size()))
    fail("{}: {} bytes cannot be appended: {}", path_.string(), record.size(),
         std::strerror(done < 0 ? errno : ENOSPC));
}

}  // namespace convoy
