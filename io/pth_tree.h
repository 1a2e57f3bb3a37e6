// What the pickle of a weight file describes: tensors, as views of storages, and everything else, by path.
#pragma once
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/element_type.h"
#include "io/pickle.h"

namespace convoy {

/// A view of a storage, or of an array in the pickle itself. Counts, offset and strides are in elements.
struct PthTensor {
  std::string name;  ///< keys and positions of the containers around it, joined by '/'
  ElementType dtype = ElementType::kF32;
  std::vector<int64_t> shape, strides;
  int64_t offset = 0;
  std::string_view storage;                 ///< its key
  uint64_t storage_bytes = 0;               ///< as the pickle says
  std::string inline_values;                ///< of an array in the pickle, which has no storage
  bool is_inline = false, swapped = false;  ///< swapped: big-endian values
  /// The values are the stored ones with the other sign, with the other sign of the imaginary part: what the negative
  /// and conjugate bits of PyTorch's lazy views say.
  bool negated = false, conjugated = false;
};

/// A value that is no tensor.
struct WeightLeaf {
  std::string name;
  nlohmann::json value;  ///< null, bool, number or text
};

struct PthTree {
  std::vector<PthTensor> tensors;  ///< in the order of the file
  std::vector<WeightLeaf> others;
};

/// Walks the pickle of a container. Throws Error naming file and path for a tensor whose view is impossible or lies
/// outside of its storage, for objects that make no sense, for structures that contain themselves or repeat shared
/// parts absurdly often. The texts of the tree are the document's.
PthTree read_pth_tree(const PickleDocument& document, const std::string& what);

/// One storage as the pickle names it: ('storage', type, key, device, elements[, view]).
struct PthStorage {
  std::string_view key;
  std::optional<ElementType> dtype;  ///< none: untyped
  int64_t elements = 0;              ///< of an untyped one: bytes
  int64_t view_offset = 0;           ///< elements before it in the storage (legacy files)
};

/// Throws Error where the node is no storage.
PthStorage read_pth_storage(const PickleDocument& document, PickleId persistent, const std::string& what);

}  // namespace convoy
