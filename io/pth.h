// PyTorch's weight files (.pth, .pt), read without Python: the zip container of torch.save since 1.6, the legacy one
// before it, and plain pickles.
#pragma once
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "io/file.h"
#include "io/pth_tree.h"
#include "io/safetensors.h"
#include "io/zip.h"

namespace convoy {

/// A file, mapped. Opening it reads its pickle and checks every tensor's view against its storage; values are read when
/// they are asked for. Nothing in the file is executed, memory stays within a multiple of what the pickle has.
class PthFile {
 public:
  /// Throws Error naming the file, the offset and what was found for anything damaged, refused or unknown.
  explicit PthFile(const std::filesystem::path& path);
  PthFile(const PthFile&) = delete;
  PthFile& operator=(const PthFile&) = delete;

  const std::vector<PthTensor>& tensors() const { return tree_.tensors; }
  const std::vector<WeightLeaf>& others() const { return tree_.others; }
  const char* container() const { return container_; }  ///< "zip", "legacy", "pickle"

  /// The values in row-major order: borrowed from the map where they lie so (valid while this object lives), else
  /// owned. Throws Error where the bytes of a zip container differ from their checksum.
  NamedTensor tensor(const PthTensor& tensor) const;

 private:
  struct Storage {
    std::string_view bytes;
    const ZipEntry* entry = nullptr;
    mutable bool checked = false;
  };

  std::string_view content() const { return {reinterpret_cast<const char*>(file_.data()), file_.size()}; }
  void open_zip();
  void open_legacy(size_t position);
  void find_zip_storages(const std::string& prefix);
  void find_legacy_storages(const PickleDocument& keys, size_t position);
  void check_sizes() const;

  std::string what_;  ///< the path, for messages
  MappedFile file_;
  std::unique_ptr<ZipDirectory> zip_;
  const char* container_ = "pickle";
  PickleDocument document_;
  PthTree tree_;
  std::map<std::string_view, Storage> storages_;  ///< by key
  bool swapped_ = false;                          ///< written on a big-endian machine
};

/// Writes what torch.load(path, weights_only=True) reads as an OrderedDict: zip container, protocol 2, contiguous
/// tensors in the given order. Throws Error on duplicate names and when writing fails.
void write_pth(const std::filesystem::path& path, const std::vector<NamedTensor>& tensors);

}  // namespace convoy
