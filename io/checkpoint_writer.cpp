#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "engine/error.h"
#include "engine/start_thread.h"
#include "io/checkpoint.h"
#include "io/checkpoint_files.h"
#include "io/file.h"

namespace convoy {
namespace fs = std::filesystem;
namespace {

void rename_path(const fs::path& from, const fs::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0)
    fail("{}: cannot be renamed to {}: {}", from.string(), to.filename().string(), std::strerror(errno));
}

void remove_tree(const fs::path& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) fail("{}: cannot be removed: {}", path.string(), error.message());
}

// A checkpoint loses its name before its files, so that no name ever stands for half a checkpoint.
void remove_checkpoint(const fs::path& path) {
  fs::path doomed = path;
  doomed += ".removed.tmp";
  remove_tree(doomed);
  rename_path(path, doomed);
  remove_tree(doomed);
}

// Puts the complete directory `temporary` in place of `path`, which may exist (the same step saved again).
void put_in_place(const fs::path& temporary, const fs::path& path) {
  if (fs::exists(path)) {
    if (::renameat2(AT_FDCWD, temporary.c_str(), AT_FDCWD, path.c_str(), RENAME_EXCHANGE) == 0) {
      remove_tree(temporary);
      return;
    }
    remove_checkpoint(path);  // a file system that cannot exchange two names
  }
  rename_path(temporary, path);
}

// JSON has no text for NaN and infinity (nlohmann would silently write null), and readers bound the nesting.
void check_meta(const nlohmann::json& value, const std::string& where, int depth = 0) {
  CONVOY_CHECK(depth <= kMaxMetaDepth, "the checkpoint's meta{} is nested deeper than {}", where, kMaxMetaDepth);
  if (value.is_number_float() && !std::isfinite(value.get<double>()))
    fail("the checkpoint's meta{} is {}, which JSON cannot hold; leave the key out or store null", where,
         value.get<double>());
  if (value.is_structured())
    for (const auto& [key, item] : value.items()) check_meta(item, where + "/" + key, depth + 1);
}

void check_space(const fs::path& directory, uint64_t needed) {
  std::error_code error;
  const fs::space_info space = fs::space(directory, error);
  if (!error && space.available < needed)
    fail(
        "{}: a checkpoint needs {} bytes, the disk has {} free; free space there or choose another place, "
        "then try again",
        directory.string(), needed, space.available);
}

}  // namespace

std::string checkpoint_name(int64_t step) {
  return fmt::format("step-{:08d}", step);
}

CheckpointWriter::CheckpointWriter(fs::path directory, int keep_last)
    : directory_(std::move(directory)), keep_last_(keep_last) {
  CONVOY_CHECK(keep_last >= 1, "keep_last must be at least 1, not {}", keep_last);
  make_directories(directory_);
  std::vector<fs::path> stale;
  for (const auto& entry : fs::directory_iterator(directory_))
    if (entry.path().extension() == ".tmp") stale.push_back(entry.path());
  for (const fs::path& path : stale) remove_tree(path);
}

CheckpointWriter::~CheckpointWriter() {
  try {
    wait();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: the last checkpoint was not saved: %s\n", error.what());
  }
}

void CheckpointWriter::save(const CheckpointState& state, int64_t step, bool is_best) {
  wait();
  CONVOY_CHECK(step >= 0, "a checkpoint of step {} cannot be saved", step);
  check_meta(state.meta, "");
  safetensors_size(state.tensors);  // names and shapes are checked here, not in the background
  CheckpointState copy;
  copy.meta = state.meta;
  copy.tensors.reserve(state.tensors.size());
  for (const NamedTensor& tensor : state.tensors) copy.tensors.push_back(copy_tensor(tensor));
  thread_ = start_thread("save a checkpoint", [this, step, is_best, copy = std::move(copy)] {
    try {
      write(copy, step, is_best);
    } catch (...) {
      error_ = std::current_exception();
      failed_ = true;
    }
  });
}

void CheckpointWriter::wait() {
  if (thread_.joinable()) thread_.join();
  failed_ = false;
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void CheckpointWriter::poll() {
  if (failed_) wait();
}

void CheckpointWriter::write(const CheckpointState& state, int64_t step, bool is_best) const {
  const fs::path path = directory_ / checkpoint_name(step);
  fs::path temporary = path;
  temporary += ".tmp";
  try {
    check_space(directory_, safetensors_size(state.tensors));
    remove_tree(temporary);
    make_directories(temporary);
    const FileChecksum tensors = write_safetensors(temporary / kTensorsFile, state.tensors, {{"format", "pt"}});
    write_text_file(
        temporary / kStateFile,
        seal_json({{"format", kCheckpointFormat},
                   {"version", kCheckpointVersion},
                   {"step", step},
                   {"files", {{kTensorsFile, {{"bytes", tensors.bytes}, {"crc64", crc64_text(tensors.crc64)}}}}},
                   {"meta", state.meta}}));
    sync_directory(temporary);
    put_in_place(temporary, path);
  } catch (...) {
    std::error_code ignored;
    fs::remove_all(temporary, ignored);  // the first error is the one to report
    throw;
  }
  sync_directory(directory_);
  if (is_best) write_text_file(directory_ / kBestFile, seal_json({{"step", step}}));
  prune(step);
}

// Counts back from the newest: checkpoints of later steps are left-overs of a line that was given up, so they go first.
void CheckpointWriter::prune(int64_t newest) const {
  std::vector<int64_t> steps = list_steps(directory_);
  std::sort(steps.begin(), steps.end(),
            [newest](int64_t a, int64_t b) { return std::pair(a <= newest, a) > std::pair(b <= newest, b); });
  const auto best = find_best(directory_);
  for (size_t i = static_cast<size_t>(keep_last_); i < steps.size(); ++i)
    if (steps[i] != best) remove_checkpoint(directory_ / checkpoint_name(steps[i]));
}

int CheckpointWriter::set_aside_after(int64_t step) {
  wait();
  int count = 0;
  const auto best = find_best(directory_);
  for (int64_t later : list_steps(directory_)) {
    if (later <= step) continue;
    fs::path aside = directory_ / (checkpoint_name(later) + ".abandoned");
    remove_tree(aside);
    rename_path(directory_ / checkpoint_name(later), aside);
    ++count;
  }
  if (best && *best > step) fs::remove(directory_ / kBestFile);
  if (count > 0) sync_directory(directory_);
  return count;
}

}  // namespace convoy
