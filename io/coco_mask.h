// Masks of COCO annotations: polygons and run lengths as pixels. Polygons cover the pixels that the reference tools
// give them, pixel for pixel: the outline is walked on a grid five times as fine, and every column of pixels is filled
// between the heights where the outline crosses its middle.
#pragma once
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace convoy {

/// Pixels first..last-1 of a mask whose pixels are counted column by column: pixel (y, x) is x * height + y.
struct PixelRange {
  int64_t first = 0, last = 0;
};

/// A closed polygon x0 y0 x1 y1 ... of at least three points, pixel (y, x) reaching from (x, y) to (x + 1, y + 1).
/// Ranges in ascending order. Coordinates have to be finite and below 2^20 in magnitude.
std::vector<PixelRange> polygon_ranges(std::span<const double> points, int64_t height, int64_t width);

/// Run lengths, off and on in turns beginning with off. Throws Error unless they sum up to height * width.
std::vector<PixelRange> run_length_ranges(std::span<const uint32_t> counts, int64_t height, int64_t width);

/// The packed form of run lengths: five bits a character, the third and later ones as differences to the last but one.
/// Throws Error for characters and values that the form does not have.
std::vector<uint32_t> unpack_run_lengths(std::string_view text);

}  // namespace convoy
