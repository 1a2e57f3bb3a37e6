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

// The length of the UTF-8 character that `text` begins with; 0 where it begins with none.
size_t utf8_length(std::string_view text) {
  const auto byte = [&](size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
  const unsigned first = byte(0), second = byte(1);
  if (first < 0x80) return 1;
  const size_t length = first < 0xC2 ? 0 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : first < 0xF5 ? 4 : 0;
  for (size_t i = 1; i < length; ++i)
    if ((byte(i) & 0xC0) != 0x80) return 0;
  // Longer than need be, a half of a pair of UTF-16, or beyond the last character.
  if ((first == 0xE0 && second < 0xA0) || (first == 0xED && second > 0x9F) || (first == 0xF0 && second < 0x90) ||
      (first == 0xF4 && second > 0x8F))
    return 0;
  return length;
}

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

std::vector<std::string> read_lines(const fs::path& path) {
  const std::string text = read_text_file(path);
  std::string_view rest = text;
  for (const std::string_view mark : {"\xFF\xFE", "\xFE\xFF"})
    CONVOY_CHECK(!rest.starts_with(mark), "{}: is written in UTF-16 or UTF-32; save it as UTF-8", path.string());
  if (rest.starts_with("\xEF\xBB\xBF")) rest.remove_prefix(3);
  std::vector<std::string> lines;
  while (!rest.empty()) {
    const size_t end = rest.find('\n');
    std::string_view line = rest.substr(0, end);
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
    if (line.ends_with('\r')) line.remove_suffix(1);
    CONVOY_CHECK(line.find('\0') == std::string_view::npos, "{}:{}: holds bytes of zero; is it a text file in UTF-8?",
                 path.string(), lines.size() + 1);
    lines.emplace_back(line);
  }
  return lines;
}

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const size_t length = utf8_length(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

std::optional<FileEnds> read_file_ends(const fs::path& path, size_t limit) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) return std::nullopt;
  const Descriptor file(descriptor);
  struct stat status;
  if (::fstat(descriptor, &status) != 0 || !S_ISREG(status.st_mode)) return std::nullopt;
  const auto bytes = static_cast<uint64_t>(status.st_size), kept = std::min<uint64_t>(bytes, limit);
  FileEnds ends{bytes, std::string(kept, '\0'), std::string(kept, '\0')};
  const auto read_at = [&](std::string& part, uint64_t start) {
    return ::pread(descriptor, part.data(), part.size(), static_cast<off_t>(start)) ==
           static_cast<ssize_t>(part.size());
  };
  if (!read_at(ends.head, 0) || !read_at(ends.tail, bytes - kept)) return std::nullopt;
  return ends;
}

void require_regular_file(const fs::path& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status)) fail("{}: cannot be opened: {}", path.string(), error.message());
  if (!fs::is_regular_file(status)) fail("{}: is not a regular file", path.string());
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
