#include "io/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "engine/error.h"
#include "io/checksum.h"

namespace convoy {
namespace fs = std::filesystem;
namespace {

constexpr size_t kChunk = size_t{16} << 20;  // read(2) and write(2) move at most 2 GiB a call

class Descriptor {
 public:
  explicit Descriptor(int value) : value_(value) {}
  ~Descriptor() {
    if (value_ >= 0) ::close(value_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return value_; }

 private:
  int value_;
};

// O_NONBLOCK: opening a FIFO must not hang; it means nothing for a regular file.
int open_regular(const fs::path& path, struct stat& status) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) fail("{}: cannot be opened: {}", path.string(), std::strerror(errno));
  if (::fstat(descriptor, &status) != 0 || !S_ISREG(status.st_mode)) {
    ::close(descriptor);
    fail("{}: is not a regular file", path.string());
  }
  return descriptor;
}

}  // namespace

DurableFile::DurableFile(fs::path path, uint64_t expected_bytes)
    : path_(std::move(path)), temporary_(path_), expected_bytes_(expected_bytes) {
  // The rename would put a file in the place of a device such as /dev/full.
  std::error_code none;
  const fs::file_status there = fs::status(path_, none);
  if (fs::exists(there) && !fs::is_regular_file(there))
    fail("{}: is no regular file, and will not be replaced by one", path_.string());
  temporary_ += ".tmp";
  descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (descriptor_ < 0) fail_write("cannot be created", errno);
}

DurableFile::~DurableFile() {
  if (descriptor_ < 0) return;
  ::close(descriptor_);
  ::unlink(temporary_.c_str());
}

void DurableFile::fail_write(const char* what, int error) const {
  std::string room;
  if (expected_bytes_ > 0) room = fmt::format("; the file needs {} bytes", expected_bytes_);
  if (bytes_ > 0) room += fmt::format(", {} were written", bytes_);
  if (error == ENOSPC || error == EDQUOT) room += "; free space there or choose another place, then try again";
  fail("{}: {}: {}{}", path_.string(), what, std::strerror(error), room);
}

void DurableFile::write(const void* data, size_t bytes) {
  const auto* p = static_cast<const std::byte*>(data);
  while (bytes > 0) {
    const ssize_t done = ::write(descriptor_, p, std::min(bytes, kChunk));
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) fail_write("cannot be written", errno);
    crc_ = convoy::crc64(p, static_cast<size_t>(done), crc_);
    bytes_ += static_cast<uint64_t>(done);
    p += done;
    bytes -= static_cast<size_t>(done);
  }
}

void DurableFile::commit() {
  if (::fsync(descriptor_) != 0) fail_write("cannot be written to the disk", errno);
  const int descriptor = std::exchange(descriptor_, -1);
  if (::close(descriptor) != 0 || ::rename(temporary_.c_str(), path_.c_str()) != 0) {
    const int error = errno;
    ::unlink(temporary_.c_str());
    fail_write("cannot be put in place", error);
  }
  sync_directory(path_.has_parent_path() ? path_.parent_path() : fs::path("."));
}

MappedFile::MappedFile(const fs::path& path) {
  struct stat status;
  const Descriptor file(open_regular(path, status));
  if (status.st_size == 0) return;  // an empty range cannot be mapped
  void* address = ::mmap(nullptr, static_cast<size_t>(status.st_size), PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (address == MAP_FAILED) fail("{}: cannot be mapped: {}", path.string(), std::strerror(errno));
  data_ = static_cast<std::byte*>(address);
  size_ = static_cast<uint64_t>(status.st_size);
}

MappedFile::~MappedFile() {
  if (data_) ::munmap(data_, size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

std::string read_text_file(const fs::path& path, uint64_t limit) {
  struct stat status;
  const Descriptor file(open_regular(path, status));
  std::string text;
  std::string block(std::min<uint64_t>(static_cast<uint64_t>(status.st_size) + 1, kChunk), '\0');
  while (true) {
    const ssize_t got = ::read(file.get(), block.data(), block.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail("{}: cannot be read: {}", path.string(), std::strerror(errno));
    if (got == 0) return text;
    text.append(block.data(), static_cast<size_t>(got));
    if (text.size() > limit)
      fail("{}: is larger than {} bytes, too large for a file of its kind", path.string(), limit);
  }
}

void write_text_file(const fs::path& path, std::string_view text) {
  DurableFile file(path, text.size());
  file.write(text);
  file.commit();
}

void sync_directory(const fs::path& directory) {
  const Descriptor opened(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (opened.get() < 0 || ::fsync(opened.get()) != 0) {
    // Some network file systems have no fsync for directories: nothing more can be done there.
    if (opened.get() >= 0 && (errno == EINVAL || errno == ENOTSUP)) return;
    fail("{}: cannot be written to the disk: {}", directory.string(), std::strerror(errno));
  }
}

void make_directories(const fs::path& directory) {
  std::error_code error;
  fs::create_directories(directory, error);
  if (error) fail("{}: the directory cannot be created: {}", directory.string(), error.message());
}

}  // namespace convoy
