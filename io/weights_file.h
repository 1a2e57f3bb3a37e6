// One front for every file that holds weights: .pth and .pt (any container), pickles, .safetensors, and checkpoints of
// this program. What a file is is seen from its content, not from its name.
#pragma once
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "io/pth_tree.h"
#include "io/safetensors.h"

namespace convoy {

struct WeightInfo {
  std::string name;  ///< keys and positions of the containers around it, joined by '/'
  ElementType dtype = ElementType::kF32;
  std::vector<int64_t> shape;
};

class WeightsFile {
 public:
  /// Opens and validates; values are not read. `path`: a file, or a directory step-N, or a run's directory (its best
  /// checkpoint, else its newest). Throws Error naming file, offset and what was found for anything damaged, unknown or
  /// refused, and where two tensors have one name.
  explicit WeightsFile(const std::filesystem::path& path);
  ~WeightsFile();
  WeightsFile(WeightsFile&&) noexcept;

  /// The file, or the directory step-N that was taken.
  const std::filesystem::path& path() const { return path_; }
  const std::string& format() const { return format_; }  ///< "pth (zip)", "safetensors", "checkpoint", ...
  const std::vector<WeightInfo>& tensors() const { return tensors_; }
  const std::vector<WeightLeaf>& others() const { return others_; }  ///< numbers, texts, ... of a .pth
  const SafetensorsMetadata& metadata() const { return metadata_; }  ///< of a .safetensors

  /// Tensor i with its values in row-major order; they may be borrowed from this object. Throws Error where the file
  /// shows damage only now.
  NamedTensor tensor(size_t i) const;

 private:
  class Source;
  class PthSource;
  class SafetensorsSource;
  void check_names() const;

  std::filesystem::path path_;
  std::string format_;
  std::unique_ptr<Source> source_;
  std::vector<WeightInfo> tensors_;
  std::vector<WeightLeaf> others_;
  SafetensorsMetadata metadata_;
};

}  // namespace convoy
