// What io/image.cpp needs of the two decoders: bytes in, pixels out, no files.
#pragma once
#include "io/image.h"

namespace convoy::codec {

ImageHeader png_header(std::span<const uint8_t> bytes, const std::string& name);
Image png_rgb(std::span<const uint8_t> bytes, const std::string& name);
LabelMap png_labels(std::span<const uint8_t> bytes, const std::string& name);

ImageHeader jpeg_header(std::span<const uint8_t> bytes, const std::string& name);
Image jpeg_rgb(std::span<const uint8_t> bytes, const std::string& name);

/// Throws unless 0 < size <= kMaxImagePixels and a file of `file_bytes` bytes can hold that many pixels
/// (`pixels_per_byte` = the format's densest packing).
void check_dimensions(const std::string& name, int64_t height, int64_t width, size_t file_bytes,
                      int64_t pixels_per_byte);

}  // namespace convoy::codec
