#include "io/checkpoint.h"

#include <algorithm>
#include <charconv>

#include "engine/error.h"
#include "io/checkpoint_files.h"
#include "io/checksum.h"
#include "io/file.h"

namespace convoy {
namespace fs = std::filesystem;
namespace {

constexpr int kMaxJsonDepth = kMaxMetaDepth + 8;  // nlohmann's dump is recursive

std::optional<int64_t> step_of_name(const std::string& name) {
  constexpr std::string_view kPrefix = "step-";
  if (!name.starts_with(kPrefix) || name.size() < kPrefix.size() + 8) return std::nullopt;
  int64_t step = 0;
  const char* end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data() + kPrefix.size(), end, step);
  if (error != std::errc() || stop != end || step < 0) return std::nullopt;
  return step;
}

struct VerifiedCheckpoint {
  SafetensorsFile tensors;
  nlohmann::json state;
};

const nlohmann::json& member(const nlohmann::json& object, const char* key, const fs::path& path) {
  CONVOY_CHECK(object.is_object() && object.contains(key), "{}: the key \"{}\" is missing", path.string(), key);
  return object.at(key);
}

// Opens both files and compares sizes and checksums.
VerifiedCheckpoint open_verified(const fs::path& directory) {
  const fs::path state_path = directory / kStateFile;
  const fs::path tensors_path = directory / kTensorsFile;
  nlohmann::json state = open_sealed_json(read_text_file(state_path), state_path);
  CONVOY_CHECK(member(state, "format", state_path) == kCheckpointFormat, "{}: is not the state of a checkpoint",
               state_path.string());
  CONVOY_CHECK(member(state, "version", state_path) == kCheckpointVersion,
               "{}: has format version {}, this program reads {}", state_path.string(), state["version"].dump(),
               kCheckpointVersion);
  CONVOY_CHECK(member(state, "step", state_path).is_number_integer(), "{}: the key \"step\" is not a whole number",
               state_path.string());
  member(state, "meta", state_path);
  const auto& record = member(member(state, "files", state_path), kTensorsFile, state_path);
  const auto& bytes = member(record, "bytes", state_path);
  const auto& crc = member(record, "crc64", state_path);

  const MappedFile file(tensors_path);
  CONVOY_CHECK(bytes == file.size(), "{}: {} bytes, {} were written: {}", tensors_path.string(), file.size(),
               bytes.dump(), file.size() < bytes ? "truncated" : "overwritten");
  CONVOY_CHECK(crc == crc64_text(crc64(file.data(), file.size())),
               "{}: the checksum differs from the one that was written: the file is damaged", tensors_path.string());
  return {SafetensorsFile(tensors_path), std::move(state)};
}

LoadedCheckpoint load_verified(const fs::path& directory) {
  VerifiedCheckpoint checkpoint = open_verified(directory);
  LoadedCheckpoint loaded;
  loaded.path = directory;
  loaded.step = checkpoint.state["step"].get<int64_t>();
  loaded.meta = std::move(checkpoint.state["meta"]);
  loaded.tensors.reserve(checkpoint.tensors.entries().size());
  for (const auto& entry : checkpoint.tensors.entries())
    loaded.tensors.push_back(copy_tensor(checkpoint.tensors.tensor(entry)));
  return loaded;
}

std::string advice(const fs::path& damaged) {
  std::vector<std::string> intact;
  const fs::path parent = damaged.has_parent_path() ? damaged.parent_path() : fs::path(".");
  for (int64_t step : list_steps(parent)) {
    const fs::path other = parent / checkpoint_name(step);
    if (other.filename() == damaged.filename()) continue;
    try {
      open_verified(other);
      intact.push_back(other.string());
    } catch (const Error&) {
      continue;
    }
  }
  if (intact.empty()) return "no other intact checkpoint lies beside it";
  return fmt::format("intact and usable instead: {}", fmt::join(intact, ", "));
}

// The newest checkpoint that `open` accepts, or nullopt without any; `skipped` collects the reasons on the way.
template <class Open>
auto newest_intact(const fs::path& directory, std::vector<std::string>& skipped, Open open)
    -> std::optional<decltype(open(directory))> {
  std::vector<int64_t> steps = list_steps(directory);
  std::reverse(steps.begin(), steps.end());
  for (int64_t step : steps) {
    try {
      return open(directory / checkpoint_name(step));
    } catch (const Error& error) {
      skipped.push_back(error.what());
    }
  }
  if (steps.empty()) return std::nullopt;
  fail("{}: all {} checkpoints are damaged, the run cannot go on from here:\n  {}", directory.string(), steps.size(),
       fmt::join(skipped, "\n  "));
}

}  // namespace

