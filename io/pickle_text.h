// Texts and numbers of pickle protocol 0, which are written as Python source has them.
#pragma once
#include <optional>
#include <string>
#include <string_view>

namespace convoy {

/// 'text' or "text" with Python's escapes, without its quotes; nullopt where it is none.
std::optional<std::string> unquoted_text(std::string_view text);

/// Latin-1 with \uXXXX and \UXXXXXXXX, as UTF-8; nullopt for an escape that is none.
std::optional<std::string> raw_unicode_text(std::string_view text);

/// Little-endian two's complement of decimal digits, as short as it can be; nullopt where they are none. The time grows
/// with the square of the digits.
std::optional<std::string> binary_of_decimal(std::string_view digits);

}  // namespace convoy
