// Files written so that nothing half-written is ever seen, and files read through a memory map.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

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

/// The lines of a text file without their ends (LF or CR LF) and without the mark that editors put before UTF-8. Throws
/// Error as read_text_file does, and for what is no text: UTF-16 or UTF-32, or bytes of zero (naming the line).
std::vector<std::string> read_lines(const std::filesystem::path& path);

/// Whether the bytes are UTF-8, the encoding of names in JSON, configurations and class tables.
bool is_utf8(std::string_view text);

/// The size of a file, and its first and last bytes.
struct FileEnds {
  uint64_t bytes = 0;
  std::string head, tail;  ///< of equal length; a file that is not longer is the whole of both
};

/// At most `limit` bytes of each end; nullopt for what is missing, unreadable or no regular file.
std::optional<FileEnds> read_file_ends(const std::filesystem::path& path, size_t limit);

/// Throws Error where the path is missing or no regular file: to read from a pipe may wait for ever.
void require_regular_file(const std::filesystem::path& path);

/// Replaces the file durably (DurableFile).
void write_text_file(const std::filesystem::path& path, std::string_view text);

/// Makes the entries of a directory durable (fsync).
void sync_directory(const std::filesystem::path& directory);

/// create_directories with an Error that names the path and the system's reason.
void make_directories(const std::filesystem::path& directory);

}  // namespace convoy
