// Image files: PNG (palette, 1-16 bit gray, RGB, alpha dropped) by libpng and JPEG by libjpeg-turbo, told apart by
// their first bytes and never by the file's name. Every function throws convoy::Error naming the file and the fault.
#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace convoy {

/// Pixels of 8 bits, stored (H,W,C) with C = 3 (RGB) or 1 (gray).
struct Image {
  int64_t height = 0, width = 0, channels = 0;
  std::vector<uint8_t> data;
  int bit_depth = 8;  ///< bits per channel in the file it was read from (1, 2, 4, 8 or 16)

  const uint8_t* pixel(int64_t y, int64_t x) const { return data.data() + (y * width + x) * channels; }
  uint8_t* pixel(int64_t y, int64_t x) { return data.data() + (y * width + x) * channels; }
};

/// Class indices (H,W); negative values mean "ignore".
struct LabelMap {
  int64_t height = 0, width = 0;
  std::vector<int32_t> data;

  int32_t at(int64_t y, int64_t x) const { return data[static_cast<size_t>(y * width + x)]; }
  int32_t& at(int64_t y, int64_t x) { return data[static_cast<size_t>(y * width + x)]; }
};

using Color = std::array<uint8_t, 3>;  ///< red, green, blue

enum class ImageFormat { png, jpeg };
enum class ColorKind { gray, rgb, palette, cmyk };

/// What the first bytes of a file say about it.
struct ImageHeader {
  ImageFormat format = ImageFormat::png;
  ColorKind color = ColorKind::rgb;
  int64_t height = 0, width = 0;
  int bit_depth = 8;
  std::vector<Color> palette = {};  ///< of a palette PNG
};

/// Images above this many pixels are refused, so that a damaged header cannot ask for all memory.
inline constexpr int64_t kMaxImagePixels = int64_t{1} << 28;

/// Size and kind without decoding the pixels.
ImageHeader read_image_header(const std::string& path);

/// Three channels, 8 bits: gray is repeated, palettes are resolved, alpha is dropped, 16 bits are scaled to 8.
/// A decoder's warning about damaged data (truncated, bad code) is an error here.
Image read_image_rgb(const std::string& path);

/// Label values as stored: palette indices, or gray values of 1 to 16 bits (not rescaled).
/// An RGB file (a colour mask) or a JPEG is an error.
LabelMap read_label_map(const std::string& path);

/// The same for bytes already in memory; `name` stands for the file in messages.
ImageHeader decode_image_header(std::span<const uint8_t> bytes, const std::string& name);
Image decode_image_rgb(std::span<const uint8_t> bytes, const std::string& name);
LabelMap decode_label_map(std::span<const uint8_t> bytes, const std::string& name);

/// Writes an 8-bit PNG, gray (channels 1) or RGB (channels 3). Same pixels, same bytes.
void write_png(const std::string& path, const Image& image);
/// Writes labels as gray PNG of 8 bits (values 0..255) or 16 bits (values 0..65535).
void write_png_gray(const std::string& path, const LabelMap& labels, int bit_depth = 8);
/// Writes labels 0..palette.size()-1 (at most 256 colours) as a palette PNG.
void write_png_palette(const std::string& path, const LabelMap& labels, std::span<const Color> palette);
/// Writes a JPEG, gray or RGB, 4:4:4, quality 1-100.
void write_jpeg(const std::string& path, const Image& image, int quality = 92);

/// The whole file; throws Error naming the file and the system's reason.
std::vector<uint8_t> read_file_bytes(const std::string& path);
/// Writes all bytes or throws Error (full disk, no permission), leaving no partial file behind.
void write_file_bytes(const std::string& path, std::span<const uint8_t> bytes);

}  // namespace convoy
