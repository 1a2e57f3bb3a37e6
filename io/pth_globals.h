// The Python classes and functions that a weight file may name, and what each means for reading it.
#pragma once
#include <cstdint>
#include <optional>
#include <string_view>

#include "io/element_type.h"

namespace convoy {

enum class PthMeaning : uint8_t {
  kDict,              ///< a kind of dict: arguments may hold (pairs or a dict)
  kDefaultDict,       ///< a dict whose first argument is what makes defaults
  kSequence,          ///< list, tuple, set, torch.Size, ...: the first argument holds the items
  kTensor,            ///< (storage, offset, size, stride, ...)
  kTensorOfType,      ///< the same for an untyped storage, with the element type as seventh argument
  kParameter,         ///< (tensor, ...)
  kFromType,          ///< (function, class, its arguments, state)
  kStorage,           ///< a kind of storage with elements of `dtype`
  kUntypedStorage,    ///< a storage of bytes
  kDType,             ///< an element type
  kText,              ///< an object that its arguments describe: torch.device, paths
  kEncode,            ///< (text, encoding): bytes
  kBytes,             ///< bytes, bytearray
  kComplex,           ///< (real, imaginary)
  kNumpyScalar,       ///< (dtype, bytes)
  kNumpyDType,        ///< (name, ...), state with the byte order
  kNumpyReconstruct,  ///< an array, all of it in the state
  kNumpyFromBuffer,   ///< (bytes, dtype, shape, order)
  kReconstructor,     ///< (class, base, value of the base): an object of protocols 0 and 1
  kAttributes,        ///< an object whose state holds its attributes by name
  kOpaque,            ///< dates and the like: named, not read
};

struct PthGlobal {
  PthMeaning meaning = PthMeaning::kOpaque;
  std::optional<ElementType> dtype;
};

/// nullptr for what no weight file may name.
const PthGlobal* find_pth_global(std::string_view module_and_name);

/// For PickleFilter (io/pickle.h): throws Error for what find_pth_global does not know, naming it and what to do.
/// `what` is the file.
void admit_pth_global(std::string_view what, std::string_view module, std::string_view name);

}  // namespace convoy
