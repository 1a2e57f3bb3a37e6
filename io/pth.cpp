#include "io/pth.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "engine/error.h"
#include "io/pth_globals.h"
#include "io/safetensors_header.h"
#include "io/tensor_values.h"

namespace convoy {
namespace {

constexpr uint64_t kMaxPickle = uint64_t{256} << 20;
constexpr uint64_t kMaxRepeat = 16;  ///< bytes of all tensors by bytes of the file
constexpr std::string_view kLegacyMagic("\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19", 10);

PickleFilter filter_for(const std::string& what) {
  return [&what](std::string_view module, std::string_view name) { admit_pth_global(what, module, name); };
}

std::string_view text_of(const PickleDocument& document, PickleId id) {
  return document[id].text;
}

/// A value of a dict with text keys; kNoPickle when there is none.
PickleId find_item(const PickleDocument& document, const PickleNode& dict, std::string_view key) {
  for (size_t i = 0; i + 1 < dict.items.size(); i += 2)
    if (document[dict.items[i]].kind == PickleKind::kString && text_of(document, dict.items[i]) == key)
      return dict.items[i + 1];
  return kNoPickle;
}

bool is_whole_number(ElementType dtype) {
  const std::string_view name = element_name(dtype);
  return name.starts_with("int") || name.starts_with("uint");
}

void swap_elements(NamedTensor& tensor) {
  const size_t size = element_size(tensor.dtype) / static_cast<size_t>(element_parts(tensor.dtype));
  for (size_t at = 0; at + size <= tensor.owned.size(); at += size)
    std::reverse(tensor.owned.begin() + static_cast<ptrdiff_t>(at),
                 tensor.owned.begin() + static_cast<ptrdiff_t>(at + size));
}

/// Changes the sign of one number: of a whole one by two's complement, else by its top bit.
void negate(std::byte* number, size_t size, bool is_whole) {
  if (!is_whole) {
    number[size - 1] ^= std::byte{0x80};
    return;
  }
  unsigned carry = 1;
  for (size_t i = 0; i < size; ++i) {
    carry += static_cast<unsigned>(~number[i] & std::byte{0xff});
    number[i] = static_cast<std::byte>(carry & 0xff);
    carry >>= 8;
  }
}

/// Applies the negative and the conjugate bit to values in this machine's byte order.
void resolve_bits(const PthTensor& view, NamedTensor& tensor) {
  const auto parts = static_cast<size_t>(element_parts(tensor.dtype));
  const size_t size = element_size(tensor.dtype) / parts;
  const bool is_whole = is_whole_number(tensor.dtype);
  for (size_t at = 0, part = 0; at < tensor.owned.size(); at += size, part = (part + 1) % parts)
    if (view.negated != (view.conjugated && part == 1)) negate(tensor.owned.data() + at, size, is_whole);
}

bool is_row_major(const PthTensor& tensor) {
  int64_t stride = 1;
  for (size_t i = tensor.shape.size(); i-- > 0;) {
    if (tensor.shape[i] != 1 && tensor.strides[i] != stride) return false;
    stride *= tensor.shape[i];
  }
  return true;
}

/// Copies the elements in row-major order.
void gather(const PthTensor& tensor, const char* storage, std::vector<std::byte>& to) {
  const size_t size = element_size(tensor.dtype), rank = tensor.shape.size();
  std::vector<int64_t> index(rank, 0);
  int64_t from = tensor.offset;
  for (size_t at = 0; at < to.size(); at += size) {
    std::memcpy(to.data() + at, storage + static_cast<size_t>(from) * size, size);
    for (size_t i = rank; i-- > 0;) {
      from += tensor.strides[i];
      if (++index[i] < tensor.shape[i]) break;
      from -= tensor.strides[i] * tensor.shape[i];
      index[i] = 0;
    }
  }
}

}  // namespace

PthFile::PthFile(const std::filesystem::path& path) : what_(path.string()), file_(path) {
  CONVOY_CHECK(file_.size() > 0, "{}: the file is empty", what_);
  if (ZipDirectory::is_zip(content())) {
    open_zip();
  } else {
    document_ = read_pickle({content(), what_, 0}, filter_for(what_));
    if (document_.root().kind == PickleKind::kBigInt && document_.root().text == kLegacyMagic)
      open_legacy(document_.bytes());
    else
      tree_ = read_pth_tree(document_, what_);
  }
  check_sizes();
}

void PthFile::open_zip() {
  container_ = "zip";
  zip_ = std::make_unique<ZipDirectory>(content(), what_);
  const ZipEntry* pickle = nullptr;
  bool is_script = false;
  for (const ZipEntry& entry : zip_->entries()) {
    const std::string_view name = entry.name.substr(entry.name.rfind('/') + 1);
    if (name == "constants.pkl" || entry.name.find("/code/") != std::string_view::npos) is_script = true;
    if (name != "data.pkl") continue;
    CONVOY_CHECK(!pickle, "{}: the archive has two pickles, \"{}\" and \"{}\"", what_, pickle->name.substr(0, 120),
                 entry.name.substr(0, 120));
    pickle = &entry;
  }
  CONVOY_CHECK(!is_script,
               "{}: refused: a TorchScript archive, which holds a program beside its weights; save model.state_dict() "
               "instead of torch.jit.save",
               what_);
  CONVOY_CHECK(pickle, "{}: a zip archive without data.pkl, so no file of torch.save", what_);
  const std::string prefix(pickle->name.substr(0, pickle->name.size() - std::string_view("data.pkl").size()));
  zip_->check(*pickle);
  const std::string_view bytes = zip_->bytes(*pickle);
  CONVOY_CHECK(bytes.size() <= kMaxPickle, "{}: its pickle has {} bytes, at most {} are read", what_, bytes.size(),
               kMaxPickle);
  if (const ZipEntry* order = zip_->find(prefix + "byteorder")) {
    const std::string_view text = zip_->bytes(*order);
    CONVOY_CHECK(text == "little" || text == "big", "{}: damaged: the byte order is '{}'", what_, text.substr(0, 40));
    swapped_ = text == "big";
  }
  document_ = read_pickle({bytes, what_, static_cast<uint64_t>(bytes.data() - content().data())}, filter_for(what_));
  tree_ = read_pth_tree(document_, what_);
  find_zip_storages(prefix);
}

void PthFile::find_zip_storages(const std::string& prefix) {
  for (const PthTensor& tensor : tree_.tensors) {
    if (tensor.is_inline || tensor.storage_bytes == 0 || storages_.contains(tensor.storage)) continue;
    const ZipEntry* entry = zip_->find(prefix + "data/" + std::string(tensor.storage));
    CONVOY_CHECK(entry, "{}: damaged: tensor \"{}\" is in storage \"{}\", which the archive does not have", what_,
                 tensor.name.substr(0, 120), tensor.storage.substr(0, 40));
    storages_[tensor.storage] = {zip_->bytes(*entry), entry};
  }
}

// Behind the number that names the format: version, machine, the object, keys of storages, storages.
void PthFile::open_legacy(size_t position) {
  container_ = "legacy";
  const auto next = [&](PickleDocument& document) {
    document = read_pickle({content().substr(position), what_, position}, filter_for(what_));
    position += document.bytes();
  };
  PickleDocument version, machine, keys;
  next(version);
  CONVOY_CHECK(version.root().kind == PickleKind::kInt && version.root().integer == 1001,
               "{}: a legacy file of another version than 1001", what_);
  next(machine);
  const PickleId little = find_item(machine, machine.root(), "little_endian");
  swapped_ = little != kNoPickle && machine[little].kind == PickleKind::kBool && machine[little].integer == 0;
  next(document_);
  next(keys);
  tree_ = read_pth_tree(document_, what_);
  find_legacy_storages(keys, position);
}

void PthFile::find_legacy_storages(const PickleDocument& keys, size_t position) {
  CONVOY_CHECK(keys.root().kind == PickleKind::kList, "{}: damaged: byte {}: the list of storages is missing", what_,
               position);
  std::map<std::string_view, uint64_t> element_bytes;
  for (PickleId id = 0; id < document_.size(); ++id) {
    if (document_[id].kind != PickleKind::kPersistent) continue;
    const PthStorage storage = read_pth_storage(document_, id, what_);
    const uint64_t bytes = storage.dtype ? element_size(*storage.dtype) : 1;
    CONVOY_CHECK(element_bytes.emplace(storage.key, bytes).first->second == bytes,
                 "{}: damaged: storage \"{}\" has two types", what_, storage.key.substr(0, 40));
  }
  for (PickleId id : keys.root().items) {
    const std::string_view key = text_of(keys, id);
    const auto size = element_bytes.find(key);
    CONVOY_CHECK(size != element_bytes.end(), "{}: damaged: byte {}: storage \"{}\" belongs to no tensor", what_,
                 position, key.substr(0, 40));
    const std::string_view rest = content().substr(position);
    int64_t count = 0;
    CONVOY_CHECK(rest.size() >= sizeof(count), "{}: truncated: byte {}: storage \"{}\" is missing", what_, position,
                 key.substr(0, 40));
    std::memcpy(&count, rest.data(), sizeof(count));
    CONVOY_CHECK(
        count >= 0 && static_cast<uint64_t>(count) <= (rest.size() - sizeof(count)) / size->second,
        "{}: truncated or damaged: byte {}: storage \"{}\" has {} elements of {} bytes, the file {} bytes more", what_,
        position, key.substr(0, 40), count, size->second, rest.size() - sizeof(count));
    const uint64_t bytes = static_cast<uint64_t>(count) * size->second;
    // The key is the document's, which lives as long as the file.
    CONVOY_CHECK(storages_.emplace(size->first, Storage{rest.substr(sizeof(count), bytes)}).second,
                 "{}: damaged: byte {}: storage \"{}\" comes twice", what_, position, key.substr(0, 40));
    position += sizeof(count) + bytes;
  }
}

void PthFile::check_sizes() const {
  uint64_t all = 0;
  for (const PthTensor& tensor : tree_.tensors) {
    all +=
        static_cast<uint64_t>(checked_product(tensor.shape, static_cast<int64_t>(element_size(tensor.dtype)), what_));
    CONVOY_CHECK(all <= kMaxRepeat * (file_.size() + (1 << 20)),
                 "{}: damaged or absurd: the tensors up to \"{}\" have {} bytes, the file {}", what_,
                 tensor.name.substr(0, 120), all, file_.size());
    if (tensor.is_inline || tensor.storage_bytes == 0) continue;
    const auto storage = storages_.find(tensor.storage);
    CONVOY_CHECK(storage != storages_.end(),
                 "{}: damaged: tensor \"{}\" is in storage \"{}\", which the file does not have", what_,
                 tensor.name.substr(0, 120), tensor.storage.substr(0, 40));
    CONVOY_CHECK(storage->second.bytes.size() >= tensor.storage_bytes,
                 "{}: truncated or damaged: tensor \"{}\": storage \"{}\" is to have {} bytes and has {}", what_,
                 tensor.name.substr(0, 120), tensor.storage.substr(0, 40), tensor.storage_bytes,
                 storage->second.bytes.size());
  }
}

NamedTensor PthFile::tensor(const PthTensor& tensor) const {
  NamedTensor result{tensor.name, tensor.dtype, tensor.shape, nullptr, {}};
  const size_t bytes = result.bytes();
  if (bytes == 0) return result;
  const char* values = tensor.inline_values.data();
  if (!tensor.is_inline) {
    const Storage& storage = storages_.at(tensor.storage);
    if (storage.entry && !storage.checked) {
      zip_->check(*storage.entry);
      storage.checked = true;
    }
    values = storage.bytes.data();
  }
  const size_t size = element_size(tensor.dtype);
  const char* first = values + static_cast<size_t>(tensor.offset) * size;
  const bool swapped = tensor.is_inline ? tensor.swapped : swapped_;
  if (is_row_major(tensor) && !swapped && !tensor.negated && !tensor.conjugated &&
      reinterpret_cast<uintptr_t>(first) % size == 0) {
    result.data = first;
    return result;
  }
  result.owned.resize(bytes);
  gather(tensor, values, result.owned);
  if (swapped) swap_elements(result);
  if (tensor.negated || tensor.conjugated) resolve_bits(tensor, result);
  return result;
}

}  // namespace convoy
