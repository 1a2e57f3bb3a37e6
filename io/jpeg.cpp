// libjpeg-turbo with its errors, and its warnings about damaged data, turned into convoy::Error. libjpeg leaves a
// failing call by longjmp, so each function that calls setjmp holds only plain values.
#include <cstddef>
#include <cstdio>

#include <jpeglib.h>

#include <jerror.h>

#include <csetjmp>
#include <cstdlib>
#include <memory>

#include "engine/error.h"
#include "io/image_codec.h"

namespace convoy {
namespace {

/// A block of 64 pixels takes at least one bit; twice that for the chroma-free luma of a progressive file.
constexpr int64_t kPixelsPerByte = 1024;
/// Progressive files need about ten scans; thousands are an attack on the decoder's time.
constexpr int kMaxScans = 500;

struct JpegErrors {
  jpeg_error_mgr base;  // first, so that libjpeg's pointer to it is a pointer to this struct
  std::jmp_buf jump;
  char message[JMSG_LENGTH_MAX];
};

[[noreturn]] void leave_decoder(j_common_ptr codec) {
  auto* errors = reinterpret_cast<JpegErrors*>(codec->err);
  (*codec->err->format_message)(codec, errors->message);
  std::longjmp(errors->jump, 1);
}

void on_jpeg_message(j_common_ptr codec, int level) {
  const int code = codec->err->msg_code;
  const bool harmless = code == JWRN_JFIF_MAJOR || code == JWRN_ADOBE_XFORM;
  if (level < 0 && !harmless) leave_decoder(codec);
}

void ignore_output(j_common_ptr) {}

void on_jpeg_progress(j_common_ptr codec) {
  if (reinterpret_cast<j_decompress_ptr>(codec)->input_scan_number > kMaxScans) {
    auto* errors = reinterpret_cast<JpegErrors*>(codec->err);
    std::snprintf(errors->message, sizeof(errors->message), "more than %d scans", kMaxScans);
    std::longjmp(errors->jump, 1);
  }
}

void install_errors(JpegErrors& errors) {
  jpeg_std_error(&errors.base);
  errors.base.error_exit = leave_decoder;
  errors.base.emit_message = on_jpeg_message;
  errors.base.output_message = ignore_output;
  errors.message[0] = '\0';
}

/// Owns the decoder.
class JpegReader {
 public:
  JpegReader(std::span<const uint8_t> bytes, const std::string& name) : name_(name), file_bytes_(bytes.size()) {
    install_errors(errors_);
    decoder_.err = &errors_.base;
    if (!start(bytes.data(), bytes.size())) {
      jpeg_destroy_decompress(&decoder_);
      report();
    }
  }
  ~JpegReader() { jpeg_destroy_decompress(&decoder_); }
  JpegReader(const JpegReader&) = delete;
  JpegReader& operator=(const JpegReader&) = delete;

  ImageHeader header() const {
    const ColorKind kind = decoder_.num_components == 1   ? ColorKind::gray
                           : decoder_.num_components == 3 ? ColorKind::rgb
                                                          : ColorKind::cmyk;
    ImageHeader header{ImageFormat::jpeg, kind, decoder_.image_height, decoder_.image_width, decoder_.data_precision};
    codec::check_dimensions(name_, header.height, header.width, file_bytes_, kPixelsPerByte);
    return header;
  }

  void read_rgb(Image& image) {
    if (!read_rows(image.data.data(), static_cast<size_t>(image.width) * 3)) report();
  }

 private:
  [[noreturn]] void report() {
    fail("{}: damaged JPEG: {} ({} bytes)", name_, std::string(errors_.message), file_bytes_);
  }

  bool start(const uint8_t* data, size_t size) {
    if (setjmp(errors_.jump)) return false;
    jpeg_create_decompress(&decoder_);
    progress_.progress_monitor = on_jpeg_progress;
    decoder_.progress = &progress_;
    jpeg_mem_src(&decoder_, data, static_cast<unsigned long>(size));
    jpeg_read_header(&decoder_, TRUE);
    return true;
  }

  bool read_rows(uint8_t* pixels, size_t row_bytes) {
    if (setjmp(errors_.jump)) return false;
    decoder_.out_color_space = JCS_RGB;
    jpeg_start_decompress(&decoder_);
    while (decoder_.output_scanline < decoder_.output_height) {
      JSAMPROW row = pixels + decoder_.output_scanline * row_bytes;
      jpeg_read_scanlines(&decoder_, &row, 1);
    }
    jpeg_finish_decompress(&decoder_);
    return true;
  }

  const std::string& name_;
  size_t file_bytes_;
  JpegErrors errors_{};
  jpeg_progress_mgr progress_{};
  jpeg_decompress_struct decoder_{};
};

struct JpegOutput {
  unsigned char* bytes = nullptr;
  unsigned long size = 0;
  ~JpegOutput() { std::free(bytes); }
};

bool encode_jpeg(JpegErrors& errors, JpegOutput& output, const Image& image, int quality) {
  jpeg_compress_struct encoder{};
  encoder.err = &errors.base;
  if (setjmp(errors.jump)) {
    jpeg_destroy_compress(&encoder);
    return false;
  }
  jpeg_create_compress(&encoder);
  jpeg_mem_dest(&encoder, &output.bytes, &output.size);
  encoder.image_width = static_cast<JDIMENSION>(image.width);
  encoder.image_height = static_cast<JDIMENSION>(image.height);
  encoder.input_components = static_cast<int>(image.channels);
  encoder.in_color_space = image.channels == 3 ? JCS_RGB : JCS_GRAYSCALE;
  jpeg_set_defaults(&encoder);
  jpeg_set_quality(&encoder, quality, TRUE);
  for (int i = 0; i < encoder.num_components; ++i) {
    encoder.comp_info[i].h_samp_factor = 1;
    encoder.comp_info[i].v_samp_factor = 1;
  }
  jpeg_start_compress(&encoder, TRUE);
  while (encoder.next_scanline < encoder.image_height) {
    JSAMPROW row = const_cast<JSAMPROW>(image.pixel(encoder.next_scanline, 0));
    jpeg_write_scanlines(&encoder, &row, 1);
  }
  jpeg_finish_compress(&encoder);
  jpeg_destroy_compress(&encoder);
  return true;
}

}  // namespace

ImageHeader codec::jpeg_header(std::span<const uint8_t> bytes, const std::string& name) {
  return JpegReader(bytes, name).header();
}

Image codec::jpeg_rgb(std::span<const uint8_t> bytes, const std::string& name) {
  JpegReader reader(bytes, name);
  const ImageHeader header = reader.header();
  CONVOY_CHECK(header.color != ColorKind::cmyk, "{}: a CMYK JPEG; convert it to RGB", name);
  Image image{header.height, header.width, 3, {}, header.bit_depth};
  image.data.resize(static_cast<size_t>(header.height * header.width * 3));
  reader.read_rgb(image);
  return image;
}

void write_jpeg(const std::string& path, const Image& image, int quality) {
  CONVOY_CHECK(image.channels == 1 || image.channels == 3, "{}: a JPEG is written from 1 or 3 channels, not {}", path,
               image.channels);
  CONVOY_CHECK(quality >= 1 && quality <= 100, "{}: JPEG quality is 1..100, not {}", path, quality);
  JpegErrors errors{};
  install_errors(errors);
  JpegOutput output;
  CONVOY_CHECK(encode_jpeg(errors, output, image, quality), "{}: libjpeg cannot encode it: {}", path,
               std::string(errors.message));
  write_file_bytes(path, {output.bytes, output.size});
}

}  // namespace convoy
