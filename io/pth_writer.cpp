// The zip container of torch.save, as torch.load(weights_only=True) reads it.
#include <cstring>
#include <set>

#include "engine/error.h"
#include "io/pth.h"
#include "io/safetensors_header.h"

namespace convoy {
namespace {

constexpr size_t kAlignment = 64;  ///< of the values in the file, as torch.save has it

template <class T>
void put(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(T));
}

const char* storage_class(const NamedTensor& tensor) {
  switch (tensor.dtype) {
    case ElementType::kF32:
      return "FloatStorage";
    case ElementType::kF64:
      return "DoubleStorage";
    case ElementType::kF16:
      return "HalfStorage";
    case ElementType::kBF16:
      return "BFloat16Storage";
    case ElementType::kI64:
      return "LongStorage";
    case ElementType::kI32:
      return "IntStorage";
    case ElementType::kI16:
      return "ShortStorage";
    case ElementType::kI8:
      return "CharStorage";
    case ElementType::kU8:
      return "ByteStorage";
    case ElementType::kBool:
      return "BoolStorage";
    case ElementType::kC64:
      return "ComplexFloatStorage";
    case ElementType::kC128:
      return "ComplexDoubleStorage";
    default:
      fail("tensor \"{}\": a .pth file of this program cannot hold elements of type {}", tensor.name,
           element_name(tensor.dtype));
  }
}

/// The few operations of protocol 2 that a dict of tensors needs. Nothing is memoised: names repeat, which costs bytes.
class PickleWriter {
 public:
  std::string dict(const std::vector<NamedTensor>& tensors) {
    out_ = "\x80\x02";
    global("collections", "OrderedDict");
    out_ += ")R(";
    for (size_t i = 0; i < tensors.size(); ++i) {
      text(tensors[i].name);
      tensor(tensors[i], std::to_string(i));
    }
    out_ += "u.";
    return std::move(out_);
  }

 private:
  void global(const char* module, const char* name) { out_ += fmt::format("c{}\n{}\n", module, name); }
  void text(const std::string& value) {
    out_ += 'X';
    put(out_, static_cast<uint32_t>(value.size()));
    out_ += value;
  }
  void integer(int64_t value) {
    if (value >= 0 && value <= INT32_MAX) {
      out_ += 'J';
      put(out_, static_cast<int32_t>(value));
    } else {
      out_ += "\x8a\x08";
      put(out_, value);
    }
  }
  void integers(const std::vector<int64_t>& values) {
    out_ += '(';
    for (int64_t value : values) integer(value);
    out_ += 't';
  }
  void tensor(const NamedTensor& tensor, const std::string& key) {
    std::vector<int64_t> strides(tensor.shape.size(), 1);
    for (size_t i = strides.size(); i-- > 1;) strides[i - 1] = strides[i] * std::max<int64_t>(1, tensor.shape[i]);
    global("torch._utils", "_rebuild_tensor_v2");
    out_ += "((";
    text("storage");
    global("torch", storage_class(tensor));
    text(key);
    text("cpu");
    integer(tensor.count());
    out_ += "tQ";
    integer(0);
    integers(tensor.shape);
    integers(strides);
    out_ += '\x89';
    global("collections", "OrderedDict");
    out_ += ")RtR";
  }

  std::string out_;
};

/// Entries are stored one after the other, values aligned by an extra field in the entry's header. Sizes and offsets of
/// 4 GiB and more are written as zip64.
class ZipWriter {
 public:
  ZipWriter(const std::filesystem::path& path, uint64_t expected) : file_(path, expected) {}

