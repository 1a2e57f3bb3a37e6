// Files written so that nothing half-written is ever seen, and files read through a memory map.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace convoy {

/// Writes one file durably: bytes go to `path`.tmp; commit() syncs it, renames it to `path` and syncs the directory.
/// Without commit() (an exception on the way) the .tmp is removed. What is there and no regular file is an Error. Every
/// failure is an Error that names the path, the system's reason and how many bytes were to be written.
class DurableFile {
 public:
  /// `expected_bytes`: the size the file will have, for the error message; 0 when unknown.
  explicit DurableFile(std::filesystem::path path, uint64_t expected_bytes = 0);
  ~DurableFile();
  DurableFile(const DurableFile&) = delete;
  DurableFile& operator=(const DurableFile&) = delete;

  void write(const void* data, size_t bytes);
  void write(std::string_view text) { write(text.data(), text.size()); }
  void commit();

  uint64_t bytes() const { return bytes_; }  ///< written so far
  uint64_t crc64() const { return crc_; }    ///< of the bytes written so far

 private:
  [[noreturn]] void fail_write(const char* what, int error) const;

  std::filesystem::path path_, temporary_;
  uint64_t expected_bytes_;
  int descriptor_ = -1;
  uint64_t bytes_ = 0, crc_ = 0;
};

/// A regular file mapped read-only. The file must not be shortened by others while it is mapped.
class MappedFile {
 public:
  /// Throws Error when the path is missing, unreadable or not a regular file.
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  const std::byte* data() const { return data_; }
  uint64_t size() const { return size_; }

 private:
  std::byte* data_ = nullptr;
  uint64_t size_ = 0;
};

/// The whole file as a string. Throws Error when it is unreadable or larger than `limit` bytes.
std::string read_text_file(const std::filesystem::path& path, uint64_t limit = 64u << 20);

/// Replaces the file durably (DurableFile).
void write_text_file(const std::filesystem::path& path, std::string_view text);

/// Makes the entries of a directory durable (fsync).
void sync_directory(const std::filesystem::path& directory);

/// create_directories with an Error that names the path and the system's reason.
void make_directories(const std::filesystem::path& directory);

}  // namespace convoy
