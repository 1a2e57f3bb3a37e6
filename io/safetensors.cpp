#include "io/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <numeric>

#include "engine/error.h"
#include "io/safetensors_header.h"

namespace convoy {
namespace fs = std::filesystem;
namespace {

static_assert(std::endian::native == std::endian::little, "the values of the file are little-endian");

struct WritePlan {
  std::string header;         // length word, JSON, padding
  std::vector<size_t> order;  // of the tensors
  uint64_t bytes = 0;         // of the whole file
};

WritePlan plan_file(const std::vector<NamedTensor>& tensors, const SafetensorsMetadata& metadata) {
  WritePlan plan;
  plan.order.resize(tensors.size());
  std::iota(plan.order.begin(), plan.order.end(), size_t{0});
  // Gaps are not allowed, so alignment comes from the order: wide elements first.
  std::stable_sort(plan.order.begin(), plan.order.end(),
                   [&](size_t a, size_t b) { return element_size(tensors[a].dtype) > element_size(tensors[b].dtype); });
  nlohmann::json header = nlohmann::json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  uint64_t offset = 0;
  for (size_t i : plan.order) {
    const NamedTensor& t = tensors[i];
    CONVOY_CHECK(t.name != "__metadata__", "a tensor cannot be named __metadata__ in a safetensors file");
    CONVOY_CHECK(!header.contains(t.name), "two tensors have the name \"{}\"", t.name);
    const auto bytes = static_cast<uint64_t>(
        checked_product(t.shape, static_cast<int64_t>(element_size(t.dtype)), fmt::format("tensor \"{}\"", t.name)));
    CONVOY_CHECK(t.owned.empty() || t.owned.size() == bytes, "tensor \"{}\" owns {} bytes, its shape needs {}", t.name,
                 t.owned.size(), bytes);
    CONVOY_CHECK(bytes == 0 || t.values(), "tensor \"{}\" has no values", t.name);
    header[t.name] = {
        {"dtype", safetensors_dtype_name(t.dtype)}, {"shape", t.shape}, {"data_offsets", {offset, offset + bytes}}};
    offset += bytes;
  }
  std::string json;
  try {
    json = header.dump();
  } catch (const nlohmann::json::exception&) {
    fail("a tensor name or metadata text is not valid UTF-8, a safetensors file cannot hold it");
  }
  json.resize((json.size() + 7) / 8 * 8, ' ');
  CONVOY_CHECK(json.size() <= kMaxSafetensorsHeader, "the names and shapes of {} tensors take {} bytes, at most {} fit",
               tensors.size(), json.size(), kMaxSafetensorsHeader);
  const uint64_t length = json.size();
  plan.header.assign(reinterpret_cast<const char*>(&length), 8);
  plan.header += json;
  plan.bytes = plan.header.size() + offset;
  return plan;
}

}  // namespace

int64_t NamedTensor::count() const {
  return checked_product(shape, 1, fmt::format("tensor \"{}\"", name));
}

NamedTensor copy_tensor(const NamedTensor& tensor) {
  NamedTensor copy{tensor.name, tensor.dtype, tensor.shape, nullptr, {}};
  const size_t bytes = tensor.bytes();
  CONVOY_CHECK(bytes == 0 || tensor.values(), "tensor \"{}\" has no values", tensor.name);
  CONVOY_CHECK(tensor.owned.empty() || tensor.owned.size() == bytes, "tensor \"{}\" owns {} bytes, its shape needs {}",
               tensor.name, tensor.owned.size(), bytes);
  const auto* begin = static_cast<const std::byte*>(tensor.values());
  if (bytes > 0) copy.owned.assign(begin, begin + bytes);
  return copy;
}

uint64_t safetensors_size(const std::vector<NamedTensor>& tensors, const SafetensorsMetadata& metadata) {
  return plan_file(tensors, metadata).bytes;
}

FileChecksum write_safetensors(const fs::path& path, const std::vector<NamedTensor>& tensors,
                               const SafetensorsMetadata& metadata) {
  const WritePlan plan = plan_file(tensors, metadata);
  DurableFile file(path, plan.bytes);
  file.write(plan.header);
  for (size_t i : plan.order) file.write(tensors[i].values(), tensors[i].bytes());
  file.commit();
  return {file.bytes(), file.crc64()};
}

SafetensorsFile::SafetensorsFile(const fs::path& path) : path_(path), file_(path) {
  CONVOY_CHECK(file_.size() >= 8, "{}: not a safetensors file: {} bytes, the header length alone takes 8",
               path.string(), file_.size());
  uint64_t length;
  std::memcpy(&length, file_.data(), sizeof(length));
  CONVOY_CHECK(length <= file_.size() - 8,
               "{}: truncated or not a safetensors file: the header is said to have {} "
               "bytes, the file has {}",
               path.string(), length, file_.size());
  CONVOY_CHECK(length <= kMaxSafetensorsHeader,
               "{}: not a safetensors file: the header is said to have {} bytes, at "
               "most {} are allowed",
               path.string(), length, kMaxSafetensorsHeader);
  SafetensorsHeader header =
      parse_safetensors_header({reinterpret_cast<const char*>(file_.data()) + 8, static_cast<size_t>(length)}, path);
  entries_ = std::move(header.entries);
  metadata_ = std::move(header.metadata);
  std::stable_sort(entries_.begin(), entries_.end(), [](const Entry& a, const Entry& b) {
    return std::pair(a.offset, a.offset + a.bytes) < std::pair(b.offset, b.offset + b.bytes);
  });

  const uint64_t start = 8 + length;
  const uint64_t values = file_.size() - start;
  uint64_t end = 0;
  for (size_t i = 0; i < entries_.size(); ++i) {
    Entry& entry = entries_[i];
    const std::string what = fmt::format("{}: tensor \"{}\"", path.string(), entry.name);
    const int64_t needed = checked_product(entry.shape, static_cast<int64_t>(element_size(entry.dtype)), what);
    CONVOY_CHECK(entry.bytes == static_cast<uint64_t>(needed),
                 "{}: the shape ({}) of {} needs {} bytes, the offsets "
                 "give {}",
                 what, fmt::join(entry.shape, ", "), element_name(entry.dtype), needed, entry.bytes);
    CONVOY_CHECK(entry.offset <= values && entry.bytes <= values - entry.offset,
                 "{}: its values end at byte {}, the file has {}: truncated", what, start + entry.offset + entry.bytes,
                 file_.size());
    CONVOY_CHECK(entry.offset >= end, "{}: its values overlap those of \"{}\"", what, entries_[i - 1].name);
    CONVOY_CHECK(entry.offset == end, "{}: there are {} unused bytes before its values", what, entry.offset - end);
    end = entry.offset + entry.bytes;
    entry.offset += start;
    index_.emplace(entry.name, i);
  }
  CONVOY_CHECK(end == values, "{}: {} bytes follow the last tensor", path.string(), values - end);
}

const SafetensorsFile::Entry* SafetensorsFile::find(std::string_view name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &entries_[found->second];
}

NamedTensor SafetensorsFile::tensor(const Entry& entry) const {
  NamedTensor tensor{entry.name, entry.dtype, entry.shape, file_.data() + entry.offset, {}};
  if (entry.offset % element_size(entry.dtype) != 0) return copy_tensor(tensor);
  return tensor;
}

NamedTensor SafetensorsFile::tensor(std::string_view name) const {
  const Entry* entry = find(name);
  CONVOY_CHECK(entry, "{}: has no tensor \"{}\"", path_.string(), name);
  return tensor(*entry);
}

}  // namespace convoy
