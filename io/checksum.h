// Checksums of files: CRC-64 for checkpoints, CRC-32C for TFRecord framing.
#pragma once
#include <cstddef>
#include <cstdint>

namespace convoy {

/// CRC-64/XZ (ECMA-182 polynomial, reflected, as in the xz file format), eight bytes a step. Pass the value of the
/// earlier bytes as `previous` to go on; the empty input gives 0 and "123456789" gives 0x995DC9BBDF1939FA.
uint64_t crc64(const void* data, size_t bytes, uint64_t previous = 0);

/// CRC-32C (Castagnoli, reflected; RFC 3720): "123456789" gives 0xE3069283.
uint32_t crc32c(const void* data, size_t bytes);

/// The CRC-32C as TFRecord files store it: rotated right by 15 bits, plus a constant.
uint32_t masked_crc32c(const void* data, size_t bytes);

}  // namespace convoy
