// The version of the product; CMake reads it from here.
#pragma once

namespace convoy {

inline constexpr const char* kVersion = "0.1.0";

}  // namespace convoy
