// Masks whose colours, not whose pixel values, say what the classes are.
#pragma once
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "io/dataset.h"

namespace convoy {

/// A line of a text file: a name, or a name followed by red, green and blue.
struct NamedColor {
  std::string name;  ///< words joined by single blanks
  std::optional<Color> color;
  int64_t number = 0;  ///< of the line
};

/// The lines that are not empty. Throws Error where the file cannot be read, naming the line
/// where it is not UTF-8 or a colour is not from 0 to 255.
std::vector<NamedColor> read_named_colors(const std::filesystem::path& path);

/// A format that reads RGB and palette PNGs by their colours and gray ones by their values. `table` is "classes", for
/// the colours of the classes and of what is ignored, or a file, relative to the data set's folder, with lines `CLASS R
/// G B` and `ignore R G B`; a class may have several colours. Throws Error: no such file, unknown classes, one colour
/// for two classes. Its read() throws for a colour that is not in the table (pixel, colour, the nearest known).
std::shared_ptr<const LabelFormat> color_masks(const DatasetParts& parts, const std::string& table);

}  // namespace convoy
