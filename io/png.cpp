// libpng with its errors turned into convoy::Error. libpng leaves a failing call by longjmp, so each function that
// calls setjmp holds only plain values: buffers and strings belong to its caller.
#include <png.h>

#include <csetjmp>
#include <cstring>

#include "engine/error.h"
#include "io/image_codec.h"

namespace convoy {
namespace {

/// Deflate shrinks at most 1032:1, and a pixel takes at least one bit.
constexpr int64_t kPixelsPerByte = 1032 * 8;

struct PngSource {
  const uint8_t* data = nullptr;
  size_t size = 0, position = 0;
  char message[160] = {};
};

void on_png_error(png_structp png, png_const_charp message) {
  auto* source = static_cast<PngSource*>(png_get_error_ptr(png));
  std::strncpy(source->message, message, sizeof(source->message) - 1);
  png_longjmp(png, 1);
}

void on_png_warning(png_structp, png_const_charp) {}

void read_png_bytes(png_structp png, png_bytep out, size_t count) {
  auto* source = static_cast<PngSource*>(png_get_io_ptr(png));
  if (count > source->size - source->position) png_error(png, "the file ends too early (truncated)");
  std::memcpy(out, source->data + source->position, count);
  source->position += count;
}

/// Owns the decoder's structs.
class PngReader {
 public:
  PngReader(std::span<const uint8_t> bytes, const std::string& name) : name_(name) {
    source_.data = bytes.data();
    source_.size = bytes.size();
    png_ = png_create_read_struct(PNG_LIBPNG_VER_STRING, &source_, on_png_error, on_png_warning);
    info_ = png_ ? png_create_info_struct(png_) : nullptr;
    if (!info_) {
      png_destroy_read_struct(&png_, nullptr, nullptr);
      fail("{}: libpng has no memory", name_);
    }
    if (!start()) report();
    codec::check_dimensions(name_, height(), width(), bytes.size(), kPixelsPerByte);
  }
  ~PngReader() { png_destroy_read_struct(&png_, &info_, nullptr); }
  PngReader(const PngReader&) = delete;
  PngReader& operator=(const PngReader&) = delete;

  int64_t height() const { return png_get_image_height(png_, info_); }
  int64_t width() const { return png_get_image_width(png_, info_); }
  int bit_depth() const { return png_get_bit_depth(png_, info_); }
  int color_type() const { return png_get_color_type(png_, info_); }

  std::vector<Color> palette() const {
    png_colorp colors = nullptr;
    int count = 0;
    std::vector<Color> palette;
    if (png_get_PLTE(png_, info_, &colors, &count) == 0) return palette;
    for (int i = 0; i < count; ++i) palette.push_back({colors[i].red, colors[i].green, colors[i].blue});
    return palette;
  }

  /// Pixels as they will be used: 3 bytes RGB, or for labels one byte (two in the machine's order for 16 bits).
  std::vector<uint8_t> read_pixels(bool labels) {
    if (!request_layout(labels)) report();
    const size_t row_bytes = png_get_rowbytes(png_, info_);
    std::vector<uint8_t> pixels(row_bytes * static_cast<size_t>(height()));
    std::vector<png_bytep> rows(static_cast<size_t>(height()));
    for (size_t y = 0; y < rows.size(); ++y) rows[y] = pixels.data() + y * row_bytes;
    if (!read_rows(rows.data())) report();
    return pixels;
  }

 private:
  [[noreturn]] void report() {
    const std::string message = source_.message;
    fail("{}: damaged PNG: {} (at byte {} of {})", name_, message, source_.position, source_.size);
  }

  bool start() {
    if (setjmp(png_jmpbuf(png_))) return false;
    png_set_user_limits(png_, 0x7fffffff, 0x7fffffff);
    png_set_read_fn(png_, &source_, read_png_bytes);
    png_read_info(png_, info_);
    return true;
  }

