#include "io/base64.h"

namespace convoy {

std::string base64(std::string_view bytes) {
  static constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  out.reserve((bytes.size() + 2) / 3 * 4);
  for (size_t i = 0; i < bytes.size(); i += 3) {
    const size_t have = bytes.size() - i;
    const auto byte = [&](size_t k) { return k < have ? static_cast<unsigned char>(bytes[i + k]) : 0u; };
    const unsigned word = byte(0) << 16 | byte(1) << 8 | byte(2);
    out += kDigits[word >> 18];
    out += kDigits[(word >> 12) & 63];
    out += have > 1 ? kDigits[(word >> 6) & 63] : '=';
    out += have > 2 ? kDigits[word & 63] : '=';
  }
  return out;
}

}  // namespace convoy
