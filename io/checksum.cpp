#include "io/checksum.h"

#include <array>
#include <bit>
#include <cstring>

namespace convoy {
namespace {

template <class Word>
constexpr std::array<Word, 256> byte_table(Word reflected_polynomial) {
  std::array<Word, 256> table{};
  for (int i = 0; i < 256; ++i) {
    Word value = static_cast<Word>(i);
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) ? reflected_polynomial : 0);
    table[i] = value;
  }
  return table;
}

// table[k][b] is the CRC of byte b followed by k zero bytes, so that eight bytes take eight look-ups (slicing by 8).
constexpr std::array<std::array<uint64_t, 256>, 8> make_slices() {
  std::array<std::array<uint64_t, 256>, 8> slices{};
  slices[0] = byte_table<uint64_t>(0xC96C5795D7870F42u);
  for (int k = 1; k < 8; ++k)
    for (int i = 0; i < 256; ++i) slices[k][i] = (slices[k - 1][i] >> 8) ^ slices[0][slices[k - 1][i] & 0xff];
  return slices;
}

constexpr auto kSlices = make_slices();
constexpr auto kCastagnoli = byte_table<uint32_t>(0x82F63B78u);

}  // namespace

uint64_t crc64(const void* data, size_t bytes, uint64_t previous) {
  static_assert(std::endian::native == std::endian::little);
  const auto* p = static_cast<const unsigned char*>(data);
  uint64_t crc = ~previous;
  for (; bytes >= 8; bytes -= 8, p += 8) {
    uint64_t word;
    std::memcpy(&word, p, 8);
    word ^= crc;
    crc = kSlices[7][word & 0xff] ^ kSlices[6][(word >> 8) & 0xff] ^ kSlices[5][(word >> 16) & 0xff] ^
          kSlices[4][(word >> 24) & 0xff] ^ kSlices[3][(word >> 32) & 0xff] ^ kSlices[2][(word >> 40) & 0xff] ^
          kSlices[1][(word >> 48) & 0xff] ^ kSlices[0][word >> 56];
  }
  for (; bytes > 0; --bytes, ++p) crc = (crc >> 8) ^ kSlices[0][(crc ^ *p) & 0xff];
  return ~crc;
}

uint32_t crc32c(const void* data, size_t bytes) {
  const auto* p = static_cast<const unsigned char*>(data);
  uint32_t crc = ~0u;
  for (; bytes > 0; --bytes, ++p) crc = (crc >> 8) ^ kCastagnoli[(crc ^ *p) & 0xff];
  return ~crc;
}

uint32_t masked_crc32c(const void* data, size_t bytes) {
  return std::rotr(crc32c(data, bytes), 15) + 0xa282ead8u;
}

}  // namespace convoy
