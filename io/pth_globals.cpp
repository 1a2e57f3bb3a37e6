#include "io/pth_globals.h"

#include <map>
#include <string>

#include "engine/error.h"

namespace convoy {
namespace {

using Meaning = PthMeaning;

void add_builtins(std::map<std::string, PthGlobal, std::less<>>& table) {
  for (const std::string module : {"builtins", "__builtin__"}) {
    for (const char* name : {"list", "tuple", "set", "frozenset"})
      table[module + "." + name] = {Meaning::kSequence, {}};
    for (const char* name : {"bytes", "bytearray"}) table[module + "." + name] = {Meaning::kBytes, {}};
    for (const char* name : {"int", "long", "float", "bool", "str", "unicode", "object", "slice", "range"})
      table[module + "." + name] = {Meaning::kOpaque, {}};
    table[module + ".dict"] = {Meaning::kDict, {}};
    table[module + ".complex"] = {Meaning::kComplex, {}};
  }
  table["collections.OrderedDict"] = table["collections.Counter"] = {Meaning::kDict, {}};
  table["collections.defaultdict"] = {Meaning::kDefaultDict, {}};
  table["collections.deque"] = {Meaning::kSequence, {}};
  table["_codecs.encode"] = {Meaning::kEncode, {}};
  table["copyreg._reconstructor"] = table["copy_reg._reconstructor"] = {Meaning::kReconstructor, {}};
  for (const char* name : {"argparse.Namespace", "types.SimpleNamespace"}) table[name] = {Meaning::kAttributes, {}};
  for (const char* name : {"easydict.EasyDict", "yacs.config.CfgNode", "addict.addict.Dict", "addict.Dict",
                           "mmcv.utils.config.ConfigDict", "mmengine.config.config.ConfigDict"})
    table[name] = {Meaning::kDict, {}};
  for (const std::string module : {"pathlib.", "pathlib._local."})
    for (const char* name : {"Path", "PosixPath", "WindowsPath", "PurePath", "PurePosixPath", "PureWindowsPath"})
      table[module + name] = {Meaning::kText, {}};
  for (const char* name : {"datetime.datetime", "datetime.date", "datetime.time", "datetime.timedelta",
                           "datetime.timezone", "decimal.Decimal", "fractions.Fraction", "uuid.UUID"})
    table[name] = {Meaning::kOpaque, {}};
}

void add_numpy(std::map<std::string, PthGlobal, std::less<>>& table) {
  for (const std::string module : {"numpy.core.multiarray", "numpy._core.multiarray"}) {
    table[module + ".scalar"] = {Meaning::kNumpyScalar, {}};
    table[module + "._reconstruct"] = {Meaning::kNumpyReconstruct, {}};
  }
  for (const char* name : {"numpy.core.numeric._frombuffer", "numpy._core.numeric._frombuffer"})
    table[name] = {Meaning::kNumpyFromBuffer, {}};
  table["numpy.dtype"] = {Meaning::kNumpyDType, {}};
  for (const char* name : {"numpy.ndarray", "numpy.recarray", "numpy.record", "numpy.rec.recarray", "numpy.rec.record",
                           "numpy.core.records.recarray", "numpy.core.records.record"})
    table[name] = {Meaning::kOpaque, {}};
  for (const char* name : {"bool_", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16",
                           "float32", "float64", "str_", "bytes_", "void", "datetime64", "timedelta64"})
    table[std::string("numpy.") + name] = {Meaning::kOpaque, {}};
}

void add_torch(std::map<std::string, PthGlobal, std::less<>>& table) {
  const std::string utils = "torch._utils.";
  table[utils + "_rebuild_tensor"] = table[utils + "_rebuild_tensor_v2"] = {Meaning::kTensor, {}};
  table[utils + "_rebuild_tensor_v3"] = {Meaning::kTensorOfType, {}};
  table[utils + "_rebuild_parameter"] = table[utils + "_rebuild_parameter_with_state"] = {Meaning::kParameter, {}};
  table["torch._tensor._rebuild_from_type_v2"] = table["torch._tensor._rebuild_from_type"] = {Meaning::kFromType, {}};
  for (const char* name : {"torch.nn.parameter.Parameter", "torch.nn.Parameter"})
    table[name] = {Meaning::kParameter, {}};
  for (const char* name : {"torch.Tensor", "torch._tensor.Tensor", "torch.nn.parameter.Buffer"})
    table[name] = {Meaning::kOpaque, {}};
  table["torch.Size"] = {Meaning::kSequence, {}};
  for (const char* name : {"torch.device", "torch.torch_version.TorchVersion"}) table[name] = {Meaning::kText, {}};
  for (const char* name : {"torch.storage.UntypedStorage", "torch.UntypedStorage", "torch.storage._UntypedStorage"})
    table[name] = {Meaning::kUntypedStorage, {}};

  const std::pair<const char*, ElementType> storages[] = {
      {"Float", ElementType::kF32},     {"Double", ElementType::kF64},       {"Half", ElementType::kF16},
      {"BFloat16", ElementType::kBF16}, {"Long", ElementType::kI64},         {"Int", ElementType::kI32},
      {"Short", ElementType::kI16},     {"Char", ElementType::kI8},          {"Byte", ElementType::kU8},
      {"Bool", ElementType::kBool},     {"ComplexFloat", ElementType::kC64}, {"ComplexDouble", ElementType::kC128}};
  for (const auto& [name, dtype] : storages)
    for (const std::string module : {"torch.", "torch.cuda."}) {
      table[module + name + "Storage"] = {Meaning::kStorage, dtype};
      table[module + name + "Tensor"] = {Meaning::kDType, dtype};  // older files have these for element types
    }
  const std::pair<const char*, ElementType> dtypes[] = {
      {"float32", ElementType::kF32},       {"float", ElementType::kF32},     {"float64", ElementType::kF64},
      {"double", ElementType::kF64},        {"float16", ElementType::kF16},   {"half", ElementType::kF16},
      {"bfloat16", ElementType::kBF16},     {"int64", ElementType::kI64},     {"long", ElementType::kI64},
      {"int32", ElementType::kI32},         {"int", ElementType::kI32},       {"int16", ElementType::kI16},
      {"short", ElementType::kI16},         {"int8", ElementType::kI8},       {"uint8", ElementType::kU8},
      {"bool", ElementType::kBool},         {"uint16", ElementType::kU16},    {"uint32", ElementType::kU32},
      {"uint64", ElementType::kU64},        {"complex64", ElementType::kC64}, {"cfloat", ElementType::kC64},
      {"complex128", ElementType::kC128},   {"cdouble", ElementType::kC128},  {"float8_e4m3fn", ElementType::kF8E4M3},
      {"float8_e5m2", ElementType::kF8E5M2}};
  for (const auto& [name, dtype] : dtypes) table[std::string("torch.") + name] = {Meaning::kDType, dtype};
}

const std::map<std::string, PthGlobal, std::less<>>& globals() {
  static const auto table = [] {
    std::map<std::string, PthGlobal, std::less<>> all;
    add_builtins(all);
    add_numpy(all);
    add_torch(all);
    return all;
  }();
  return table;
}

/// Why a name is refused and what its owner can do.
std::string advice(const std::string& name) {
  constexpr const char* kSaveTensors = "convert it to a plain tensor before torch.save";
  if (name.find("qtensor") != std::string::npos || name.starts_with("torch.Q") || name.starts_with("torch.q"))
    return fmt::format("the file holds a quantized tensor; {}", kSaveTensors);
  if (name.find("sparse") != std::string::npos) return fmt::format("the file holds a sparse tensor; {}", kSaveTensors);
  if (name.starts_with("torch._utils._rebuild") || name.starts_with("torch.float8"))
    return fmt::format("the file holds a tensor of a kind that is not read; {}", kSaveTensors);
  if (name == "torch.storage._load_from_bytes")
    return "the tensors were stored by pickle.dump; store them by torch.save";
  return "weight files are read without Python and nothing in them is run; save model.state_dict() (tensors, numbers "
         "and texts) rather than whole objects";
}

}  // namespace

const PthGlobal* find_pth_global(std::string_view module_and_name) {
  const auto found = globals().find(module_and_name);
  return found == globals().end() ? nullptr : &found->second;
}

void admit_pth_global(std::string_view what, std::string_view module, std::string_view name) {
  const std::string full = fmt::format("{}.{}", module, name);
  if (!find_pth_global(full)) fail("{}: refused: it names {}: {}", what, full, advice(full));
}

}  // namespace convoy
