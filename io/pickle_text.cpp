#include "io/pickle_text.h"

#include <charconv>
#include <cstdint>

namespace convoy {
namespace {

void append_utf8(std::string& text, uint32_t point) {
  if (point < 0x80) {
    text += static_cast<char>(point);
  } else if (point < 0x800) {
    text += static_cast<char>(0xc0 | point >> 6);
    text += static_cast<char>(0x80 | (point & 0x3f));
  } else if (point < 0x10000) {
    text += static_cast<char>(0xe0 | point >> 12);
    text += static_cast<char>(0x80 | (point >> 6 & 0x3f));
    text += static_cast<char>(0x80 | (point & 0x3f));
  } else {
    text += static_cast<char>(0xf0 | (point >> 18 & 7));
    text += static_cast<char>(0x80 | (point >> 12 & 0x3f));
    text += static_cast<char>(0x80 | (point >> 6 & 0x3f));
    text += static_cast<char>(0x80 | (point & 0x3f));
  }
}

std::optional<uint32_t> hexadecimal(std::string_view text, size_t at, size_t digits) {
  uint32_t value = 0;
  if (at > text.size() || text.size() - at < digits) return std::nullopt;
  const char* begin = text.data() + at;
  const auto [stop, error] = std::from_chars(begin, begin + digits, value, 16);
  if (error != std::errc() || stop != begin + digits) return std::nullopt;
  return value;
}

}  // namespace

std::optional<std::string> unquoted_text(std::string_view text) {
  if (text.size() < 2 || text.front() != text.back() || (text.front() != '\'' && text.front() != '"'))
    return std::nullopt;
  text = text.substr(1, text.size() - 2);
  constexpr std::string_view kFrom = "\\'\"nrtabfv", kTo = "\\'\"\n\r\t\a\b\f\v";
  std::string result;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\') {
      result += text[i];
      continue;
    }
    if (++i == text.size()) return std::nullopt;
    if (text[i] == 'x') {
      const auto value = hexadecimal(text, i + 1, 2);
      if (!value) return std::nullopt;
      result += static_cast<char>(*value);
      i += 2;
      continue;
    }
    const size_t known = kFrom.find(text[i]);
    if (known == std::string_view::npos) return std::nullopt;
    result += kTo[known];
  }
  return result;
}

std::optional<std::string> raw_unicode_text(std::string_view text) {
  std::string result;
  for (size_t i = 0; i < text.size(); ++i) {
    const char kind = text[i] == '\\' && i + 1 < text.size() ? text[i + 1] : '\0';
    const size_t digits = kind == 'u' ? 4 : kind == 'U' ? 8 : 0;
    if (digits == 0) {
      append_utf8(result, static_cast<uint8_t>(text[i]));
      continue;
    }
    const auto point = hexadecimal(text, i + 2, digits);
    if (!point) return std::nullopt;
    append_utf8(result, *point);
    i += digits + 1;
  }
  return result;
}

std::optional<std::string> binary_of_decimal(std::string_view digits) {
  const bool negative = digits.starts_with('-');
  std::string bytes(1, '\0');
  for (char digit : digits.substr(negative ? 1 : 0)) {
    if (digit < '0' || digit > '9') return std::nullopt;
    int carry = digit - '0';
    for (char& byte : bytes) {
      carry += static_cast<uint8_t>(byte) * 10;
      byte = static_cast<char>(carry & 0xff);
      carry >>= 8;
    }
    if (carry > 0) bytes += static_cast<char>(carry);
  }
  if (bytes.back() & 0x80) bytes += '\0';
  if (!negative) return bytes;
  int carry = 1;
  for (char& byte : bytes) {
    carry += static_cast<uint8_t>(~byte);
    byte = static_cast<char>(carry & 0xff);
    carry >>= 8;
  }
  while (bytes.size() > 1 && bytes.back() == '\xff' && (bytes[bytes.size() - 2] & 0x80)) bytes.pop_back();
  return bytes;
}

}  // namespace convoy
