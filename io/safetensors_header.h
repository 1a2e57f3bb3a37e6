// The JSON header of a .safetensors file, parsed as a stream: memory stays bounded by what is valid.
#pragma once
#include <filesystem>
#include <string_view>

#include "io/safetensors.h"

namespace convoy {

constexpr uint64_t kMaxSafetensorsHeader = 100'000'000;  ///< bytes; the limit of the format's reference reader

struct SafetensorsHeader {
  std::vector<SafetensorsFile::Entry> entries;  ///< in the order of the header; offsets from the first value
  SafetensorsMetadata metadata;
};

/// Parses and validates everything that the header alone can show; `path` is for the messages.
SafetensorsHeader parse_safetensors_header(std::string_view json, const std::filesystem::path& path);

/// The format's name of an element type ("F32", "BF16", ...).
const char* safetensors_dtype_name(ElementType dtype);

/// Elements of a shape times `factor`; throws Error naming `what` on a negative extent or an overflow of int64.
int64_t checked_product(const std::vector<int64_t>& shape, int64_t factor, std::string_view what);

}  // namespace convoy
