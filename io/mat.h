// MATLAB files of version 5 (MAT-file level 5, compressed or not), as far as label maps need them.
#pragma once
#include <cstdint>
#include <span>
#include <string>

#include "io/image.h"

namespace convoy {

/// The two-dimensional numeric array at `field` of the structure `variable` as a label map (H,W), its column-major
/// order turned into rows. Any numeric class whose values are whole numbers of 32 bits. Throws Error naming the file
/// and what was found: another format (version 4, version 7.3 = HDF5), damage, no such variable or field, a complex,
/// sparse or empty array. Memory is bounded by the image size limit (kMaxImagePixels) and the file's size.
LabelMap read_mat_labels(const std::string& path, const std::string& variable, const std::string& field);

/// The same for bytes already in memory; `name` stands for the file in messages.
LabelMap decode_mat_labels(std::span<const uint8_t> bytes, const std::string& name, const std::string& variable,
                           const std::string& field);

}  // namespace convoy
