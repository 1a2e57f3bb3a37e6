// Training as a library: no command line, no exit codes.
//
//   Trainer trainer(load_config("recipe.yaml"), {.run_directory = "runs/first"});
//   trainer.run();
//
// On several ranks each constructs a Trainer with the same configuration and its communicator, inside run_rank
// (apps/ranks.h).
#pragma once
#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>

#include "apps/evaluator.h"
#include "apps/progress.h"
#include "apps/training_step.h"
#include "engine/context.h"
#include "engine/lr_schedule.h"
#include "engine/optimizer.h"
#include "io/checkpoint.h"
#include "io/event_writer.h"
#include "io/loader.h"
#include "io/run_directory.h"
#include "nets/network.h"

namespace convoy {

struct TrainerOptions {
  std::filesystem::path run_directory;  ///< of several ranks only rank 0 opens it
  ContextOptions context;
  std::shared_ptr<Communicator> communicator;  ///< the ranks that train together; null: one rank
  std::string resume;  ///< "": a new run; "auto": the run directory's newest checkpoint; else a path of a checkpoint or
                       ///< {epoch}.pth
  int64_t log_interval = 10;  ///< steps between lines of the log and of metrics.jsonl
  int64_t val_epochs = 1;     ///< epochs between evaluations
  bool skip_val = false;
  double max_seconds = 0;                    ///< stop in good order after this time by rank 0's clock; 0: no limit
  int64_t stop_at_step = 0;                  ///< stop in good order at this step; 0: none
  std::function<const char*()> stop_reason;  ///< asked before each step: why all ranks are to stop, or nullptr
  std::filesystem::path profile;             ///< Chrome trace of a few steps; empty: none
  bool console = true;                       ///< log lines to stdout and stderr as well
  int keep_checkpoints = 3;
  int64_t pictures = 4;            ///< validation images drawn into predictions/
  std::vector<std::string> notes;  ///< lines for the start of the log
  std::vector<std::string> command_line;
  std::string version;
};

/// The same on every rank.
struct TrainResult {
  int64_t step = 0;  ///< steps taken since the run began, resumed ones included
  int64_t total_steps = 0;
  bool finished = false;  ///< false: stopped in good order; the checkpoint of `step` continues the run
  std::string stop_reason;
  std::optional<double> best_miou;
};

class Trainer {
 public:
  /// Opens the data sets and checks them, builds the network, takes the run directory and, with resume, the state of a
  /// checkpoint. Collective. Throws Error where the configuration, the data or the checkpoint is at fault, or where
  /// ranks differ in program, configuration, data or state; a checkpoint or metric is never lost by that.
  Trainer(const Config& config, const TrainerOptions& options);

  /// Trains to the last step, or until one rank is asked to stop: then all stop after the same step. Collective. Throws
  /// Error for a loss that is not finite (nothing of that step is saved), for data that cannot be read and for a disk
  /// that is full. Ranks other than 0 return as soon as rank 0 needs them no more.
  TrainResult run();

  ParamStore& parameters() { return store_; }

 private:
  using Clock = std::chrono::steady_clock;

  bool is_main() const { return communicator_->rank() == 0; }
  Log& log() { return directory_ ? directory_->log() : rank_log_; }
  void open_run_directory();
  void check_data();
  void log_start();
  bool resume();
  void resume_from_file(const std::filesystem::path& path);
  void load_initial_weights();
  void restore(const LoadedCheckpoint& checkpoint);
  double train_step(const Batch& batch);
  bool evaluation_due() const;
  bool evaluate();
  void record_evaluation(const SegmentationScores& scores, double seconds, bool best);
  void log_step(const Batch& batch);
  void save_checkpoint(bool is_best);
  void draw_pictures();
  void profile_step();
  uint32_t stop_wishes() const;
  bool should_stop();
  std::string stop_text() const;
  bool every_epochs(int64_t epochs) const { return step_ % (epochs * steps_per_epoch_) == 0; }

  TrainerOptions options_;
  Clock::time_point start_ = Clock::now();
  int64_t first_step_ = 0;  ///< steps that were done before this process took over
  std::shared_ptr<Communicator> communicator_;
  Config config_;
  BatchPlan batch_plan_;
  BatchShard shard_;  ///< this rank's part of a global batch

  SegmentationDataset train_data_;
  std::optional<SegmentationDataset> val_data_;
  Context context_;
  ParamStore store_;
  std::unique_ptr<Network> network_;
  std::unique_ptr<TrainingStep> training_step_;
  std::unique_ptr<Optimizer> optimizer_;
  LrSchedule schedule_;
  std::unique_ptr<Predictor> predictor_;

  Log rank_log_;                             ///< of ranks other than 0: warnings and errors, to stderr
  std::unique_ptr<RunDirectory> directory_;  ///< rank 0's alone, as are the next two
  std::unique_ptr<CheckpointWriter> checkpoints_;
  std::unique_ptr<EventWriter> events_;
  std::unique_ptr<Loader> loader_;

  int64_t steps_per_epoch_ = 1, total_steps_ = 0;
  int64_t step_ = 0;  ///< steps taken since the run began
  int64_t samples_seen_ = 0;
  int64_t evaluated_step_ = 0;  ///< of the last evaluation
  int64_t saved_step_ = -1;
  std::optional<double> best_miou_;
  float loss_ = 0;  ///< of the last step
  bool told_keeps_all_ = false;
  uint32_t stop_flags_ = 0;  ///< reasons to stop that all ranks know of
  Progress progress_;
  int64_t profile_until_ = 0;
};

}  // namespace convoy
