#include "io/zip.h"

#include <zlib.h>

#include <algorithm>
#include <cstring>

#include "engine/error.h"

namespace convoy {
namespace {

constexpr size_t kEndBytes = 22, kEnd64Bytes = 56, kLocatorBytes = 20, kEntryBytes = 46, kLocalBytes = 30;
constexpr size_t kMaxComment = 65535;

template <class T>
T read(std::string_view bytes, uint64_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof(T));
  return value;
}

bool has_signature(std::string_view bytes, uint64_t at, std::string_view signature) {
  return at <= bytes.size() && bytes.substr(at).starts_with(signature);
}

struct End {
  uint64_t entries = 0, bytes = 0, offset = 0;  ///< of the directory
};

/// The record at the archive's end that says where the directory is.
End find_end(std::string_view archive, const std::string& what) {
  const size_t size = archive.size();
  const size_t lowest = size > kEndBytes + kMaxComment ? size - kEndBytes - kMaxComment : 0;
  size_t at = size < kEndBytes ? 0 : size - kEndBytes + 1;
  do {
    if (at <= lowest) fail("{}: truncated: the archive's directory at the end of its {} bytes is missing", what, size);
    --at;
  } while (!has_signature(archive, at, "PK\x05\x06"));

  End end{read<uint16_t>(archive, at + 10), read<uint32_t>(archive, at + 12), read<uint32_t>(archive, at + 16)};
  uint32_t disk = read<uint16_t>(archive, at + 4);
  if (at >= kLocatorBytes && has_signature(archive, at - kLocatorBytes, "PK\x06\x07")) {
    const auto end64 = read<uint64_t>(archive, at - kLocatorBytes + 8);
    CONVOY_CHECK(size >= kEnd64Bytes && end64 <= size - kEnd64Bytes && has_signature(archive, end64, "PK\x06\x06"),
                 "{}: damaged: byte {}: the zip64 record is not at byte {}", what, at - kLocatorBytes, end64);
    disk = read<uint32_t>(archive, end64 + 16);
    end = {read<uint64_t>(archive, end64 + 32), read<uint64_t>(archive, end64 + 40),
           read<uint64_t>(archive, end64 + 48)};
  }
  CONVOY_CHECK(disk == 0, "{}: byte {}: an archive in several parts is not read", what, at);
  CONVOY_CHECK(end.offset <= size && end.bytes <= size - end.offset,
               "{}: damaged: byte {}: the directory is to be bytes {} to {}, the file has {}", what, at, end.offset,
               end.offset + end.bytes, size);
  CONVOY_CHECK(end.entries <= end.bytes / kEntryBytes,
               "{}: damaged: byte {}: {} entries do not fit into a directory of {} bytes", what, at, end.entries,
               end.bytes);
  return end;
}

/// Sizes and offset that do not fit 32 bits are in an extra field.
void read_zip64(ZipEntry& entry, std::string_view extra, bool bytes, bool packed, bool offset) {
  while (extra.size() >= 4) {
    const auto id = read<uint16_t>(extra, 0), length = read<uint16_t>(extra, 2);
    if (length > extra.size() - 4) return;
    std::string_view field = extra.substr(4, length);
    extra.remove_prefix(4 + size_t{length});
    if (id != 1) continue;
    const auto next = [&](bool wanted, uint64_t& value) {
      if (!wanted || field.size() < 8) return;
      value = read<uint64_t>(field, 0);
      field.remove_prefix(8);
    };
    next(bytes, entry.bytes);
    next(packed, entry.packed_bytes);
    next(offset, entry.offset);
    return;
  }
}

}  // namespace

