#pragma once
#include <string>
#include <string_view>

namespace convoy {

/// RFC 4648 base64 with padding.
std::string base64(std::string_view bytes);

}  // namespace convoy
