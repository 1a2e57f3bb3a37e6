#include "io/safetensors_header.h"

#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "engine/error.h"

namespace convoy {
namespace {

constexpr size_t kMaxRank = 32;
constexpr ElementType kDTypes[] = {ElementType::kF32, ElementType::kF16,  ElementType::kBF16,   ElementType::kF64,
                                   ElementType::kI64, ElementType::kI32,  ElementType::kU8,     ElementType::kI16,
                                   ElementType::kI8,  ElementType::kBool, ElementType::kU16,    ElementType::kU32,
                                   ElementType::kU64, ElementType::kC64,  ElementType::kF8E4M3, ElementType::kF8E5M2};

std::string excerpt(std::string_view text) {
  return std::string(text.substr(0, 120)) + (text.size() > 120 ? "..." : "");
}

// Receives the tokens of {"name": {"dtype": "F32", "shape": [..], "data_offsets": [b, e]}, "__metadata__": {k: v}}.
class HeaderReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  HeaderReader(const std::filesystem::path& path, SafetensorsHeader& header) : path_(path), header_(header) {}

  bool null() override { return unexpected("null"); }
  bool boolean(bool) override { return unexpected("a truth value"); }
  bool number_float(double, const std::string&) override { return unexpected("a number with a fraction"); }
  bool binary(nlohmann::json::binary_t&) override { return unexpected("binary data"); }

  bool number_integer(int64_t value) override { bad("{} has the negative number {}", place(), value); }

  bool number_unsigned(uint64_t value) override {
    if (!in_array_) return unexpected("a number");
    if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) bad("{} has {}, too large", place(), value);
    const size_t limit = field_ == "shape" ? kMaxRank : 2;
    if (numbers_.size() == limit) bad("{} has more than {} numbers", place(), limit);
    numbers_.push_back(static_cast<int64_t>(value));
    return true;
  }

  bool string(std::string& value) override {
    if (depth_ != 2 || in_array_ || (!in_metadata_ && field_ != "dtype")) return unexpected("a text");
    if (in_metadata_) {
      header_.metadata[field_] = value;
      return true;
    }
    for (ElementType dtype : kDTypes) {
      if (value == safetensors_dtype_name(dtype)) {
        header_.entries.back().dtype = dtype;
        return true;
      }
    }
    bad("{} is \"{}\"; known are F64, F32, F16, BF16, F8_E4M3, F8_E5M2, C64, I8 to I64, U8 to U64 and BOOL", place(),
        excerpt(value));
  }

  bool start_object(size_t) override {
    if (depth_ == 2 || in_array_) return unexpected("an object");
    if (++depth_ == 2 && !in_metadata_) {
      header_.entries.emplace_back();
      header_.entries.back().name = tensor_;
    }
    fields_.clear();
    return true;
  }

  bool key(std::string& value) override {
    if (depth_ == 1) {
      if (!names_.insert(value).second) bad("the name \"{}\" comes twice", excerpt(value));
      tensor_ = value;
      field_.clear();
      in_metadata_ = value == "__metadata__";
      return true;
    }
    field_ = value;
    if (!fields_.insert(value).second) bad("{} comes twice", place());
    if (!in_metadata_ && value != "dtype" && value != "shape" && value != "data_offsets")
      bad("{} is unknown; a tensor has dtype, shape and data_offsets", place());
    return true;
  }

  bool end_object() override {
    if (depth_-- == 2 && !in_metadata_) {
      for (const char* needed : {"dtype", "shape", "data_offsets"})
        if (!fields_.count(needed)) bad("tensor \"{}\" has no {}", excerpt(tensor_), needed);
    }
    return true;
  }

  bool start_array(size_t) override {
    if (depth_ != 2 || in_array_ || in_metadata_ || field_ == "dtype") return unexpected("an array");
    in_array_ = true;
    numbers_.clear();
    return true;
  }

  bool end_array() override {
    in_array_ = false;
    auto& entry = header_.entries.back();
    if (field_ == "shape") {
      entry.shape = numbers_;
      return true;
    }
    if (numbers_.size() != 2 || numbers_[0] > numbers_[1]) bad("{} is not a pair [begin, end]", place());
    entry.offset = static_cast<uint64_t>(numbers_[0]);
    entry.bytes = static_cast<uint64_t>(numbers_[1] - numbers_[0]);
    return true;
  }

  bool parse_error(size_t position, const std::string&, const nlohmann::json::exception&) override {
    bad("the header is not valid JSON at byte {}", position + 8);
  }

 private:
  template <class... Args>
  [[noreturn]] void bad(fmt::format_string<Args...> format, Args&&... args) const {
    fail("{}: damaged or not a safetensors file: {}", path_.string(), fmt::format(format, std::forward<Args>(args)...));
  }

  bool unexpected(const char* what) const { bad("{} has {} where none belongs", place(), what); }

  std::string place() const {
    if (depth_ == 0 || tensor_.empty()) return "the header";
    if (field_.empty()) return fmt::format("tensor \"{}\"", excerpt(tensor_));
    return fmt::format("{} of tensor \"{}\"", excerpt(field_), excerpt(tensor_));
  }

  const std::filesystem::path& path_;
  SafetensorsHeader& header_;
  int depth_ = 0;
  bool in_array_ = false, in_metadata_ = false;
  std::string tensor_, field_;
  std::set<std::string> names_, fields_;
  std::vector<int64_t> numbers_;
};

}  // namespace

const char* safetensors_dtype_name(ElementType dtype) {
  switch (dtype) {
    case ElementType::kF32:
      return "F32";
    case ElementType::kF16:
      return "F16";
    case ElementType::kBF16:
      return "BF16";
    case ElementType::kF64:
      return "F64";
    case ElementType::kI64:
      return "I64";
    case ElementType::kI32:
      return "I32";
    case ElementType::kU8:
      return "U8";
    case ElementType::kI16:
      return "I16";
    case ElementType::kI8:
      return "I8";
    case ElementType::kBool:
      return "BOOL";
    case ElementType::kU16:
      return "U16";
    case ElementType::kU32:
      return "U32";
    case ElementType::kU64:
      return "U64";
    case ElementType::kC64:
      return "C64";
    case ElementType::kF8E4M3:
      return "F8_E4M3";
    case ElementType::kF8E5M2:
      return "F8_E5M2";
    case ElementType::kC128:
      break;
  }
  fail("a safetensors file cannot hold elements of type {}", element_name(dtype));
}

int64_t checked_product(const std::vector<int64_t>& shape, int64_t factor, std::string_view what) {
  int64_t product = factor;
  bool empty = false;
  for (int64_t extent : shape) {
    if (extent < 0) fail("{}: the shape has the negative extent {}", what, extent);
    if (extent == 0) {
      empty = true;
    } else if (__builtin_mul_overflow(product, extent, &product)) {
      fail("{}: the shape ({}) overflows 64 bits", what, fmt::join(shape, ", "));
    }
  }
  return empty ? 0 : product;
}

SafetensorsHeader parse_safetensors_header(std::string_view json, const std::filesystem::path& path) {
  SafetensorsHeader header;
  HeaderReader reader(path, header);
  if (json.empty() || json.front() != '{')
    fail("{}: not a safetensors file: the header is no JSON object", path.string());
  nlohmann::json::sax_parse(json.begin(), json.end(), &reader);
  return header;
}

}  // namespace convoy
