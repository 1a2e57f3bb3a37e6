// Checkpoints: a directory step-00000120/ with tensors.safetensors and state.json, complete or absent at any instant.
#pragma once
#include <atomic>
#include <exception>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "io/safetensors.h"

namespace convoy {

/// Everything that a run needs to go on. Tensors: parameters and running statistics under their own names, optimizer
/// state as "optimizer.momentum.<name>", int64 num_batches_tracked. Meta: samples seen, epoch, seed, best metric,
/// config text, dataset hash, ...; JSON, whose numbers must be finite.
struct CheckpointState {
  std::vector<NamedTensor> tensors;
  nlohmann::json meta = nlohmann::json::object();
};

/// A checkpoint read back; its tensors own their values.
struct LoadedCheckpoint : CheckpointState {
  int64_t step = 0;
  std::filesystem::path path;        ///< the step-N directory
  std::vector<std::string> skipped;  ///< newer checkpoints that are damaged, each with what is wrong
};

/// Writes checkpoints into one directory by a background thread and keeps it tidy. Only one writer may use a directory
/// at a time (RunDirectory sees to it).
///
/// A checkpoint is written as step-N.tmp, files and directory are synced, the directory is renamed, its parent synced.
/// After an error nothing half-written remains, and older checkpoints are untouched. The newest `keep_last` checkpoints
/// and the best one (named by best.json) stay; others are removed after each successful save.
class CheckpointWriter {
 public:
  /// Creates the directory and removes what a killed run left half-written (*.tmp).
  CheckpointWriter(std::filesystem::path directory, int keep_last);
  /// Waits for the save under way; an error that nobody has asked for by wait() goes to stderr.
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  /// Waits for the save before this one, copies the state and returns; writing goes on in the background. Throws Error
  /// when the state cannot be stored, and the error of the save before this one (then this one is not started).
  void save(const CheckpointState& state, int64_t step, bool is_best);

  /// Waits until the last save is on the disk. Throws its Error: path, reason, bytes needed.
  void wait();

  /// Throws the Error of the last save if that has failed by now; does not wait for it.
  void poll();

  /// For going on from `step` while later checkpoints exist (of a line that is given up): renames those to
  /// step-N.abandoned, which no search finds. Returns how many.
  int set_aside_after(int64_t step);

 private:
  void write(const CheckpointState& state, int64_t step, bool is_best) const;
  void prune(int64_t newest) const;

  std::filesystem::path directory_;
  int keep_last_;
  std::thread thread_;
  std::exception_ptr error_;  // the thread's; read after it has ended
  std::atomic<bool> failed_ = false;
};

struct FoundCheckpoint {
  std::filesystem::path path;  ///< the step-N directory
  int64_t step = 0;
  std::vector<std::string> skipped;  ///< newer ones that are damaged, each with what is wrong
};

/// The newest checkpoint in `checkpoints_directory` that is intact (sizes and checksums are compared); damaged ones
/// are skipped with a reason. nullopt when there is no checkpoint at all; Error when all are damaged.
std::optional<FoundCheckpoint> find_latest(const std::filesystem::path& checkpoints_directory);

/// The step of the best checkpoint by best.json; nullopt when there is none.
std::optional<int64_t> find_best(const std::filesystem::path& checkpoints_directory);

/// Reads a checkpoint: a step-N directory, or the newest intact one of a checkpoints or run directory. Throws Error
/// naming the file, what is wrong with it, and the intact checkpoints beside it.
LoadedCheckpoint load_checkpoint(const std::filesystem::path& directory_or_run);

/// The name of a step's directory, "step-00000120".
std::string checkpoint_name(int64_t step);

}  // namespace convoy
