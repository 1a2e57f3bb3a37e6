#include "apps/trainer.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "apps/ranks.h"
#include "apps/recipe.h"
#include "comm/ranks.h"
#include "io/doctor.h"
#include "io/file.h"
#include "io/report.h"

namespace convoy {
namespace fs = std::filesystem;
namespace {

/// Reasons to stop, as the ranks tell each other.
enum StopFlag : uint32_t { kSigterm = 1, kSigint = 2, kSigusr1 = 4, kTimeIsUp = 8, kStepReached = 16, kAsked = 32 };
constexpr uint32_t kFromOutside = kSigterm | kSigint | kSigusr1 | kAsked;

uint32_t flag_of(const char* reason) {
  if (std::strcmp(reason, "SIGTERM") == 0) return kSigterm;
  if (std::strcmp(reason, "SIGINT") == 0) return kSigint;
  if (std::strcmp(reason, "SIGUSR1") == 0) return kSigusr1;
  return kAsked;
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

MissingLabels missing_labels(const Config& config) {
  return config.train.on_bad_sample == "skip" ? MissingLabels::keep : MissingLabels::error;
}

int64_t parameter_count(const ParamStore& store) {
  int64_t count = 0;
  for (const Parameter& p : store.parameters()) count += p.shape.count();
  return count;
}

std::shared_ptr<Communicator> ranks_of(const TrainerOptions& options) {
  return options.communicator ? options.communicator : std::make_shared<NullCommunicator>();
}

/// The configuration, once it is known to be one that can be honoured and that all ranks have.
const Config& agreed(const Config& config, Communicator& communicator) {
  communicator.set_activity("starting");
  require_supported(config);
  check_same_start(communicator, config);
  return config;
}

}  // namespace

Trainer::Trainer(const Config& config, const TrainerOptions& options)
    : options_(options),
      communicator_(ranks_of(options)),
      config_(agreed(config, *communicator_)),
      batch_plan_(plan_batch(config_, global_batch(config_, communicator_->size()), communicator_->size(),
                             options.context.exact_ranks)),
      shard_(batch_plan_.shard(global_batch(config_, communicator_->size()), communicator_->rank(),
                               communicator_->size())),
      train_data_(open_dataset(config_, config_.dataset.train_split, missing_labels(config_))),
      context_(options.context, communicator_) {
  if (!options_.skip_val) val_data_.emplace(open_dataset(config_, config_.dataset.val_split, missing_labels(config_)));
  check_same(
      *communicator_, "data set",
      fmt::format("train: {} images, hash {:016x}\nval: {}", train_data_.size(), train_data_.content_hash(),
                  val_data_ ? fmt::format("{} images, hash {:016x}", val_data_->size(), val_data_->content_hash())
                            : "not read"));
  LoaderOptions loading = loader_options(config_, shard_.global);
  steps_per_epoch_ = std::max<int64_t>(1, loading.drop_last ? train_data_.size() / shard_.global
                                                            : (train_data_.size() + shard_.global - 1) / shard_.global);
  total_steps_ = total_steps(config_, steps_per_epoch_);
  schedule_ = lr_schedule(config_, steps_per_epoch_);

  // The network, one training step of it, and the update.
  communicator_->set_activity("building the network");
  network_ = make_network(network_options(config_, train_data_.num_classes()), store_);
  store_.initialize(static_cast<uint64_t>(config_.seed));
  std::vector<OptimizerGroup> groups = parameter_groups(config_, *network_, store_);
  require_fitting(*network_, config_.model.model_name, config_.train.crop_size);
  training_step_ = std::make_unique<TrainingStep>(context_, store_, *network_, config_, shard_);
  check_same(*communicator_, "sequence of exchanges", training_step_->plan().exchanges());
  optimizer_ = std::make_unique<Optimizer>(store_, std::move(groups), optimizer_options(config_));
  predictor_ =
      std::make_unique<Predictor>(context_, store_, *network_, normalization(config_), prediction_options(config_));

  // What the run writes, and where it stands.
  rank_log_.set_lowest(LogLevel::kWarning);
  rank_log_.set_console(options_.console);
  if (is_main())
    open_run_directory();
  else
    options_.profile.clear();
  check_data();
  loading.first_slot = shard_.first;
  loading.slots = shard_.count;
  loading.report = [this](const std::string& message) { log().warning("{}", message); };
  loading.reading = [this](const std::string& file) { communicator_->set_data_file(file); };
  loader_ = std::make_unique<Loader>(train_data_, augment_options(config_), normalization(config_), loading);
  if (options_.resume.empty() || !resume()) load_initial_weights();
  check_same_state(*communicator_, store_, step_);
  log_start();
}

// A profile that cannot be written is said now, not after its steps.
void Trainer::open_run_directory() {
  if (!options_.profile.empty()) write_text_file(options_.profile, "{}\n");
  directory_ = std::make_unique<RunDirectory>(options_.run_directory);
  directory_->log().set_console(options_.console);
  CONVOY_CHECK(!options_.resume.empty() || !directory_->has_earlier_run(),
               "{}: holds an earlier run; go on with it by --resume auto, or choose another --run-dir",
               options_.run_directory.string());
  for (const std::string& note : options_.notes) log().info("{}", note);
  for (const std::string& note : config_.notes) log().warning("{}", note);
  checkpoints_ = std::make_unique<CheckpointWriter>(directory_->checkpoints(), options_.keep_checkpoints);
}

// The quick form of `convoy doctor`, whose time is bounded. Each rank does it, since each may read from a disk of its
// own; what is not an error is the same for all, and rank 0 says it.
void Trainer::check_data() {
  constexpr double kLeakSeconds = 20;
  constexpr size_t kShown = 10;
  const bool skip = config_.train.on_bad_sample == "skip";
  std::vector<std::string> errors;
  const auto check = [&](const SegmentationDataset& data) {
    CheckOptions options = quick_check();
    options.looking_at = [&](int64_t index) {
      communicator_->set_activity(fmt::format("checking {} image {} of {}", data.split(), index + 1, data.size()));
      communicator_->set_data_file(data.image_path(index));
    };
    for (const Finding& finding : check_dataset(data, options).findings)
      if (finding.severity == Severity::error && !skip)
        errors.push_back(finding.message);
      else if (finding.severity != Severity::note && is_main())
        log().warning("data set: {}", finding.message);
  };
  check(train_data_);
  if (val_data_) check(*val_data_);
  if (val_data_ && is_main()) {
    communicator_->set_activity("looking for validation images in the training images");
    const std::vector<Finding> leaks = check_leak(train_data_, *val_data_, kLeakSeconds);
    if (!leaks.empty())
      log().warning(
          "data set: {} of {} validation images are training images, too, so that the scores are too good: {}",
          leaks.size(), val_data_->size(), leaks.front().message);
  }
  if (errors.empty()) return;
  const size_t count = errors.size();
  errors.resize(std::min(count, kShown));
  fail("the data set has {} faults:\n  {}\nRepair them, or train around them with --on-bad-sample skip", count,
       fmt::join(errors, "\n  "));
}

// The records of the start. Collective, for the table of ranks.
void Trainer::log_start() {
  const int ranks = communicator_->size();
  const std::string device = device_name(context_.options().device);
  const std::string table = ranks > 1 ? rank_table(*communicator_, device, context_.threads()) : "";
  if (!is_main()) return;
  directory_->write_config(dump_yaml(config_));
  directory_->write_manifest({.command_line = options_.command_line,
                              .version = options_.version,
                              .threads = context_.threads(),
                              .ranks = ranks,
                              .device = device,
                              .dataset_hash = fmt::format("{:016x}", train_data_.content_hash())});
  events_ = std::make_unique<EventWriter>(directory_->path(), step_ > 0 ? step_ + 1 : 0);

  if (ranks > 1) log().info("{} ranks\n{}", ranks, table.substr(0, table.find_last_not_of('\n') + 1));
  log().info("{}{}, {} parameters in {} tensors; {} training images{}", config_.model.model_name,
             config_.model.backbone.empty() ? "" : " / " + config_.model.backbone, parameter_count(store_),
             store_.parameters().size(), train_data_.size(),
             val_data_ ? fmt::format(", {} validation images", val_data_->size()) : "");
  const SizeHW crop = config_.train.crop_size;
  log().info("global batch {} at {}x{}{}; {} steps, {} per epoch{}; activations {:.1f} MiB", shard_.global, crop.height,
             crop.width, ranks > 1 ? fmt::format(", divided {}", division_text(batch_plan_, shard_.global, ranks)) : "",
             total_steps_, steps_per_epoch_, ranks > 1 ? "" : fmt::format(", {} threads", context_.threads()),
             static_cast<double>(training_step_->plan().arena_bytes) / (1 << 20));
  const PredictionOptions& prediction = predictor_->options();
  if (val_data_ && !prediction.text().empty())
    log().info("evaluations: {} ({} passes for each image; TEST.* in the configuration)", prediction.text(),
               prediction.passes());
  if (ranks > 1 && config_.train.global_batch == 0)
    log().info(
        "global batch {} = BATCH_SIZE {} on {} ranks; set TRAIN.GLOBAL_BATCH to keep it when the number of ranks "
        "changes",
        shard_.global, config_.train.batch_size, ranks);
  if (ranks > 1) log().info("batch normalisation {}", batch_plan_.describe());
}

TrainResult Trainer::run() {
  TrainResult result{.total_steps = total_steps_};
  bool improved = false;
  first_step_ = step_;
  if (evaluation_due()) improved = evaluate();  // the run was stopped between this step and its evaluation
  if (communicator_->size() > 1)
    stop_flags_ |= any_rank(*communicator_, stop_wishes(), "reasons to stop before the first step");

  while (step_ < total_steps_ && !should_stop()) {
    profile_step();
    const auto start = Clock::now();
    communicator_->set_activity(fmt::format("waiting for the data of step {}", step_ + 1));
    Batch batch = loader_->next();
    const double comm_seconds = train_step(batch);
    progress_.add(seconds_since(start), batch.wait_seconds, comm_seconds);
    const bool log_due = step_ == 1 || step_ == total_steps_ || step_ % options_.log_interval == 0;
    if (is_main() && log_due) log_step(batch);
    loader_->recycle(std::move(batch));

    if (evaluation_due()) improved = evaluate() || improved;
    if (checkpoints_) checkpoints_->poll();
    const bool checkpoint_due =
        config_.train.checkpoint_iters > 0 ? step_ % config_.train.checkpoint_iters == 0 : every_epochs(1);
    if (checkpoint_due || improved || step_ == total_steps_) save_checkpoint(std::exchange(improved, false));
  }
  if (saved_step_ != step_ || improved) save_checkpoint(improved);
  result.step = step_;
  result.finished = step_ == total_steps_ && !evaluation_due();
  result.best_miou = best_miou_;
  if (!result.finished) result.stop_reason = stop_text();
  if (!is_main()) return result;

  // From here on nothing is collective: the other ranks have ended or are about to.
  communicator_->set_activity("writing the last checkpoint");
  checkpoints_->wait();
  profile_step();
  if (!result.finished) {
    log().info("{} at step {} of {}; the state is saved, go on with --resume auto", result.stop_reason, step_,
               total_steps_);
    if (stop_flags_ & kFromOutside) return result;  // who asks from outside wants the process to end
  }
  communicator_->set_activity("writing the report");
  draw_pictures();
  const fs::path report = write_report(directory_->path());
  log().info("{} steps{} in {}{}; report: {}", step_ - first_step_,
             first_step_ > 0 ? fmt::format(" ({} to {})", first_step_ + 1, step_) : "",
             duration_text(seconds_since(start_)),
             best_miou_ ? fmt::format(", best mIoU {:.2f} %", *best_miou_ * 100) : "", report.string());
  return result;
}

// One step: forward, loss and backward (apps/training_step.cpp), whose gradients are sums over all ranks; then one pass
// of the optimizer over all parameters, on every rank alike. Returns the seconds spent in exchanges with other ranks.
double Trainer::train_step(const Batch& batch) {
  const bool alone = communicator_->size() == 1;
  communicator_->set_activity(fmt::format("training step {}", step_ + 1));
  const TrainingStep::Result result = training_step_->run(batch, step_, alone ? 0 : stop_wishes());
  loss_ = result.loss;
  stop_flags_ |= result.stop_flags;
  if (!std::isfinite(loss_)) {
    const std::string images = fmt::format("images of the batch: {}", fmt::join(batch.names, ", "));
    if (!alone) log().warning("step {}: the loss is {}; {}", step_ + 1, loss_, images);
    fail_together(*communicator_,
                  fmt::format("step {}: the loss is {}; {}. Nothing of this step was saved. Lower SOLVER.LR or raise "
                              "SOLVER.WARMUP.EPOCHS; --check-values names the layer",
                              step_ + 1, loss_, alone ? images : "each rank has listed its images of the batch"));
  }
  if (result.keeps_all && !std::exchange(told_keeps_all_, true))
    log().warning(
        "step {}: the global batch has fewer labelled pixels than SOLVER.OHEM_MIN_KEPT ({}): all of them are "
        "kept, and so in further batches like it (this is said once)",
        step_ + 1, config_.solver.ohem_min_kept);
  optimizer_->step(schedule_.at(step_));
  ++step_;
  samples_seen_ += shard_.global;
  return result.comm_seconds;
}

bool Trainer::evaluation_due() const {
  return val_data_ && evaluated_step_ != step_ && step_ > 0 &&
         (every_epochs(options_.val_epochs) || step_ == total_steps_);
}

// What this rank knows; the others learn of it with the next step.
uint32_t Trainer::stop_wishes() const {
  uint32_t flags = 0;
  if (options_.stop_reason)
    if (const char* reason = options_.stop_reason()) flags |= flag_of(reason);
  if (is_main() && options_.max_seconds > 0 && seconds_since(start_) >= options_.max_seconds) flags |= kTimeIsUp;
  return flags;
}

// The same on every rank: only what all know counts.
bool Trainer::should_stop() {
  if (options_.stop_at_step > 0 && step_ >= options_.stop_at_step) stop_flags_ |= kStepReached;
  if (communicator_->size() == 1) stop_flags_ |= stop_wishes();
  return stop_flags_ != 0;
}

std::string Trainer::stop_text() const {
  if (stop_flags_ & kSigterm) return "SIGTERM";
  if (stop_flags_ & kSigint) return "SIGINT";
  if (stop_flags_ & kSigusr1) return "SIGUSR1";
  if (stop_flags_ & kAsked) {
    const char* own = options_.stop_reason ? options_.stop_reason() : nullptr;
    return own ? own : "stopped by another rank";
  }
  if (stop_flags_ & kTimeIsUp) return fmt::format("stopped after {:.0f} s", seconds_since(start_));
  return "stopped as asked";
}

}  // namespace convoy
