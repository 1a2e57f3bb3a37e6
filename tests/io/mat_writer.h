// MATLAB 5 files for the tests, byte by byte as the format's description has them.
#pragma once
#include <zlib.h>

#include <string>
#include <vector>

#include "io/image.h"

namespace convoy::testing {

/// Data elements, one after the other, in little or big endian order.
class MatBytes {
 public:
  explicit MatBytes(bool big_endian = false) : big_endian_(big_endian) {}

  std::string bytes;

  void number(uint64_t value, int size) {
    for (int i = 0; i < size; ++i) {
      const int shift = 8 * (big_endian_ ? size - 1 - i : i);
      bytes.push_back(static_cast<char>(value >> shift & 0xff));
    }
  }

  /// Tag, data, padding to eight bytes; short data in the small form.
  void element(uint32_t type, const std::string& data) {
    if (!data.empty() && data.size() <= 4) {
      if (big_endian_) {
        number(data.size(), 2);
        number(type, 2);
      } else {
        number(type, 2);
        number(data.size(), 2);
      }
      bytes += data + std::string(4 - data.size(), '\0');
      return;
    }
    number(type, 4);
    number(data.size(), 4);
    bytes += data + std::string((8 - data.size() % 8) % 8, '\0');
  }

  /// Elements of `values`, `size` bytes each.
  void numbers(uint32_t type, const std::vector<uint64_t>& values, int size) {
    MatBytes data(big_endian_);
    for (const uint64_t value : values) data.number(value, size);
    element(type, data.bytes);
  }

  void array_head(uint32_t array_class, const std::vector<uint64_t>& dimensions, const std::string& name) {
    numbers(6, {array_class, 0}, 4);
    numbers(5, dimensions, 4);
    element(1, name);
  }

 private:
  bool big_endian_;
};

struct MatOptions {
  bool big_endian = false, compressed = true;
  std::string variable = "GTcls", field = "Segmentation";
  uint32_t value_class = 9, value_type = 2;  ///< of the labels: uint8 stored as uint8
  int value_bytes = 1;
};

/// A file with the structure of SBD's: GTcls with the fields Boundaries, Segmentation, CategoriesPresent.
inline std::string mat_file(const LabelMap& labels, const MatOptions& options = {}) {
  const auto matrix = [&](const MatBytes& content) {
    MatBytes out(options.big_endian);
    out.element(14, content.bytes);
    return out.bytes;
  };
  MatBytes boundaries(options.big_endian), segmentation(options.big_endian), categories(options.big_endian);
  boundaries.array_head(6, {0, 0}, "");
  boundaries.element(9, "");
  std::vector<uint64_t> columns;
  for (int64_t x = 0; x < labels.width; ++x)
    for (int64_t y = 0; y < labels.height; ++y) columns.push_back(static_cast<uint64_t>(labels.at(y, x)));
  segmentation.array_head(options.value_class,
                          {static_cast<uint64_t>(labels.height), static_cast<uint64_t>(labels.width)}, "");
  segmentation.numbers(options.value_type, columns, options.value_bytes);
  categories.array_head(6, {1, 1}, "");
  categories.numbers(2, {7}, 1);

  MatBytes structure(options.big_endian);
  structure.array_head(2, {1, 1}, options.variable);
  structure.numbers(5, {32}, 4);
  std::string names;
  for (const std::string& name : {std::string("Boundaries"), options.field, std::string("CategoriesPresent")})
    names += name + std::string(32 - name.size(), '\0');
  structure.element(1, names);
  for (const MatBytes* field : {&boundaries, &segmentation, &categories}) structure.bytes += matrix(*field);
  std::string variable = matrix(structure);

  MatBytes file(options.big_endian);
  std::string text = "MATLAB 5.0 MAT-file, made by a test";
  text.resize(124, ' ');
  file.bytes = text;
  file.number(0x0100, 2);
  file.number(0x4d49, 2);  // "MI", which reads "IM" in little endian order
  if (!options.compressed) return file.bytes + variable;
  std::string packed(compressBound(variable.size()), '\0');
  uLongf size = packed.size();
  compress(reinterpret_cast<Bytef*>(packed.data()), &size, reinterpret_cast<const Bytef*>(variable.data()),
           variable.size());
  file.number(15, 4);
  file.number(size, 4);
  return file.bytes + packed.substr(0, size);
}

}  // namespace convoy::testing
