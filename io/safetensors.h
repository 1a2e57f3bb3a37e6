// The .safetensors file format: u64 header length, JSON header {name: {dtype, shape, data_offsets}}, raw little-endian
// values without gaps. https://github.com/huggingface/safetensors#format
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "io/element_type.h"
#include "io/file.h"

namespace convoy {

/// A dense row-major array with a name. Its values are `owned`, or they are someone else's memory at `data`.
struct NamedTensor {
  std::string name;
  ElementType dtype = ElementType::kF32;
  std::vector<int64_t> shape;  ///< empty for a scalar
  const void* data = nullptr;  ///< borrowed values, read only where `owned` is empty
  std::vector<std::byte> owned;

  int64_t count() const;  ///< elements
  size_t bytes() const { return static_cast<size_t>(count()) * element_size(dtype); }
  const void* values() const { return owned.empty() ? data : owned.data(); }
};

/// A copy that owns its values.
NamedTensor copy_tensor(const NamedTensor& tensor);

using SafetensorsMetadata = std::map<std::string, std::string>;

struct FileChecksum {
  uint64_t bytes = 0;
  uint64_t crc64 = 0;
};

/// Bytes that write_safetensors would write.
uint64_t safetensors_size(const std::vector<NamedTensor>& tensors, const SafetensorsMetadata& metadata = {});

/// Writes the tensors durably (nothing half-written is left behind). The values start 8-aligned and are ordered by
/// element size, so that every tensor is aligned for its type. Returns the size and checksum of the file.
/// Throws Error on duplicate or reserved names, names that are not UTF-8, negative extents, and when writing fails.
FileChecksum write_safetensors(const std::filesystem::path& path, const std::vector<NamedTensor>& tensors,
                               const SafetensorsMetadata& metadata = {});

/// A .safetensors file, mapped and completely validated; opening it reads the header only.
class SafetensorsFile {
 public:
  struct Entry {
    std::string name;
    ElementType dtype = ElementType::kF32;
    std::vector<int64_t> shape;
    uint64_t offset = 0, bytes = 0;  ///< of the values, from the start of the file
  };

  /// Throws Error naming the file and the tensor: header longer than the file, malformed JSON, unknown dtype,
  /// overflowing shape, offsets that disagree with the shape, lie outside the file, overlap or leave gaps.
  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }
  const std::vector<Entry>& entries() const { return entries_; }  ///< in the order of their values
  const SafetensorsMetadata& metadata() const { return metadata_; }
  const Entry* find(std::string_view name) const;  ///< nullptr when there is none

  /// The tensor, borrowed from the map (valid while this object lives); owned where the file has it misaligned.
  NamedTensor tensor(const Entry& entry) const;
  /// The same by name; throws Error when there is none.
  NamedTensor tensor(std::string_view name) const;

  const std::byte* data() const { return file_.data(); }  ///< the whole file
  uint64_t size() const { return file_.size(); }

 private:
  std::filesystem::path path_;
  MappedFile file_;
  std::vector<Entry> entries_;
  std::map<std::string, size_t, std::less<>> index_;
  SafetensorsMetadata metadata_;
};

}  // namespace convoy
