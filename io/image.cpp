#include "io/image.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include <sys/stat.h>

#include "engine/error.h"
#include "io/image_codec.h"

namespace convoy {
namespace {

using FileHandle = std::unique_ptr<FILE, int (*)(FILE*)>;

ImageFormat detect_format(std::span<const uint8_t> bytes, const std::string& name) {
  static constexpr uint8_t kPngSignature[8] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};
  CONVOY_CHECK(!bytes.empty(), "{}: the file is empty", name);
  if (bytes.size() >= 8 && std::memcmp(bytes.data(), kPngSignature, 8) == 0) return ImageFormat::png;
  if (bytes.size() >= 3 && bytes[0] == 0xFF && bytes[1] == 0xD8 && bytes[2] == 0xFF) return ImageFormat::jpeg;
  const size_t shown = std::min<size_t>(bytes.size(), 4);
  std::string start;
  for (size_t i = 0; i < shown; ++i) start += fmt::format("{}{:02x}", i ? " " : "", bytes[i]);
  fail("{}: neither a PNG nor a JPEG file (it starts with bytes {})", name, start);
}

/// At most `limit` bytes from the start of the file.
std::vector<uint8_t> read_file_start(const std::string& path, size_t limit) {
  struct stat info {};
  CONVOY_CHECK(::stat(path.c_str(), &info) == 0, "{}: cannot be read: {}", path, std::strerror(errno));
  CONVOY_CHECK(S_ISREG(info.st_mode), "{}: is not a regular file", path);
  FileHandle file(std::fopen(path.c_str(), "rb"), &std::fclose);
  CONVOY_CHECK(file, "{}: cannot be opened: {}", path, std::strerror(errno));
  std::vector<uint8_t> bytes(std::min(limit, static_cast<size_t>(info.st_size)));
  const size_t got = bytes.empty() ? 0 : std::fread(bytes.data(), 1, bytes.size(), file.get());
  CONVOY_CHECK(got == bytes.size(), "{}: read {} of {} bytes: {}", path, got, bytes.size(),
               std::ferror(file.get()) ? std::strerror(errno) : "the file shrank while being read");
  return bytes;
}

}  // namespace

std::vector<uint8_t> read_file_bytes(const std::string& path) {
  return read_file_start(path, SIZE_MAX);
}

void write_file_bytes(const std::string& path, std::span<const uint8_t> bytes) {
  const std::string temporary = path + ".tmp";
  FileHandle file(std::fopen(temporary.c_str(), "wb"), &std::fclose);
  CONVOY_CHECK(file, "{}: cannot be created: {}", temporary, std::strerror(errno));
  const size_t written = std::fwrite(bytes.data(), 1, bytes.size(), file.get());
  const bool closed = std::fclose(file.release()) == 0;
  const int reason = errno;
  if (written != bytes.size() || !closed || std::rename(temporary.c_str(), path.c_str()) != 0) {
    const int shown = written != bytes.size() || !closed ? reason : errno;
    std::remove(temporary.c_str());
    fail("{}: cannot be written: {}", path, std::strerror(shown));
  }
}

ImageHeader decode_image_header(std::span<const uint8_t> bytes, const std::string& name) {
  return detect_format(bytes, name) == ImageFormat::png ? codec::png_header(bytes, name)
                                                        : codec::jpeg_header(bytes, name);
}

Image decode_image_rgb(std::span<const uint8_t> bytes, const std::string& name) {
  return detect_format(bytes, name) == ImageFormat::png ? codec::png_rgb(bytes, name) : codec::jpeg_rgb(bytes, name);
}

LabelMap decode_label_map(std::span<const uint8_t> bytes, const std::string& name) {
  CONVOY_CHECK(detect_format(bytes, name) == ImageFormat::png,
               "{}: a JPEG file cannot hold labels (its compression changes values); labels need an index PNG", name);
  return codec::png_labels(bytes, name);
}

ImageHeader read_image_header(const std::string& path) {
  constexpr size_t kUsualHeader = 64 * 1024;
  const std::vector<uint8_t> start = read_file_start(path, kUsualHeader);
  if (start.size() == kUsualHeader) {
    try {
      return decode_image_header(start, path);
    } catch (const Error&) {  // long metadata before the image: judged by the whole file below
    }
  }
  return decode_image_header(read_file_bytes(path), path);
}

Image read_image_rgb(const std::string& path) {
  return decode_image_rgb(read_file_bytes(path), path);
}
LabelMap read_label_map(const std::string& path) {
  return decode_label_map(read_file_bytes(path), path);
}

void codec::check_dimensions(const std::string& name, int64_t height, int64_t width, size_t file_bytes,
                             int64_t pixels_per_byte) {
  CONVOY_CHECK(height > 0 && width > 0, "{}: the image has no pixels (height {}, width {})", name, height, width);
  CONVOY_CHECK(height <= kMaxImagePixels / width,
               "{}: the header says {} x {} pixels (height x width), above the limit of {}", name, height, width,
               kMaxImagePixels);
  CONVOY_CHECK(
      height * width / pixels_per_byte <= static_cast<int64_t>(file_bytes),
      "{}: the header says {} x {} pixels (height x width), which a file of {} bytes cannot hold: truncated or "
      "damaged",
      name, height, width, file_bytes);
}

}  // namespace convoy
