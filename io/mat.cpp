#include "io/mat.h"

#include <zlib.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "engine/error.h"

namespace convoy {
namespace {

constexpr size_t kHeaderBytes = 128;
/// Deflate shrinks at most 1032:1.
constexpr uint64_t kInflation = 1032;
/// Of an inflated variable: the largest image with one byte per pixel twice over, since a structure has more fields.
constexpr uint64_t kMaxInflated = 2 * static_cast<uint64_t>(kMaxImagePixels);

/// Types of data elements.
enum MatType : uint32_t {
  kInt8 = 1,
  kUint8 = 2,
  kInt16 = 3,
  kUint16 = 4,
  kInt32 = 5,
  kUint32 = 6,
  kSingle = 7,
  kDouble = 9,
  kInt64 = 12,
  kUint64 = 13,
  kMatrix = 14,
  kCompressed = 15
};

/// Classes of arrays.
enum ArrayClass : uint32_t { kStructure = 2, kFirstNumeric = 6, kLastNumeric = 15 };
constexpr uint32_t kComplexFlag = 0x0800;

struct Element {
  uint32_t type = 0;
  std::span<const uint8_t> data;
};

/// Takes data elements from a run of bytes, one after the other.
class ElementReader {
 public:
  ElementReader(std::span<const uint8_t> bytes, bool swapped, const std::string& name)
      : bytes_(bytes), swapped_(swapped), name_(&name) {}

  bool done() const { return bytes_.empty(); }
  bool swapped() const { return swapped_; }
  const std::string& name() const { return *name_; }

  template <class T>
  T number(std::span<const uint8_t> at) const {
    CONVOY_CHECK(at.size() >= sizeof(T), "{}: damaged MATLAB file: a number is cut off", *name_);
    uint8_t bytes[sizeof(T)];
    std::copy_n(at.data(), sizeof(T), bytes);
    if (swapped_) std::reverse(bytes, bytes + sizeof(T));
    T value;
    std::memcpy(&value, bytes, sizeof(T));
    return value;
  }

  Element next() {
    const auto first = number<uint32_t>(bytes_);
    if (first >> 16) {  // small element: size and type in four bytes, data in the next four
      const uint32_t size = first >> 16;
      CONVOY_CHECK(size <= 4 && bytes_.size() >= 8, "{}: damaged MATLAB file: a small element of {} bytes", *name_,
                   size);
      const Element element{first & 0xffff, bytes_.subspan(4, size)};
      bytes_ = bytes_.subspan(8);
      return element;
    }
    CONVOY_CHECK(bytes_.size() >= 8, "{}: damaged MATLAB file: it ends within a tag", *name_);
    const auto size = number<uint32_t>(bytes_.subspan(4));
    bytes_ = bytes_.subspan(8);
    CONVOY_CHECK(size <= bytes_.size(), "{}: damaged MATLAB file: an element of {} bytes, of which {} are there",
                 *name_, size, bytes_.size());
    const Element element{first, bytes_.first(size)};
    // All but compressed elements are padded to 8 bytes; the last one may lack the padding.
    const size_t padded = first == kCompressed ? size : (static_cast<size_t>(size) + 7) / 8 * 8;
    bytes_ = bytes_.subspan(std::min(padded, bytes_.size()));
    return element;
  }

  Element expect(uint32_t type, const char* what) {
    CONVOY_CHECK(!done(), "{}: damaged MATLAB file: {} is missing", *name_, what);
    const Element element = next();
    CONVOY_CHECK(element.type == type, "{}: damaged MATLAB file: {} has element type {}, not {}", *name_, what,
                 element.type, type);
    return element;
  }

  ElementReader within(std::span<const uint8_t> bytes) const { return {bytes, swapped_, *name_}; }