std::vector<int64_t> list_steps(const fs::path& checkpoints_directory) {
  std::vector<int64_t> steps;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(checkpoints_directory, error)) {
    const auto step = step_of_name(entry.path().filename().string());
    if (step && checkpoint_name(*step) == entry.path().filename()) steps.push_back(*step);
  }
  if (error && error != std::errc::no_such_file_or_directory)
    fail("{}: cannot be listed: {}", checkpoints_directory.string(), error.message());
  std::sort(steps.begin(), steps.end());
  return steps;
}

std::string crc64_text(uint64_t crc) {
  return fmt::format("{:016x}", crc);
}

std::string seal_json(nlohmann::json object) {
  object.erase("crc64");
  try {
    const std::string content = object.dump();
    object["crc64"] = crc64_text(crc64(content.data(), content.size()));
    return object.dump(1) + "\n";
  } catch (const nlohmann::json::exception& error) {
    fail("the checkpoint's meta cannot be written as JSON: {}", error.what());
  }
}

nlohmann::json open_sealed_json(std::string_view text, const fs::path& path) {
  nlohmann::json object;
  try {
    object = nlohmann::json::parse(text.begin(), text.end(), [&](int depth, auto, auto&) {
      if (depth > kMaxJsonDepth) fail("{}: damaged: nested deeper than {}", path.string(), kMaxJsonDepth);
      return true;
    });
  } catch (const nlohmann::json::exception&) {
    fail("{}: damaged or truncated: not valid JSON", path.string());
  }
  const auto crc = member(object, "crc64", path);
  object.erase("crc64");
  const std::string content = object.dump();
  CONVOY_CHECK(crc == crc64_text(crc64(content.data(), content.size())),
               "{}: the checksum differs from the one that was written: the file is damaged", path.string());
  return object;
}

std::optional<FoundCheckpoint> find_latest(const fs::path& checkpoints_directory) {
  FoundCheckpoint found;
  const auto path = newest_intact(checkpoints_directory, found.skipped, [](const fs::path& candidate) {
    open_verified(candidate);
    return candidate;
  });
  if (!path) return std::nullopt;
  found.path = *path;
  found.step = *step_of_name(path->filename().string());
  return found;
}

std::optional<int64_t> find_best(const fs::path& checkpoints_directory) {
  const fs::path path = checkpoints_directory / kBestFile;
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return std::nullopt;
  try {
    const nlohmann::json best = open_sealed_json(read_text_file(path), path);
    const auto& step = member(best, "step", path);
    CONVOY_CHECK(step.is_number_integer(), "{}: the key \"step\" is not a whole number", path.string());
    return step.get<int64_t>();
  } catch (const Error& error) {
    fail("{}; it only names the best checkpoint: remove it to go on without", error.what());
  }
}

LoadedCheckpoint load_checkpoint(const fs::path& directory_or_run) {
  const fs::path given = directory_or_run.has_filename() ? directory_or_run : directory_or_run.parent_path();
  std::error_code ignored;
  CONVOY_CHECK(fs::is_directory(given, ignored),
               "{}: there is no such directory; a checkpoint is a directory step-N, or give "
               "the run's directory for its newest one",
               given.string());
  if (fs::exists(given / kStateFile, ignored) || fs::exists(given / kTensorsFile, ignored) ||
      step_of_name(given.filename().string())) {
    try {
      return load_verified(given);
    } catch (const Error& error) {
      fail("{}\nThe checkpoint {} cannot be used; {}", error.what(), given.string(), advice(given));
    }
  }
  const fs::path directory = fs::is_directory(given / "checkpoints", ignored) ? given / "checkpoints" : given;
  std::vector<std::string> skipped;
  auto loaded = newest_intact(directory, skipped, load_verified);
  CONVOY_CHECK(loaded, "{}: holds no checkpoint (no directory step-N)", directory.string());
  loaded->skipped = std::move(skipped);
  return std::move(*loaded);
}

}  // namespace convoy