  void add(const std::string& name, std::string_view bytes) {
    const uint64_t offset = file_.bytes();
    const uint32_t crc = zip_crc32(bytes);
    const bool large = bytes.size() >= UINT32_MAX;
    std::string extra;
    if (large) {
      put<uint16_t>(extra, 1);
      put<uint16_t>(extra, 16);
      put<uint64_t>(extra, bytes.size());
      put<uint64_t>(extra, bytes.size());
    }
    const uint64_t begin = offset + 30 + name.size() + extra.size() + 4;
    const uint64_t padding = (kAlignment - begin % kAlignment) % kAlignment;
    put<uint16_t>(extra, 0x4246);  // what torch.save names its padding
    put(extra, static_cast<uint16_t>(padding));
    extra.append(padding, 'Z');

    std::string header = "PK\x03\x04";
    put_common(header, crc, large, bytes.size(), name.size(), extra.size());
    file_.write(header + name + extra);
    file_.write(bytes);

    std::string extra64;
    if (large || offset >= UINT32_MAX) {
      put<uint16_t>(extra64, 1);
      put(extra64, static_cast<uint16_t>((large ? 16 : 0) + (offset >= UINT32_MAX ? 8 : 0)));
      if (large) put<uint64_t>(extra64, bytes.size()), put<uint64_t>(extra64, bytes.size());
      if (offset >= UINT32_MAX) put(extra64, offset);
    }
    directory_ += "PK\x01\x02";
    put<uint16_t>(directory_, 45);
    put_common(directory_, crc, large, bytes.size(), name.size(), extra64.size());
    directory_.append(10, '\0');  // comment, disk, attributes
    put(directory_, static_cast<uint32_t>(offset >= UINT32_MAX ? UINT32_MAX : offset));
    directory_ += name + extra64;
    ++entries_;
  }

  void finish() {
    const uint64_t offset = file_.bytes();
    file_.write(directory_);
    std::string end;
    const bool large = offset >= UINT32_MAX || directory_.size() >= UINT32_MAX || entries_ >= UINT16_MAX;
    if (large) {
      const uint64_t record = file_.bytes();
      end += "PK\x06\x06";
      put<uint64_t>(end, 44);
      put<uint16_t>(end, 45);
      put<uint16_t>(end, 45);
      put<uint64_t>(end, 0);  // disks
      put(end, entries_);
      put(end, entries_);
      put<uint64_t>(end, directory_.size());
      put(end, offset);
      end += "PK\x06\x07";
      put<uint32_t>(end, 0);
      put(end, record);
      put<uint32_t>(end, 1);
    }
    end += "PK\x05\x06";
    put<uint32_t>(end, 0);  // disks
    put(end, static_cast<uint16_t>(large ? UINT16_MAX : entries_));
    put(end, static_cast<uint16_t>(large ? UINT16_MAX : entries_));
    put(end, static_cast<uint32_t>(large ? UINT32_MAX : directory_.size()));
    put(end, static_cast<uint32_t>(large ? UINT32_MAX : offset));
    put<uint16_t>(end, 0);
    file_.write(end);
    file_.commit();
  }

 private:
  static void put_common(std::string& out, uint32_t crc, bool large, uint64_t bytes, size_t name, size_t extra) {
    put<uint16_t>(out, 45);
    put<uint16_t>(out, 0x0800);      // names are UTF-8
    put<uint16_t>(out, 0);           // stored
    put<uint32_t>(out, 0x00210000);  // 1 January 1980
    put(out, crc);
    put(out, static_cast<uint32_t>(large ? UINT32_MAX : bytes));
    put(out, static_cast<uint32_t>(large ? UINT32_MAX : bytes));
    put(out, static_cast<uint16_t>(name));
    put(out, static_cast<uint16_t>(extra));
  }

  DurableFile file_;
  std::string directory_;
  uint64_t entries_ = 0;
};

}  // namespace

void write_pth(const std::filesystem::path& path, const std::vector<NamedTensor>& tensors) {
  std::set<std::string_view> names;
  uint64_t bytes = 0;
  for (const NamedTensor& tensor : tensors) {
    CONVOY_CHECK(names.insert(tensor.name).second, "two tensors have the name \"{}\"", tensor.name);
    CONVOY_CHECK(tensor.bytes() == 0 || tensor.values(), "tensor \"{}\" has no values", tensor.name);
    bytes += tensor.bytes() + 256;
  }
  const std::string pickle = PickleWriter().dict(tensors);
  ZipWriter zip(path, bytes + pickle.size());
  zip.add("archive/data.pkl", pickle);
  zip.add("archive/byteorder", "little");
  for (size_t i = 0; i < tensors.size(); ++i)
    zip.add(fmt::format("archive/data/{}", i), {static_cast<const char*>(tensors[i].values()), tensors[i].bytes()});
  zip.add("archive/version", "3\n");
  zip.finish();
}

}  // namespace convoy
