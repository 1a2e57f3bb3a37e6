#include "io/pth_tree.h"

#include <bit>
#include <cstring>
#include <map>
#include <set>

#include "engine/error.h"
#include "io/pth_globals.h"
#include "io/safetensors_header.h"
#include "io/tensor_values.h"

namespace convoy {
namespace {

constexpr int kMaxDepth = 128;
constexpr size_t kMaxRank = 64;

std::string excerpt(std::string_view text) {
  return std::string(text.substr(0, 120)) + (text.size() > 120 ? "..." : "");
}

class TreeReader {
 public:
  TreeReader(const PickleDocument& document, const std::string& what)
      : document_(document),
        what_(what),
        visits_left_(100'000 + 8 * document.bytes()),
        leaves_left_(10'000 + document.bytes()),
        name_bytes_left_((1 << 20) + 64 * document.bytes()),
        inline_bytes_left_((1 << 16) + 4 * document.bytes()) {}

  PthTree read() {
    visit(document_.root_id(), 0);
    return std::move(tree_);
  }

 private:
  template <class... Args>
  [[noreturn]] void bad(fmt::format_string<Args...> format, Args&&... args) const {
    fail("{}: {}: {}", what_, path_.empty() ? "the outermost value" : "\"" + excerpt(path_) + "\"",
         fmt::format(format, std::forward<Args>(args)...));
  }

  const PickleNode& node(PickleId id) const { return document_[id]; }
  const PthGlobal* meaning(const PickleNode& object) const {
    if (object.callable == kNoPickle) return nullptr;
    return find_pth_global(node(object.callable).text);
  }
  bool is(PickleId id, PickleKind kind) const { return id != kNoPickle && node(id).kind == kind; }
  /// Argument i of a call; throws where there are fewer.
  PickleId argument(const PickleNode& object, size_t i) const {
    const auto& items = node(object.args).items;
    if (i >= items.size()) bad("{} has {} arguments", node(object.callable).text, items.size());
    return items[i];
  }
  int64_t integer(PickleId id) const {
    if (!is(id, PickleKind::kInt)) bad("a whole number is missing");
    return node(id).integer;
  }
  /// Sizes and strides: a tuple, list or torch.Size of whole numbers that are not negative.
  std::vector<int64_t> integers(PickleId id) const {
    const PickleNode* sequence = &node(id);
    const PthGlobal* global = sequence->kind == PickleKind::kObject ? meaning(*sequence) : nullptr;
    if (global && global->meaning == PthMeaning::kSequence) sequence = &node(argument(*sequence, 0));
    if (sequence->kind != PickleKind::kTuple && sequence->kind != PickleKind::kList)
      bad("the shape or strides of a tensor are no list");
    if (sequence->items.size() > kMaxRank) bad("a tensor of {} dimensions", sequence->items.size());
    std::vector<int64_t> values;
    for (PickleId item : sequence->items) {
      values.push_back(integer(item));
      if (values.back() < 0) bad("the shape or strides of a tensor have {}", values.back());
    }
    return values;
  }

  /// Adds a name to the path for the time of a visit.
  void visit_child(std::string_view name, PickleId id, int depth) {
    const size_t length = path_.size();
    if (length > 0) path_ += '/';
    path_ += name;
    visit(id, depth + 1);
    path_.resize(length);
  }

  void visit(PickleId id, int depth) {
    if (depth > kMaxDepth) bad("nested deeper than {}, or contains itself", kMaxDepth);
    if (visits_left_-- == 0) bad("the file repeats shared parts too often");
    const PickleNode& value = node(id);
    switch (value.kind) {
      case PickleKind::kTuple:
      case PickleKind::kList:
      case PickleKind::kSet:
        return visit_items(value.items, depth);
      case PickleKind::kDict:
        return visit_pairs(value.items, depth);
      case PickleKind::kObject:
        return visit_object(value, depth);
      case PickleKind::kPersistent:
        return leaf("<storage " + std::string(read_pth_storage(document_, id, what_).key) + ">");
      default:
        return leaf(scalar(value));
    }
  }
  void visit_items(const std::vector<PickleId>& items, int depth) {
    for (size_t i = 0; i < items.size(); ++i) visit_child(std::to_string(i), items[i], depth);
  }
  /// As in Python the last of several values of a key counts, at the place of the first.
  void visit_pairs(const std::vector<PickleId>& items, int depth) {
    std::map<std::string, size_t> last;
    std::vector<std::string> names;
    for (size_t i = 0; i + 1 < items.size(); i += 2) {
      names.push_back(key_name(items[i]));
      // 0 and "0" are two keys
      last[(is(items[i], PickleKind::kString) ? "s" : "o") + names.back()] = i + 1;
    }
    for (size_t i = 0; i + 1 < items.size(); i += 2) {
      const auto found = last.find((is(items[i], PickleKind::kString) ? "s" : "o") + names[i / 2]);
      if (found == last.end()) continue;
      const PickleId value = items[found->second];
      last.erase(found);
      visit_child(names[i / 2], value, depth);
    }
  }
  std::string key_name(PickleId id) {
    const PickleNode& key = node(id);
    take_names(key.text.size() + 64);
    if (key.kind != PickleKind::kTuple) {
      const nlohmann::json value = scalar(key);
      return value.is_string() ? value.get<std::string>() : value.dump();
    }
    std::string name = "(";
    for (size_t i = 0; i < key.items.size() && i < 16; ++i) {
      const PickleNode& part = node(key.items[i]);
      name += (i ? ", " : "") + (part.kind == PickleKind::kString ? excerpt(part.text) : scalar(part).dump());
    }
    return name + ")";
  }

  void leaf(nlohmann::json value) {
    take_leaf();
    tree_.others.push_back({path_, std::move(value)});
  }
  void take_leaf() {
    if (leaves_left_-- == 0) bad("the file repeats shared values too often");
    take_names(path_.size());
  }
  void take_names(size_t bytes) {
    if (name_bytes_left_ < bytes) bad("the file repeats long names too often");
    name_bytes_left_ -= bytes;
  }

  nlohmann::json scalar(const PickleNode& value) const {
    switch (value.kind) {
      case PickleKind::kNone:
        return nullptr;
      case PickleKind::kBool:
        return value.integer != 0;
      case PickleKind::kInt:
        return value.integer;
      case PickleKind::kFloat:
        return value.real;
      case PickleKind::kString:
      case PickleKind::kGlobal:
        return value.text;
      case PickleKind::kBigInt:
        return fmt::format("<whole number of {} bytes>", value.text.size());
      case PickleKind::kBytes:
        return fmt::format("<{} bytes>", value.text.size());
      case PickleKind::kObject:
        return fmt::format("<{}>", node(value.callable).text);
      default:
        return "<object>";
    }
  }

  void visit_object(const PickleNode& object, int depth) {
    const PthGlobal* global = meaning(object);
    if (!global) bad("an object without class");
    switch (global->meaning) {
      case PthMeaning::kDict:
      case PthMeaning::kDefaultDict:
        return visit_dict_object(object, global->meaning == PthMeaning::kDefaultDict ? 1 : 0, depth);
      case PthMeaning::kSequence:
        if (!node(object.args).items.empty()) visit(argument(object, 0), depth + 1);
        return visit_items(object.items, depth);
      case PthMeaning::kTensor:
      case PthMeaning::kTensorOfType:
        return tensor(object, *global);
      case PthMeaning::kParameter:
        return visit(argument(object, 0), depth + 1);
      case PthMeaning::kFromType:
        return visit_from_type(object);
      case PthMeaning::kText:
        return leaf(text_of(object));
      case PthMeaning::kNumpyScalar:
        return leaf(numpy_scalar(object));
      case PthMeaning::kNumpyReconstruct:
        return numpy_reconstructed(object);
      case PthMeaning::kNumpyFromBuffer:
        return numpy_array(argument(object, 2), argument(object, 1), node(argument(object, 3)).text == "F",
                           argument(object, 0));
      case PthMeaning::kReconstructor:
        return visit_reconstructed(object, depth);
      case PthMeaning::kAttributes:
        if (object.state == kNoPickle) return;
        if (!is(object.state, PickleKind::kDict)) return leaf(scalar(object));
        return visit(object.state, depth + 1);
      default:
        return leaf(scalar(object));
    }
  }

  void visit_dict_object(const PickleNode& object, size_t first_argument, int depth) {
    const auto& args = node(object.args).items;
    std::vector<PickleId> pairs;
    if (args.size() > first_argument) {
      const PickleNode& given = node(args[first_argument]);
      if (given.kind == PickleKind::kDict) {
        pairs = given.items;
      } else if (given.kind == PickleKind::kList || given.kind == PickleKind::kTuple) {
        for (PickleId pair : given.items) {
          if (node(pair).items.size() != 2) bad("a dict is made of something else than pairs");
          pairs.insert(pairs.end(), node(pair).items.begin(), node(pair).items.end());
        }
      } else {
        bad("a dict is made of something else than pairs");
      }
    }
    if (object.pairs) pairs.insert(pairs.end(), object.items.begin(), object.items.end());
    visit_pairs(pairs, depth);
  }

  void visit_from_type(const PickleNode& object) {
    const PickleId function = argument(object, 0), args = argument(object, 2);
    const PthGlobal* global = is(function, PickleKind::kGlobal) ? find_pth_global(node(function).text) : nullptr;
    if (!global || (global->meaning != PthMeaning::kTensor && global->meaning != PthMeaning::kTensorOfType) ||
        !is(args, PickleKind::kTuple))
      bad("a tensor of a class of its own, made in a way that is not read");
    PickleNode call;
    call.kind = PickleKind::kObject;
    call.callable = function;
    call.args = args;
    tensor(call, *global);
  }

  void visit_reconstructed(const PickleNode& object, int depth) {
    const PickleId cls = argument(object, 0);
    const PthGlobal* global = is(cls, PickleKind::kGlobal) ? find_pth_global(node(cls).text) : nullptr;
    if (!global) bad("an object without class");
    if (global->meaning == PthMeaning::kAttributes && is(object.state, PickleKind::kDict))
      return visit(object.state, depth + 1);
    if (global->meaning == PthMeaning::kDict) return visit(argument(object, 2), depth + 1);
    leaf(fmt::format("<{}>", node(cls).text));
  }

  /// "cuda:0" of torch.device, "a/b" of a path.
  std::string text_of(const PickleNode& object) const {
    const bool is_path = node(object.callable).text.starts_with("pathlib");
    std::string text;
    for (PickleId part : node(object.args).items) {
      const PickleNode& value = node(part);
      if (!text.empty() && text != "/") text += is_path ? "/" : ":";
      text += value.kind == PickleKind::kString ? std::string(value.text) : scalar(value).dump();
      if (text.size() > 4096) bad("a path or device of more than 4096 bytes");
    }
    return text;
  }

  /// The tensors' view is checked against what the pickle says of the storage; the container knows the storage's bytes.
  void tensor(const PickleNode& call, const PthGlobal& global) {
    take_leaf();
    if (!is(argument(call, 0), PickleKind::kPersistent)) bad("a tensor without storage");
    const PthStorage storage = read_pth_storage(document_, argument(call, 0), what_);
    PthTensor tensor{.name = path_, .storage = storage.key};
    tensor.offset = integer(argument(call, 1));
    tensor.shape = integers(argument(call, 2));
    tensor.strides = integers(argument(call, 3));
    take_names(sizeof(PthTensor) + 16 * tensor.shape.size());
    if (global.meaning == PthMeaning::kTensorOfType) {
      const PickleId type = argument(call, 6);
      const PthGlobal* named = is(type, PickleKind::kGlobal) ? find_pth_global(node(type).text) : nullptr;
      if (!named || named->meaning != PthMeaning::kDType) bad("a tensor without element type");
      tensor.dtype = *named->dtype;
    } else {
      if (!storage.dtype) bad("a tensor in a storage without element type");
      tensor.dtype = *storage.dtype;
    }
    const int64_t unit = storage.dtype ? static_cast<int64_t>(element_size(*storage.dtype)) : 1;
    if (__builtin_add_overflow(tensor.offset, storage.view_offset, &tensor.offset) || tensor.offset < 0)
      bad("the tensor begins at element {} of its storage", tensor.offset);
    tensor.storage_bytes =
        static_cast<uint64_t>(checked_product({storage.elements, unit}, 1, what_ + ": " + excerpt(path_)));
    check_view(tensor, storage);
    const auto& args = node(call.args).items;
    const size_t metadata = global.meaning == PthMeaning::kTensorOfType ? 7 : 6;
    if (args.size() > metadata) view_bits(args[metadata], tensor);
    tree_.tensors.push_back(std::move(tensor));
  }

  /// A tensor's metadata: {'neg': True}, {'conj': True} for views that PyTorch resolves when they are read.
  void view_bits(PickleId metadata, PthTensor& tensor) const {
    if (is(metadata, PickleKind::kNone)) return;
    const PthGlobal* global = is(metadata, PickleKind::kObject) ? meaning(node(metadata)) : nullptr;
    if (!is(metadata, PickleKind::kDict) && (!global || global->meaning != PthMeaning::kDict))
      bad("the metadata of the tensor is no dict");
    if (global && !node(node(metadata).args).items.empty()) bad("the metadata of the tensor is no plain dict");
    const auto& pairs = node(metadata).items;
    for (size_t i = 0; i + 1 < pairs.size(); i += 2) {
      const std::string key = is(pairs[i], PickleKind::kString) ? std::string(node(pairs[i]).text) : "<no text>";
      if (key != "neg" && key != "conj")
        bad("the tensor has the property \"{}\", which is not read; convert it to a plain tensor before torch.save",
            excerpt(key));
      if (!is(pairs[i + 1], PickleKind::kBool)) bad("the property \"{}\" of the tensor is neither True nor False", key);
      (key == "neg" ? tensor.negated : tensor.conjugated) = node(pairs[i + 1]).integer != 0;
    }
    if (tensor.negated && tensor.dtype == ElementType::kBool) bad("truth values with the negative bit");
    if (tensor.conjugated && element_parts(tensor.dtype) == 1) bad("real numbers with the conjugate bit");
  }

  void check_view(const PthTensor& tensor, const PthStorage& storage) const {
    if (tensor.shape.size() != tensor.strides.size())
      bad("a tensor of {} dimensions has {} strides", tensor.shape.size(), tensor.strides.size());
    const int64_t count = checked_product(tensor.shape, static_cast<int64_t>(element_size(tensor.dtype)),
                                          fmt::format("{}: \"{}\"", what_, excerpt(path_)));
    if (count == 0) return;
    int64_t last = tensor.offset;
    for (size_t i = 0; i < tensor.shape.size(); ++i) {
      int64_t step;
      if (__builtin_mul_overflow(tensor.shape[i] - 1, tensor.strides[i], &step) ||
          __builtin_add_overflow(last, step, &last))
        bad("the strides of the tensor overflow 64 bits");
    }
    const auto elements = static_cast<int64_t>(tensor.storage_bytes / element_size(tensor.dtype));
    if (last >= elements)
      bad("the tensor's last element is number {} of storage {}, which has {}", last, excerpt(storage.key), elements);
  }

  // Numpy.
  /// Bytes in any of the ways in which protocols store them.
  std::string bytes_of(PickleId id) const {
    const PickleNode& value = node(id);
    if (value.kind == PickleKind::kBytes || value.kind == PickleKind::kString) return std::string(value.text);
    const PthGlobal* global = value.kind == PickleKind::kObject ? meaning(value) : nullptr;
    if (global && global->meaning == PthMeaning::kBytes)
      return node(value.args).items.empty() ? std::string() : bytes_of_text(argument(value, 0));
    if (!global || global->meaning != PthMeaning::kEncode) bad("bytes are missing");
    return bytes_of_text(argument(value, 0));
  }
  /// Latin-1 text, stored as UTF-8, back to bytes.
  std::string bytes_of_text(PickleId id) const {
    if (is(id, PickleKind::kBytes)) return std::string(node(id).text);
    if (!is(id, PickleKind::kString)) bad("bytes are missing");
    const std::string_view text = node(id).text;
    std::string bytes;
    for (size_t i = 0; i < text.size(); ++i) {
      const auto c = static_cast<uint8_t>(text[i]);
      if (c < 0x80) {
        bytes += text[i];
        continue;
      }
      if ((c & 0xfc) != 0xc0 || i + 1 == text.size()) bad("bytes are stored as a text that is not Latin-1");
      bytes += static_cast<char>((c & 3) << 6 | (text[++i] & 0x3f));
    }
    return bytes;
  }

  struct NumpyType {
    ElementType dtype = ElementType::kF32;
    bool swapped = false;
  };
  /// None for texts, dates, records and other elements that are no numbers of a known kind.
  std::optional<NumpyType> numpy_type(PickleId id) const {
    const PickleNode& object = node(id);
    const PthGlobal* global = object.kind == PickleKind::kObject ? meaning(object) : nullptr;
    if (!global || global->meaning != PthMeaning::kNumpyDType) bad("a numpy value without element type");
    const PickleId named = argument(object, 0);
    const std::string_view name = node(named).text;
    static const std::map<std::string, ElementType, std::less<>> known = {
        {"f4", ElementType::kF32}, {"f8", ElementType::kF64},  {"f2", ElementType::kF16}, {"i8", ElementType::kI64},
        {"i4", ElementType::kI32}, {"i2", ElementType::kI16},  {"i1", ElementType::kI8},  {"u1", ElementType::kU8},
        {"u2", ElementType::kU16}, {"u4", ElementType::kU32},  {"u8", ElementType::kU64}, {"b1", ElementType::kBool},
        {"c8", ElementType::kC64}, {"c16", ElementType::kC128}};
    const auto found = known.find(name);
    if (is(named, PickleKind::kGlobal)) return std::nullopt;  // numpy.record
    if (!is(named, PickleKind::kString)) bad("a numpy value without element type");
    if (found == known.end()) return std::nullopt;
    NumpyType type{found->second};
    if (object.state != kNoPickle && node(object.state).items.size() > 1)
      type.swapped = node(node(object.state).items[1]).text == ">";
    return type;
  }

  std::string unread_numpy(const char* what, PickleId dtype) const {
    return fmt::format("<numpy {} of type '{}'>", what, excerpt(node(argument(node(dtype), 0)).text));
  }

  nlohmann::json numpy_scalar(const PickleNode& object) const {
    const auto known = numpy_type(argument(object, 0));
    if (!known) return unread_numpy("value", argument(object, 0));
    const NumpyType type = *known;
    std::string bytes = bytes_of(argument(object, 1));
    if (bytes.size() != element_size(type.dtype)) bad("a numpy number of {} bytes", bytes.size());
    if (type.swapped) bytes = std::string(bytes.rbegin(), bytes.rend());
    if (element_parts(type.dtype) == 2) return "<complex number>";
    int64_t whole = 0;
    switch (type.dtype) {
      case ElementType::kBool:
        return bytes[0] != 0;
      case ElementType::kI64:
        std::memcpy(&whole, bytes.data(), sizeof(whole));
        return whole;
      case ElementType::kF16:
      case ElementType::kF32:
      case ElementType::kF64:
        return value_at(type.dtype, bytes.data(), 0);
      default:
        return static_cast<int64_t>(value_at(type.dtype, bytes.data(), 0));
    }
  }

  /// State: (version, shape, dtype, is_fortran, bytes).
  void numpy_reconstructed(const PickleNode& object) {
    if (!is(object.state, PickleKind::kTuple) || node(object.state).items.size() != 5)
      bad("a numpy array without values");
    const auto& state = node(object.state).items;
    if (node(state[4]).kind == PickleKind::kList) return leaf("<numpy array of objects>");
    numpy_array(state[1], state[2], node(state[3]).integer != 0, state[4]);
  }

  void numpy_array(PickleId shape, PickleId dtype, bool fortran, PickleId values) {
    const auto known = numpy_type(dtype);
    if (!known) return leaf(unread_numpy("array", dtype));
    take_leaf();
    const NumpyType type = *known;
    PthTensor tensor{.name = path_, .dtype = type.dtype, .shape = integers(shape), .is_inline = true};
    tensor.swapped = type.swapped;
    const int64_t bytes = checked_product(tensor.shape, static_cast<int64_t>(element_size(type.dtype)),
                                          fmt::format("{}: \"{}\"", what_, excerpt(path_)));
    tensor.inline_values = bytes_of(values);
    if (inline_bytes_left_ < tensor.inline_values.size()) bad("the file repeats shared arrays too often");
    inline_bytes_left_ -= tensor.inline_values.size();
    if (tensor.inline_values.size() != static_cast<size_t>(bytes))
      bad("a numpy array of shape ({}) has {} bytes", fmt::join(tensor.shape, ", "), tensor.inline_values.size());
    tensor.strides.resize(tensor.shape.size());
    int64_t stride = 1;
    for (size_t k = 0; k < tensor.shape.size() && bytes > 0; ++k) {
      const size_t i = fortran ? k : tensor.shape.size() - 1 - k;
      tensor.strides[i] = stride;
      stride *= tensor.shape[i];
    }
    tree_.tensors.push_back(std::move(tensor));
  }

  const PickleDocument& document_;
  const std::string& what_;
  PthTree tree_;
  std::string path_;
  uint64_t visits_left_, leaves_left_, name_bytes_left_, inline_bytes_left_;  ///< against absurd repetition
};

}  // namespace

PthTree read_pth_tree(const PickleDocument& document, const std::string& what) {
  return TreeReader(document, what).read();
}

PthStorage read_pth_storage(const PickleDocument& document, PickleId persistent, const std::string& what) {
  const auto bad = [&](const char* reason) { fail("{}: damaged: a storage {}", what, reason); };
  const PickleNode& reference = document[persistent];
  if (reference.kind != PickleKind::kPersistent || reference.args == kNoPickle) bad("is none");
  const PickleNode& fields = document[reference.args];
  if (fields.kind != PickleKind::kTuple || fields.items.size() < 5) bad("has fewer than five fields");
  const PickleNode &word = document[fields.items[0]], &type = document[fields.items[1]],
                   &key = document[fields.items[2]], &elements = document[fields.items[4]];
  if (word.text != "storage") bad("is of an unknown kind");
  const PthGlobal* global = type.kind == PickleKind::kGlobal ? find_pth_global(type.text) : nullptr;
  if (!global || (global->meaning != PthMeaning::kStorage && global->meaning != PthMeaning::kUntypedStorage))
    bad("has no type");
  if (key.kind != PickleKind::kString) bad("has no key");
  if (elements.kind != PickleKind::kInt || elements.integer < 0) bad("has no size");
  PthStorage storage{.key = key.text, .dtype = global->dtype, .elements = elements.integer};
  if (fields.items.size() > 5 && document[fields.items[5]].kind == PickleKind::kTuple) {
    const auto& view = document[fields.items[5]].items;
    if (view.size() != 3 || document[view[1]].kind != PickleKind::kInt || document[view[1]].integer < 0)
      bad("is a malformed view of another");
    storage.view_offset = document[view[1]].integer;
  }
  return storage;
}

}  // namespace convoy
