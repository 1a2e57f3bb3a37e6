// The directory of a zip archive in memory, zip64 included. Entries are stored as they are; compressed ones are
// refused.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace convoy {

struct ZipEntry {
  std::string_view name;  ///< borrowed from the archive
  uint64_t offset = 0;    ///< of its header, from the archive's first byte
  uint64_t bytes = 0, packed_bytes = 0;
  uint32_t crc32 = 0;
  uint16_t method = 0, flags = 0;
};

class ZipDirectory {
 public:
  /// Reads the directory alone. `what` names the file in messages. Throws Error for an archive that is truncated,
  /// inconsistent, in several parts, or has two entries of one name.
  ZipDirectory(std::string_view archive, std::string what);

  static bool is_zip(std::string_view archive) { return archive.starts_with("PK\x03\x04"); }

  const std::vector<ZipEntry>& entries() const { return entries_; }
  const ZipEntry* find(std::string_view name) const;  ///< nullptr when there is none

  /// The bytes of an entry, borrowed from the archive; not yet compared with their checksum. Throws Error where the
  /// entry is compressed or encrypted, or lies outside of the archive.
  std::string_view bytes(const ZipEntry& entry) const;
  /// Reads the entry's bytes and compares them with the checksum; an archive may have been written without (0). Throws
  /// Error where they differ.
  void check(const ZipEntry& entry) const;

 private:
  std::string_view archive_;
  std::string what_;
  std::vector<ZipEntry> entries_;
  std::map<std::string_view, size_t> by_name_;
};

/// CRC-32 of zip archives.
uint32_t zip_crc32(std::string_view bytes);

}  // namespace convoy