  bool request_layout(bool labels) {
    if (setjmp(png_jmpbuf(png_))) return false;
    const int color = color_type();
    if (labels) {
      png_set_packing(png_);
      if (bit_depth() == 16) png_set_swap(png_);
    } else {
      if (color == PNG_COLOR_TYPE_PALETTE) png_set_palette_to_rgb(png_);
      if (color == PNG_COLOR_TYPE_GRAY && bit_depth() < 8) png_set_expand_gray_1_2_4_to_8(png_);
      if (bit_depth() == 16) png_set_scale_16(png_);
      if (!(color & PNG_COLOR_MASK_COLOR)) png_set_gray_to_rgb(png_);
    }
    png_set_strip_alpha(png_);
    png_set_interlace_handling(png_);
    png_read_update_info(png_, info_);
    return true;
  }

  bool read_rows(png_bytepp rows) {
    if (setjmp(png_jmpbuf(png_))) return false;
    png_read_image(png_, rows);
    png_read_end(png_, nullptr);
    return true;
  }

  PngSource source_;
  const std::string& name_;
  png_structp png_ = nullptr;
  png_infop info_ = nullptr;
};

struct PngSink {
  std::vector<uint8_t> bytes;
  bool out_of_memory = false;
  char message[160] = {};
};

void on_png_write_error(png_structp png, png_const_charp message) {
  auto* sink = static_cast<PngSink*>(png_get_error_ptr(png));
  std::strncpy(sink->message, message, sizeof(sink->message) - 1);
  png_longjmp(png, 1);
}

void append_png_bytes(png_structp png, png_bytep data, size_t count) {
  auto* sink = static_cast<PngSink*>(png_get_io_ptr(png));
  try {
    sink->bytes.insert(sink->bytes.end(), data, data + count);
  } catch (const std::bad_alloc&) {
    sink->out_of_memory = true;
  }
  if (sink->out_of_memory) png_error(png, "out of memory");
}

struct PngLayout {
  int64_t height, width;
  int bit_depth, color_type;
  const png_color* palette = nullptr;
  int palette_size = 0;
};

bool encode_png(PngSink& sink, const PngLayout& layout, png_bytepp rows) {
  png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, &sink, on_png_write_error, on_png_warning);
  if (!png) return false;
  png_infop info = png_create_info_struct(png);
  if (!info || setjmp(png_jmpbuf(png))) {
    png_destroy_write_struct(&png, &info);
    return false;
  }
  png_set_write_fn(png, &sink, append_png_bytes, nullptr);
  png_set_compression_level(png, 4);
  png_set_IHDR(png, info, static_cast<png_uint_32>(layout.width), static_cast<png_uint_32>(layout.height),
               layout.bit_depth, layout.color_type, PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_DEFAULT,
               PNG_FILTER_TYPE_DEFAULT);
  if (layout.palette) png_set_PLTE(png, info, layout.palette, layout.palette_size);
  png_write_info(png, info);
  if (layout.bit_depth == 16) png_set_swap(png);
  png_write_image(png, rows);
  png_write_end(png, info);
  png_destroy_write_struct(&png, &info);
  return true;
}

void save_png(const std::string& path, const PngLayout& layout, const std::vector<uint8_t>& pixels) {
  CONVOY_CHECK(layout.height > 0 && layout.width > 0, "{}: an image of {} x {} pixels cannot be written", path,
               layout.height, layout.width);
  const size_t row_bytes = pixels.size() / static_cast<size_t>(layout.height);
  std::vector<png_bytep> rows(static_cast<size_t>(layout.height));
  for (size_t y = 0; y < rows.size(); ++y) rows[y] = const_cast<png_bytep>(pixels.data()) + y * row_bytes;
  PngSink sink;
  CONVOY_CHECK(encode_png(sink, layout, rows.data()), "{}: libpng cannot encode it: {}", path, sink.message);
  write_file_bytes(path, sink.bytes);
}

std::vector<uint8_t> narrow_labels(const std::string& path, const LabelMap& labels, int64_t count) {
  std::vector<uint8_t> pixels(labels.data.size());
  for (size_t i = 0; i < pixels.size(); ++i) {
    const int32_t value = labels.data[i];
    CONVOY_CHECK(value >= 0 && value < count, "{}: label {} at pixel ({}, {}) does not fit 0..{}", path, value,
                 static_cast<int64_t>(i) % labels.width, static_cast<int64_t>(i) / labels.width, count - 1);
    pixels[i] = static_cast<uint8_t>(value);
  }
  return pixels;
}

}  // namespace