ZipDirectory::ZipDirectory(std::string_view archive, std::string what) : archive_(archive), what_(std::move(what)) {
  const End end = find_end(archive_, what_);
  uint64_t at = end.offset;
  const uint64_t stop = end.offset + end.bytes;
  entries_.reserve(end.entries);
  for (uint64_t i = 0; i < end.entries; ++i) {
    CONVOY_CHECK(stop - at >= kEntryBytes && has_signature(archive_, at, "PK\x01\x02"),
                 "{}: damaged: byte {}: entry {} of the archive's directory is malformed", what_, at, i + 1);
    const size_t name = read<uint16_t>(archive_, at + 28), extra = read<uint16_t>(archive_, at + 30),
                 comment = read<uint16_t>(archive_, at + 32);
    CONVOY_CHECK(name + extra + comment <= stop - at - kEntryBytes,
                 "{}: damaged: byte {}: entry {} runs beyond the archive's directory", what_, at, i + 1);
    ZipEntry entry{.name = archive_.substr(at + kEntryBytes, name),
                   .offset = read<uint32_t>(archive_, at + 42),
                   .bytes = read<uint32_t>(archive_, at + 24),
                   .packed_bytes = read<uint32_t>(archive_, at + 20),
                   .crc32 = read<uint32_t>(archive_, at + 16),
                   .method = read<uint16_t>(archive_, at + 10),
                   .flags = read<uint16_t>(archive_, at + 8)};
    read_zip64(entry, archive_.substr(at + kEntryBytes + name, extra), entry.bytes == UINT32_MAX,
               entry.packed_bytes == UINT32_MAX, entry.offset == UINT32_MAX);
    CONVOY_CHECK(by_name_.emplace(entry.name, entries_.size()).second,
                 "{}: damaged: byte {}: two entries have the name \"{}\"", what_, at, entry.name.substr(0, 120));
    entries_.push_back(entry);
    at += kEntryBytes + name + extra + comment;
  }
}

const ZipEntry* ZipDirectory::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &entries_[found->second];
}

std::string_view ZipDirectory::bytes(const ZipEntry& entry) const {
  const std::string name(entry.name.substr(0, 120));
  CONVOY_CHECK((entry.flags & 1) == 0, "{}: \"{}\" is encrypted", what_, name);
  CONVOY_CHECK(entry.method == 0,
               "{}: \"{}\" is compressed (method {}); torch.save does not compress: unpack the archive and store it "
               "again (zip -0 -r)",
               what_, name, entry.method);
  CONVOY_CHECK(entry.bytes == entry.packed_bytes, "{}: damaged: \"{}\" is stored with {} bytes and has {}", what_, name,
               entry.packed_bytes, entry.bytes);
  const uint64_t size = archive_.size();
  CONVOY_CHECK(
      size >= kLocalBytes && entry.offset <= size - kLocalBytes && has_signature(archive_, entry.offset, "PK\x03\x04"),
      "{}: damaged: byte {}: \"{}\" does not begin there", what_, entry.offset, name);
  const uint64_t header =
      kLocalBytes + uint64_t{read<uint16_t>(archive_, entry.offset + 26)} + read<uint16_t>(archive_, entry.offset + 28);
  CONVOY_CHECK(header <= size - entry.offset && entry.bytes <= size - entry.offset - header,
               "{}: truncated or damaged: byte {}: \"{}\" has {} bytes, the file ends before", what_, entry.offset,
               name, entry.bytes);
  return archive_.substr(entry.offset + header, entry.bytes);
}

void ZipDirectory::check(const ZipEntry& entry) const {
  const std::string_view content = bytes(entry);
  CONVOY_CHECK(entry.crc32 == 0 || zip_crc32(content) == entry.crc32,
               "{}: damaged: byte {}: the {} bytes of \"{}\" differ from their checksum", what_,
               content.data() - archive_.data(), content.size(), entry.name.substr(0, 120));
}

uint32_t zip_crc32(std::string_view bytes) {
  uLong crc = ::crc32(0, nullptr, 0);
  constexpr size_t kBlock = size_t{1} << 30;
  for (size_t at = 0; at < bytes.size(); at += kBlock) {
    const size_t count = std::min(kBlock, bytes.size() - at);
    crc = ::crc32(crc, reinterpret_cast<const Bytef*>(bytes.data() + at), static_cast<uInt>(count));
  }
  return static_cast<uint32_t>(crc);
}

}  // namespace convoy
