// Training as a library: no command line, no exit codes.
//
//   Trainer trainer(load_config("recipe.yaml"), {.run_directory = "runs/first"});
//   trainer.run();
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
  std::filesystem::path run_directory;
  ContextOptions context;
  std::string resume;         ///< "": a new run; "auto": the run directory's newest checkpoint; else a path
  int64_t log_interval = 10;  ///< steps between lines of the log and of metrics.jsonl
  int64_t val_epochs = 1;     ///< epochs between evaluations
  bool skip_val = false;
  double max_seconds = 0;                    ///< stop in good order after this time; 0: no limit
  int64_t stop_at_step = 0;                  ///< stop in good order at this step; 0: none
  std::function<const char*()> stop_reason;  ///< asked after each step: why to stop, or nullptr
  std::filesystem::path profile;             ///< Chrome trace of a few steps; empty: none
  bool console = true;                       ///< log lines to stdout and stderr as well
  int keep_checkpoints = 3;
  int64_t pictures = 4;  ///< validation images drawn into predictions/
  std::vector<std::string> command_line;
  std::string version;
};

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
  /// checkpoint. Throws Error where the configuration, the data or the checkpoint is at fault; a checkpoint or metric
  /// is never lost by that.
  Trainer(const Config& config, const TrainerOptions& options);

  /// Trains to the last step, or until asked to stop. Throws Error for a loss that is not finite (nothing of that step
  /// is saved), for data that cannot be read and for a disk that is full.
  TrainResult run();

  ParamStore& parameters() { return store_; }

 private:
  using Clock = std::chrono::steady_clock;

  void check_data();
  void resume();
  float train_step(const Batch& batch);
  void log_step(const Batch& batch, float loss, double lr);
  bool evaluate();
  void save_checkpoint(bool is_best);
  void draw_pictures();
  void profile_step();
  std::optional<std::string> reason_to_stop() const;
  bool every_epochs(int64_t epochs) const { return step_ % (epochs * steps_per_epoch_) == 0; }

  Config config_;
  TrainerOptions options_;
  Clock::time_point start_ = Clock::now();
  int64_t batch_size_;

  SegmentationDataset train_data_;
  std::optional<SegmentationDataset> val_data_;
  Context context_;
  ParamStore store_;
  std::unique_ptr<Network> network_;
  std::unique_ptr<TrainingStep> training_step_;
  std::unique_ptr<SgdOptimizer> optimizer_;
  LrSchedule schedule_;
  std::unique_ptr<Predictor> predictor_;

  std::unique_ptr<RunDirectory> directory_;
  std::unique_ptr<Loader> loader_;
  std::unique_ptr<CheckpointWriter> checkpoints_;
  std::unique_ptr<EventWriter> events_;

  int64_t steps_per_epoch_ = 1, total_steps_ = 0;
  int64_t step_ = 0;  ///< steps taken since the run began
  int64_t samples_seen_ = 0;
  int64_t evaluated_step_ = 0;  ///< of the last evaluation
  int64_t saved_step_ = -1;
  std::optional<double> best_miou_;
  Progress progress_;
  int64_t profile_until_ = 0;
};

}  // namespace convoy