ImageHeader codec::png_header(std::span<const uint8_t> bytes, const std::string& name) {
  const PngReader reader(bytes, name);
  const int color = reader.color_type();
  const ColorKind kind = color == PNG_COLOR_TYPE_PALETTE ? ColorKind::palette
                         : color & PNG_COLOR_MASK_COLOR  ? ColorKind::rgb
                                                         : ColorKind::gray;
  return {ImageFormat::png, kind, reader.height(), reader.width(), reader.bit_depth(), reader.palette()};
}

Image codec::png_rgb(std::span<const uint8_t> bytes, const std::string& name) {
  PngReader reader(bytes, name);
  Image image{reader.height(), reader.width(), 3, {}, reader.bit_depth()};
  image.data = reader.read_pixels(false);
  return image;
}

LabelMap codec::png_labels(std::span<const uint8_t> bytes, const std::string& name) {
  PngReader reader(bytes, name);
  const int color = reader.color_type();
  CONVOY_CHECK(color == PNG_COLOR_TYPE_PALETTE || !(color & PNG_COLOR_MASK_COLOR),
               "{}: is an RGB image, a colour mask; needs an index PNG (palette or gray, pixel value = "
               "class), or DATASET.MASK_COLORS, which says what the colours mean",
               name);
  LabelMap labels{reader.height(), reader.width(), {}};
  const int bit_depth = reader.bit_depth();
  const std::vector<uint8_t> pixels = reader.read_pixels(true);
  labels.data.resize(static_cast<size_t>(labels.height * labels.width));
  if (bit_depth == 16) {
    for (size_t i = 0; i < labels.data.size(); ++i) {
      uint16_t value;
      std::memcpy(&value, pixels.data() + 2 * i, 2);
      labels.data[i] = value;
    }
  } else {
    for (size_t i = 0; i < labels.data.size(); ++i) labels.data[i] = pixels[i];
  }
  return labels;
}

void write_png(const std::string& path, const Image& image) {
  CONVOY_CHECK(image.channels == 1 || image.channels == 3, "{}: a PNG is written from 1 or 3 channels, not {}", path,
               image.channels);
  const int color = image.channels == 3 ? PNG_COLOR_TYPE_RGB : PNG_COLOR_TYPE_GRAY;
  save_png(path, {image.height, image.width, 8, color}, image.data);
}

void write_png_gray(const std::string& path, const LabelMap& labels, int bit_depth) {
  CONVOY_CHECK(bit_depth == 8 || bit_depth == 16, "{}: gray labels are written with 8 or 16 bits, not {}", path,
               bit_depth);
  const PngLayout layout{labels.height, labels.width, bit_depth, PNG_COLOR_TYPE_GRAY};
  if (bit_depth == 8) return save_png(path, layout, narrow_labels(path, labels, 256));
  std::vector<uint8_t> pixels(labels.data.size() * 2);
  for (size_t i = 0; i < labels.data.size(); ++i) {
    const int32_t value = labels.data[i];
    CONVOY_CHECK(value >= 0 && value <= 65535, "{}: label {} at pixel ({}, {}) does not fit 0..65535", path, value,
                 static_cast<int64_t>(i) % labels.width, static_cast<int64_t>(i) / labels.width);
    const uint16_t narrow = static_cast<uint16_t>(value);
    std::memcpy(pixels.data() + 2 * i, &narrow, 2);
  }
  save_png(path, layout, pixels);
}

void write_png_palette(const std::string& path, const LabelMap& labels, std::span<const Color> palette) {
  CONVOY_CHECK(!palette.empty() && palette.size() <= 256, "{}: a PNG palette holds 1 to 256 colours, not {}", path,
               palette.size());
  std::vector<png_color> colors;
  for (const Color& color : palette) colors.push_back({color[0], color[1], color[2]});
  save_png(path,
           {labels.height, labels.width, 8, PNG_COLOR_TYPE_PALETTE, colors.data(), static_cast<int>(colors.size())},
           narrow_labels(path, labels, static_cast<int64_t>(palette.size())));
}

}  // namespace convoy
