#include "io/weights_file.h"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <set>

#include "engine/error.h"
#include "io/checkpoint.h"
#include "io/checkpoint_files.h"
#include "io/pth.h"

namespace convoy {
namespace fs = std::filesystem;

class WeightsFile::Source {
 public:
  virtual ~Source() = default;
  virtual NamedTensor tensor(size_t i) const = 0;
};

class WeightsFile::PthSource : public Source {
 public:
  explicit PthSource(const fs::path& path) : file(path) {}
  NamedTensor tensor(size_t i) const override { return file.tensor(file.tensors()[i]); }
  PthFile file;
};

class WeightsFile::SafetensorsSource : public Source {
 public:
  explicit SafetensorsSource(const fs::path& path) : file(path) {}
  NamedTensor tensor(size_t i) const override { return file.tensor(file.entries()[i]); }
  SafetensorsFile file;
};

namespace {

enum class Kind : uint8_t { kPth, kSafetensors };

std::string beginning_of(const fs::path& path, uint64_t& size) {
  const MappedFile file(path);
  size = file.size();
  constexpr uint64_t kLooked = 512;
  return {reinterpret_cast<const char*>(file.data()), static_cast<size_t>(std::min(size, kLooked))};
}

/// HTML, or the XML in which object stores report errors.
bool is_page(std::string_view begin) {
  begin.remove_prefix(std::min(begin.find_first_not_of(" \t\r\n"), begin.size()));
  const auto same = [](char a, char b) { return std::tolower(static_cast<unsigned char>(a)) == b; };
  for (const std::string_view word : {"<!doctype", "<html", "<?xml"})
    if (begin.size() >= word.size() && std::equal(word.begin(), word.end(), begin.begin(),
                                                  [&](char wanted, char found) { return same(found, wanted); }))
      return true;
  return false;
}

/// What the file is by its first bytes. Throws Error naming what it is instead of weights.
Kind kind_of(const fs::path& path) {
  uint64_t size = 0;
  const std::string begin = beginning_of(path, size);
  const auto refuse = [&](const char* what) { fail("{}: no weight file: {}", path.string(), what); };
  const auto starts = [&](std::string_view text) { return std::string_view(begin).starts_with(text); };
  if (begin.empty()) refuse("the file is empty");
  // First: the length with which safetensors begin may have the bytes of any other beginning.
  if (begin.size() > 8 && begin[8] == '{' && begin[7] == 0 && begin[6] == 0) return Kind::kSafetensors;
  if (starts("version https://git-lfs")) refuse("a Git LFS pointer; fetch the file itself (git lfs pull)");
  if (is_page(begin) || starts("{\"")) refuse("a page or message of a web server; the download has failed");
  if (starts("\x89HDF")) refuse("an HDF5 file (Keras); only PyTorch and safetensors files are read");
  if (starts("\x1f\x8b") || starts("BZh") ||
      starts("\xfd"
             "7zXZ"))
    refuse("a compressed file; unpack it first");
  if (begin.size() > 262 && begin.compare(257, 5, "ustar") == 0)
    refuse("a tar archive, as the first versions of PyTorch wrote; load it there and torch.save it again");
  if (starts("PK\x03\x04")) return Kind::kPth;
  // A pickle begins with its protocol; those of protocols 0 and 1 with what they make.
  if (static_cast<uint8_t>(begin[0]) == 0x80 || std::strchr("(]}cId)lKMJLFG", begin[0])) return Kind::kPth;
  refuse("neither a file of torch.save, nor a pickle, nor safetensors");
  return Kind::kPth;
}

/// The tensors' file of a checkpoint, of the best or newest one of a run.
fs::path checkpoint_tensors(fs::path directory) {
  std::error_code ignored;
  if (fs::is_directory(directory / "checkpoints", ignored)) {
    if (const auto best = find_best(directory / "checkpoints"))
      directory = directory / "checkpoints" / checkpoint_name(*best);
    else if (const auto latest = find_latest(directory / "checkpoints"))
      directory = latest->path;
  }
  CONVOY_CHECK(fs::exists(directory / kTensorsFile, ignored),
               "{}: the directory holds no checkpoint (no {}); give a directory step-N, a run, or a file",
               directory.string(), kTensorsFile);
  return directory / kTensorsFile;
}

}  // namespace

WeightsFile::WeightsFile(const fs::path& path) : path_(path) {
  std::error_code ignored;
  fs::path file = path;
  const bool is_checkpoint = fs::is_directory(path, ignored);
  if (is_checkpoint) {
    file = checkpoint_tensors(path);
    path_ = file.parent_path();
  }
  if (kind_of(file) == Kind::kSafetensors) {
    auto source = std::make_unique<SafetensorsSource>(file);
    format_ = is_checkpoint ? "checkpoint" : "safetensors";
    metadata_ = source->file.metadata();
    for (const auto& entry : source->file.entries()) tensors_.push_back({entry.name, entry.dtype, entry.shape});
    source_ = std::move(source);
  } else {
    auto source = std::make_unique<PthSource>(file);
    format_ = std::string("pth (") + source->file.container() + ")";
    others_ = source->file.others();
    for (const auto& entry : source->file.tensors()) tensors_.push_back({entry.name, entry.dtype, entry.shape});
    source_ = std::move(source);
  }
  check_names();
}

WeightsFile::~WeightsFile() = default;
WeightsFile::WeightsFile(WeightsFile&&) noexcept = default;

void WeightsFile::check_names() const {
  std::set<std::string_view> names;
  for (const WeightInfo& tensor : tensors_)
    CONVOY_CHECK(names.insert(tensor.name).second, "{}: two tensors have the path \"{}\"", path_.string(),
                 tensor.name.substr(0, 120));
}

NamedTensor WeightsFile::tensor(size_t i) const {
  return source_->tensor(i);
}

}  // namespace convoy