 private:
  std::span<const uint8_t> bytes_;
  bool swapped_;
  const std::string* name_;
};

std::vector<uint8_t> inflate_element(std::span<const uint8_t> data, const std::string& name) {
  const uint64_t limit = std::min(kMaxInflated, data.size() * kInflation + 64);
  z_stream stream{};
  CONVOY_CHECK(inflateInit(&stream) == Z_OK, "{}: zlib has no memory", name);
  std::vector<uint8_t> out;
  stream.next_in = const_cast<Bytef*>(data.data());
  stream.avail_in = static_cast<uInt>(data.size());
  int state = Z_OK;
  while (state == Z_OK && out.size() < limit) {
    const size_t done = out.size();
    out.resize(std::min<uint64_t>(limit, std::max<uint64_t>(2 * done, 1 << 16)));
    stream.next_out = out.data() + done;
    stream.avail_out = static_cast<uInt>(out.size() - done);
    state = inflate(&stream, Z_NO_FLUSH);
    out.resize(out.size() - std::min<size_t>(stream.avail_out, out.size() - done));
  }
  const std::string message = stream.msg ? stream.msg : state == Z_OK ? "too large" : "the data ends too early";
  inflateEnd(&stream);
  CONVOY_CHECK(state == Z_STREAM_END, "{}: damaged MATLAB file: its compressed data cannot be read: {}", name, message);
  return out;
}

/// The head of an array; `body` stands behind it.
struct Array {
  uint32_t array_class = 0;
  bool complex = false;
  std::vector<int32_t> dimensions;
  std::string name;
  ElementReader body;
};

Array read_array(ElementReader reader) {
  const Element flags = reader.expect(kUint32, "an array's flags");
  const auto bits = reader.number<uint32_t>(flags.data);
  const Element dimensions = reader.expect(kInt32, "an array's dimensions");
  Array array{bits & 0xff, (bits & kComplexFlag) != 0, {}, {}, reader};
  for (size_t at = 0; at + 4 <= dimensions.data.size() && at < 64; at += 4)
    array.dimensions.push_back(reader.number<int32_t>(dimensions.data.subspan(at)));
  const Element name = reader.expect(kInt8, "an array's name");
  array.name.assign(name.data.begin(), name.data.end());
  array.body = reader;
  return array;
}

template <class T>
void copy_values(const ElementReader& reader, std::span<const uint8_t> data, LabelMap& labels,
                 const std::string& variable) {
  CONVOY_CHECK(data.size() == labels.data.size() * sizeof(T), "{}: {} has {} bytes for {} x {} values of {}",
               reader.name(), variable, data.size(), labels.height, labels.width, sizeof(T));
  for (int64_t x = 0; x < labels.width; ++x) {
    for (int64_t y = 0; y < labels.height; ++y) {
      const T value = reader.number<T>(data.subspan(static_cast<size_t>(x * labels.height + y) * sizeof(T)));
      const auto wide = static_cast<double>(value);
      CONVOY_CHECK(wide == std::floor(wide) && std::abs(wide) <= std::numeric_limits<int32_t>::max(),
                   "{}: {} holds {} at pixel (x {}, y {}), which is no label", reader.name(), variable, wide, x, y);
      labels.at(y, x) = static_cast<int32_t>(wide);
    }
  }
}

LabelMap label_map_of(Array array, const std::string& variable) {
  const std::string& file = array.body.name();
  CONVOY_CHECK(array.array_class >= kFirstNumeric && array.array_class <= kLastNumeric && !array.complex,
               "{}: {} is no array of real numbers (class {})", file, variable, array.array_class);
  const std::vector<int32_t>& size = array.dimensions;
  CONVOY_CHECK(size.size() == 2 && size[0] > 0 && size[1] > 0 && int64_t{size[0]} * size[1] <= kMaxImagePixels,
               "{}: {} has the dimensions {}, needs (height, width)", file, variable, fmt::join(size, " x "));
  CONVOY_CHECK(!array.body.done(), "{}: damaged MATLAB file: the values of {} are missing", file, variable);
  const Element values = array.body.next();
  LabelMap labels{size[0], size[1], {}};
  // Before memory is asked for: a value takes a byte at least.
  CONVOY_CHECK(values.data.size() >= static_cast<size_t>(labels.height * labels.width),
               "{}: damaged MATLAB file: {} bytes for the {} x {} values of {}", file, values.data.size(),
               labels.height, labels.width, variable);
  labels.data.resize(static_cast<size_t>(labels.height * labels.width));
  const auto copy = [&]<class T>(T) { copy_values<T>(array.body, values.data, labels, variable); };
  switch (values.type) {
    case kInt8:
      copy(int8_t{});
      break;
    case kUint8:
      copy(uint8_t{});
      break;
    case kInt16:
      copy(int16_t{});
      break;
    case kUint16:
      copy(uint16_t{});
      break;
    case kInt32:
      copy(int32_t{});
      break;
    case kUint32:
      copy(uint32_t{});
      break;
    case kSingle:
      copy(float{});
      break;
    case kDouble:
      copy(double{});
      break;
    case kInt64:
      copy(int64_t{});
      break;
    case kUint64:
      copy(uint64_t{});
      break;
    default:
      fail("{}: {} has values of element type {}, which are no numbers", file, variable, values.type);
  }
  return labels;
}

LabelMap read_field(Array structure, const std::string& variable, const std::string& field) {
  ElementReader& body = structure.body;
  CONVOY_CHECK(structure.array_class == kStructure, "{}: {} is no structure (class {})", body.name(), variable,
               structure.array_class);
  for (const int32_t count : structure.dimensions)
    CONVOY_CHECK(count == 1, "{}: {} is an array of structures ({}), needs one", body.name(), variable,
                 fmt::join(structure.dimensions, " x "));
  const Element length = body.expect(kInt32, "the length of field names");
  const auto stride = body.number<int32_t>(length.data);
  const Element names = body.expect(kInt8, "the field names");
  CONVOY_CHECK(stride > 0 && stride <= 1 << 16, "{}: damaged MATLAB file: field names of {} bytes", body.name(),
               stride);
  std::vector<std::string> found;
  for (size_t at = 0; at + static_cast<size_t>(stride) <= names.data.size(); at += static_cast<size_t>(stride)) {
    std::string name(names.data.begin() + static_cast<ptrdiff_t>(at),
                     names.data.begin() + static_cast<ptrdiff_t>(at) + stride);
    name.resize(std::min(name.size(), name.find('\0')));
    const Element value = body.expect(kMatrix, "a field's value");
    if (name == field) return label_map_of(read_array(body.within(value.data)), variable + "." + field);
    found.push_back(name);
  }
  fail("{}: {} has no field {}; found {}", body.name(), variable, field, fmt::join(found, ", "));
}

}  // namespace

LabelMap decode_mat_labels(std::span<const uint8_t> bytes, const std::string& name, const std::string& variable,
                           const std::string& field) {
  static constexpr char kHdf5[] = "\x89HDF\r\n\x1a\n";
  const char* const advice = "save it with -v7, or as index PNG of the same base name";
  CONVOY_CHECK(bytes.size() < 8 || std::memcmp(bytes.data(), kHdf5, 8) != 0, "{}: is an HDF5 file; {}", name, advice);
  CONVOY_CHECK(bytes.size() > kHeaderBytes, "{}: no MATLAB 5 file: only {} bytes", name, bytes.size());
  const std::string order(bytes.begin() + 126, bytes.begin() + 128);
  CONVOY_CHECK(order == "IM" || order == "MI", "{}: no MATLAB 5 file (no byte order mark at byte 126); {}", name,
               advice);
  const bool little = order == "IM";
  const int version = little ? bytes[125] : bytes[124];
  CONVOY_CHECK(version != 2, "{}: is a MATLAB 7.3 file; {}", name, advice);
  CONVOY_CHECK(version == 1, "{}: no MATLAB 5 file (version byte {}); {}", name, version, advice);
  ElementReader reader(bytes.subspan(kHeaderBytes), !little, name);
  std::vector<std::string> found;
  while (!reader.done()) {
    Element element = reader.next();
    std::vector<uint8_t> inflated;
    if (element.type == kCompressed) {
      inflated = inflate_element(element.data, name);
      element = reader.within(inflated).expect(kMatrix, "a compressed variable");
    }
    CONVOY_CHECK(element.type == kMatrix, "{}: damaged MATLAB file: a variable of element type {}", name, element.type);
    Array array = read_array(reader.within(element.data));
    if (array.name == variable) return read_field(std::move(array), variable, field);
    found.push_back(array.name);
  }
  fail("{}: has no variable {}; found {}", name, variable,
       found.empty() ? "none" : fmt::format("{}", fmt::join(found, ", ")));
}

LabelMap read_mat_labels(const std::string& path, const std::string& variable, const std::string& field) {
  return decode_mat_labels(read_file_bytes(path), path, variable, field);
}

}  // namespace convoy
