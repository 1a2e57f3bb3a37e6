// Class maps made visible, and written to files.
#pragma once
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "io/dataset.h"

namespace convoy {

/// The classes' colours (H,W,3); ignored pixels are black.
Image color_picture(const LabelMap& labels, const std::vector<Color>& palette);
/// The image with its classes' colours over it: (1 - alpha) image + alpha colour; ignored pixels show the image.
Image overlay_picture(const Image& image, const LabelMap& labels, const std::vector<Color>& palette,
                      double alpha = 0.5);
/// The image halved in size until its width is at most `width`: small enough for a report.
Image shrunk(const Image& image, int64_t width);

/// For each of the paths (relative, or taken for it) one without its ending, all different: a/x.png and b/x.png keep
/// their folders, x.jpg and x.png of one folder their endings. None leads out of the folder that it is put into.
std::vector<std::string> output_names(const std::vector<std::filesystem::path>& paths);

/// Writes predictions into a folder, which it makes, as <name>_<kind>.png of each kind asked for:
///   index    gray, 8 bits (16 where a value is above 255), the class of each pixel, or its value in the data set's
///   label
///            files
///   palette  the class with the classes' colours in the file's palette (RGB beyond 256 classes)
///   overlay  RGB, the colours over the image
class PictureWriter {
 public:
  struct Options {
    std::vector<std::string> kinds = kinds_known();
    double alpha = 0.5;        ///< of the colours in the overlay
    bool file_values = false;  ///< index: ClassTable::file_values instead of classes
  };
  static const std::vector<std::string>& kinds_known();

  PictureWriter(std::filesystem::path directory, ClassTable classes, Options options);
  /// Throws Error naming an output and an input that are one file, by whatever links: results never replace what they
  /// were made of. To be called before the first write(); `names` are those of all outputs.
  void require_apart(const std::vector<std::string>& names, const std::vector<std::filesystem::path>& inputs) const;
  /// Makes the folder of the files that write() will write for `name`. Throws Error where it cannot be made or a file's
  /// name is too long for the file system.
  void prepare(const std::string& name) const;
  /// Returns the files by kind. `name` may have folders in it. Throws Error naming the file that cannot be written.
  std::map<std::string, std::string> write(const std::string& name, const Image& image, const LabelMap& labels) const;

 private:
  std::string file_of(const std::string& name, const std::string& kind) const;
  void write_index(const std::string& file, const LabelMap& labels) const;

  std::filesystem::path directory_;
  ClassTable classes_;
  Options options_;
};

}  // namespace convoy
