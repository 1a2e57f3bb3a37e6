#include "apps/trainer.h"

#include <algorithm>
#include <cmath>

#include "apps/model_state.h"
#include "apps/pictures.h"
#include "apps/recipe.h"
#include "io/doctor.h"
#include "io/file.h"
#include "io/report.h"

namespace convoy {
namespace fs = std::filesystem;
namespace {

constexpr int64_t kProfiledSteps = 10;
constexpr int64_t kPictureWidth = 640;

double seconds_between(std::chrono::steady_clock::time_point a, std::chrono::steady_clock::time_point b) {
  return std::chrono::duration<double>(b - a).count();
}

MissingLabels missing_labels(const Config& config) {
  return config.train.on_bad_sample == "skip" ? MissingLabels::keep : MissingLabels::error;
}

/// A run that was killed between an evaluation and the checkpoint behind it has recorded that evaluation already.
bool recorded_evaluation(const fs::path& metrics, int64_t step) {
  const auto objects = read_metrics(metrics);
  return std::any_of(objects.begin(), objects.end(), [&](const nlohmann::json& o) {
    return o.value("eval", false) && o.value("step", int64_t{-1}) == step;
  });
}

int64_t parameter_count(const ParamStore& store) {
  int64_t count = 0;
  for (const Parameter& p : store.parameters()) count += p.shape.count();
  return count;
}

/// A step whose loss was finite can still leave weights that are not: a checkpoint of those would be worthless.
void check_finite(const NamedTensor& tensor, int64_t step) {
  if (tensor.dtype != DType::kF32) return;
  const auto* values = static_cast<const float*>(tensor.values());
  const size_t count = tensor.bytes() / sizeof(float);
  for (size_t i = 0; i < count; ++i)
    CONVOY_CHECK(std::isfinite(values[i]),
                 "step {}: {} holds {} after the update, so no checkpoint of this step was saved. Lower SOLVER.LR or "
                 "raise SOLVER.WARMUP.EPOCHS",
                 step, tensor.name, values[i]);
}

const Config& supported(const Config& config) {
  require_supported(config);
  return config;
}

}  // namespace

Trainer::Trainer(const Config& config, const TrainerOptions& options)
    : config_(supported(config)),
      options_(options),
      batch_size_(global_batch(config_, 1)),
      train_data_(open_dataset(config_, "train", missing_labels(config_))),
      context_(options.context) {
  if (!options_.skip_val) val_data_.emplace(open_dataset(config_, "val", missing_labels(config_)));
  const LoaderOptions loading = loader_options(config_, batch_size_);
  steps_per_epoch_ = std::max<int64_t>(
      1, loading.drop_last ? train_data_.size() / batch_size_ : (train_data_.size() + batch_size_ - 1) / batch_size_);
  total_steps_ = total_steps(config_, steps_per_epoch_);
  schedule_ = lr_schedule(config_, steps_per_epoch_);

  // The network, one training step of it, and the update.
  network_ = make_network(network_options(config_, train_data_.num_classes()), store_);
  store_.initialize(static_cast<uint64_t>(config_.seed));
  std::vector<OptimizerGroup> groups = parameter_groups(config_, *network_, store_);
  const SizeHW crop = config_.train.crop_size;
  require_fitting(*network_, config_.model.model_name, crop);
  training_step_ = std::make_unique<TrainingStep>(context_, store_, *network_, config_, shard_of(batch_size_, 0, 1));
  optimizer_ = std::make_unique<SgdOptimizer>(store_, std::move(groups),
                                              SgdOptimizer::Options{.momentum = config_.solver.momentum});
  predictor_ = std::make_unique<Predictor>(context_, store_, *network_, normalization(config_));

  // What the run writes, and where it stands. A profile that cannot be written is said now, not after its steps.
  if (!options_.profile.empty()) write_text_file(options_.profile, "{}\n");
  directory_ = std::make_unique<RunDirectory>(options_.run_directory);
  directory_->log().set_console(options_.console);
  CONVOY_CHECK(!options_.resume.empty() || !directory_->has_earlier_run(),
               "{}: holds an earlier run; go on with it by --resume auto, or choose another --run-dir",
               options_.run_directory.string());
  Log& log = directory_->log();
  for (const std::string& note : config_.notes) log.warning("{}", note);
  check_data();
  loader_ = std::make_unique<Loader>(train_data_, augment_options(config_), normalization(config_), [&] {
    LoaderOptions reporting = loading;
    reporting.report = [&log](const std::string& message) { log.warning("{}", message); };
    return reporting;
  }());
  checkpoints_ = std::make_unique<CheckpointWriter>(directory_->checkpoints(), options_.keep_checkpoints);
  if (!options_.resume.empty()) resume();
  directory_->write_config(dump_yaml(config_));
  directory_->write_manifest({.command_line = options_.command_line,
                              .version = options_.version,
                              .threads = context_.threads(),
                              .device = device_name(context_.options().device),
                              .dataset_hash = fmt::format("{:016x}", train_data_.content_hash())});
  events_ = std::make_unique<EventWriter>(directory_->path(), step_ > 0 ? step_ + 1 : 0);

  log.info("{}{}, {} parameters in {} tensors; {} training images{}", config_.model.model_name,
           config_.model.backbone.empty() ? "" : " / " + config_.model.backbone, parameter_count(store_),
           store_.parameters().size(), train_data_.size(),
           val_data_ ? fmt::format(", {} validation images", val_data_->size()) : "");
  log.info("global batch {} at {}x{}, {} steps of {} per epoch, {} threads; activations {:.1f} MiB", batch_size_,
           crop.height, crop.width, total_steps_, steps_per_epoch_, context_.threads(),
           static_cast<double>(training_step_->plan().arena_bytes) / (1 << 20));
  if (!config_.model.backbone.empty() && config_.train.backbone_pretrained && step_ == 0)
    log.warning("{} starts from random weights: nothing is downloaded", config_.model.backbone);
}

// The quick form of `convoy doctor`: every header, and a few samples whole.
void Trainer::check_data() {
  constexpr int64_t kDecoded = 16;
  constexpr size_t kShown = 10;
  const bool skip = config_.train.on_bad_sample == "skip";
  std::vector<std::string> errors;
  const auto check = [&](const SegmentationDataset& data) {
    for (const Finding& finding : check_dataset(data, kDecoded).findings)
      if (finding.severity == Severity::error && !skip)
        errors.push_back(finding.message);
      else if (finding.severity != Severity::note)
        directory_->log().warning("data set: {}", finding.message);
  };
  check(train_data_);
  if (val_data_) check(*val_data_);
  if (errors.empty()) return;
  const size_t count = errors.size();
  errors.resize(std::min(count, kShown));
  fail("the data set has {} faults:\n  {}\nRepair them, or train around them with --on-bad-sample skip", count,
       fmt::join(errors, "\n  "));
}

void Trainer::resume() {
  Log& log = directory_->log();
  fs::path from = options_.resume;
  if (options_.resume == "auto") {
    const auto found = find_latest(directory_->checkpoints());
    if (!found) {
      log.info("resume auto: {} holds no checkpoint, the run starts anew", directory_->checkpoints().string());
      directory_->metrics().truncate_after(0);
      return;
    }
    for (const std::string& reason : found->skipped) log.warning("a damaged checkpoint was passed over: {}", reason);
    from = found->path;
  }
  const LoadedCheckpoint checkpoint = load_checkpoint(from);
  for (const std::string& reason : checkpoint.skipped) log.warning("a damaged checkpoint was passed over: {}", reason);
  restore_tensors(checkpoint, checkpoint.path.string(), store_, true);
  try {
    const nlohmann::json& meta = checkpoint.meta;
    optimizer_->resume(meta.at("optimizer_steps").get<int64_t>());
    samples_seen_ = meta.at("samples_seen").get<int64_t>();
    evaluated_step_ = meta.at("evaluated_step").get<int64_t>();
    if (!meta.at("best_miou").is_null()) best_miou_ = meta.at("best_miou").get<double>();
    if (meta.at("dataset_hash") != fmt::format("{:016x}", train_data_.content_hash()))
      log.warning("the training images are not those of the checkpoint: {} was {}", train_data_.root(),
                  meta.at("dataset_hash").dump());
    for (const std::string& change :
         config_changes(parse_config(meta.at("config").get<std::string>(), "checkpoint"), config_))
      log.warning("changed since the checkpoint: {}", change);
  } catch (const nlohmann::json::exception& error) {
    fail("{}: the state of the run is incomplete: {}", checkpoint.path.string(), error.what());
  }
  step_ = saved_step_ = checkpoint.step;
  CONVOY_CHECK(step_ <= total_steps_,
               "{}: the checkpoint is of step {}, the run has only {} steps; raise TRAIN.EPOCHS or TRAIN.MAX_ITERS",
               checkpoint.path.string(), step_, total_steps_);
  loader_->seek(step_);
  const MetricsFile::Cut cut = directory_->metrics().truncate_after(step_);
  const int abandoned = checkpoints_->set_aside_after(step_);
  log.info("resumed from {} at step {}{}{}", checkpoint.path.string(), step_,
           cut.removed ? fmt::format("; {} later metrics were cut off", cut.removed) : "",
           abandoned ? fmt::format("; {} later checkpoints were set aside as .abandoned", abandoned) : "");
}

TrainResult Trainer::run() {
  Log& log = directory_->log();
  TrainResult result{.total_steps = total_steps_};
  const auto evaluation_due = [&] {
    return val_data_ && evaluated_step_ != step_ && step_ > 0 &&
           (every_epochs(options_.val_epochs) || step_ == total_steps_);
  };
  bool improved = false;
  std::optional<std::string> stop;
  if (evaluation_due()) improved = evaluate();  // the run was stopped between this step and its evaluation

  while (step_ < total_steps_ && !(stop = reason_to_stop())) {
    profile_step();
    const auto start = Clock::now();
    Batch batch = loader_->next();
    const double lr = schedule_.at(step_);
    const float loss = train_step(batch);
    progress_.add(seconds_between(start, Clock::now()), batch.wait_seconds);
    if (step_ == 1 || step_ == total_steps_ || step_ % options_.log_interval == 0) log_step(batch, loss, lr);
    loader_->recycle(std::move(batch));

    if (evaluation_due()) improved = evaluate() || improved;
    checkpoints_->poll();
    const bool checkpoint_due =
        config_.train.checkpoint_iters > 0 ? step_ % config_.train.checkpoint_iters == 0 : every_epochs(1);
    if (checkpoint_due || improved || step_ == total_steps_) save_checkpoint(std::exchange(improved, false));
  }
  if (saved_step_ != step_ || improved) save_checkpoint(improved);
  checkpoints_->wait();
  profile_step();

  result.step = step_;
  result.finished = step_ == total_steps_ && !evaluation_due();
  result.best_miou = best_miou_;
  if (!result.finished) {
    result.stop_reason = (stop ? stop : reason_to_stop()).value_or("stopped");
    log.info("{} at step {} of {}; the state is saved, go on with --resume auto", result.stop_reason, step_,
             total_steps_);
    if (options_.stop_reason && options_.stop_reason())
      return result;  // who asks from outside wants the process to end
  }
  draw_pictures();
  const fs::path report = write_report(directory_->path());
  log.info("{} steps in {}{}; report: {}", step_, duration_text(seconds_between(start_, Clock::now())),
           best_miou_ ? fmt::format(", best mIoU {:.2f} %", *best_miou_ * 100) : "", report.string());
  return result;
}

// One step: forward, loss and backward (apps/training_step.cpp); then one pass of the optimizer over all parameters.
float Trainer::train_step(const Batch& batch) {
  const float loss = training_step_->run(batch, step_).loss;
  CONVOY_CHECK(std::isfinite(loss),
               "step {}: the loss is {}; images of the batch: {}. Nothing of this step was saved. Lower SOLVER.LR or "
               "raise SOLVER.WARMUP.EPOCHS; "
               "--check-values names the layer",
               step_ + 1, loss, fmt::join(batch.names, ", "));
  optimizer_->step(schedule_.at(step_));
  ++step_;
  samples_seen_ += batch.count;
  return loss;
}

void Trainer::log_step(const Batch& batch, float loss, double lr) {
  const double seconds = progress_.seconds_per_step(), images_per_second = static_cast<double>(batch_size_) / seconds;
  const int64_t peak = peak_memory_bytes();
  directory_->log().info(
      "step {}/{}  epoch {}  lr {:.3g}  loss {:.4f}  {:.1f} images/s  data wait {:.0f} %  ETA {}  memory {:.2f} GiB",
      step_, total_steps_, batch.epoch + 1, lr, loss, images_per_second, progress_.data_wait_share() * 100,
      duration_text(seconds * static_cast<double>(total_steps_ - step_)), static_cast<double>(peak) / (1 << 30));
  directory_->metrics().append({{"step", step_},
                                {"epoch", batch.epoch + 1},
                                {"loss", loss},
                                {"lr", lr},
                                {"images_per_second", images_per_second},
                                {"data_wait_ms", progress_.data_wait_seconds() * 1000},
                                {"comm_wait_ms", 0.0},
                                {"peak_memory_bytes", peak}});
  events_->add_scalar("train/loss", loss, step_);
  events_->add_scalar("train/lr", lr, step_);
  events_->add_scalar("train/images_per_second", images_per_second, step_);
}

/// Returns whether the mean IoU is the best so far. An evaluation that is broken off leaves evaluated_step_ as it was,
/// so that a resumed run makes up for it.
bool Trainer::evaluate() {
  Log& log = directory_->log();
  EvaluationOptions evaluation = evaluation_options(config_);
  evaluation.stop = [this] { return reason_to_stop().has_value(); };
  if (config_.train.on_bad_sample == "skip")
    evaluation.skip = [&log](const std::string& message) { log.warning("left out of the evaluation: {}", message); };
  const auto start = Clock::now();
  const auto scores = evaluate_dataset(*predictor_, *val_data_, evaluation);
  if (!scores) return false;
  evaluated_step_ = step_;
  saved_step_ = -1;
  nlohmann::json json = scores->json(val_data_->class_names());
  json["step"] = step_;
  json["epoch"] = step_ / steps_per_epoch_;
  if (!recorded_evaluation(directory_->path() / "metrics.jsonl", step_)) directory_->metrics().append(json);
  events_->add_scalar("val/miou", scores->miou(), step_);
  events_->add_scalar("val/pixel_accuracy", scores->pixel_accuracy().value_or(0), step_);
  const bool best = !best_miou_ || scores->miou() > *best_miou_;
  if (best) best_miou_ = scores->miou();
  log.info(
      "evaluation at step {}: mIoU {:.2f} % ({:.2f} % over classes that occur), pixel accuracy {:.2f} %, {} images in "
      "{}{}",
      step_, scores->miou() * 100, scores->miou_present().value_or(0) * 100, scores->pixel_accuracy().value_or(0) * 100,
      scores->images, duration_text(seconds_between(start, Clock::now())), best ? "; the best so far" : "");
  return best;
}

void Trainer::save_checkpoint(bool is_best) {
  CheckpointState state{.tensors = state_tensors(store_)};
  for (const NamedTensor& tensor : state.tensors) check_finite(tensor, step_);
  state.meta = {{"step", step_},
                {"samples_seen", samples_seen_},
                {"epoch", step_ / steps_per_epoch_},
                {"seed", config_.seed},
                {"optimizer_steps", optimizer_->steps_taken()},
                {"evaluated_step", evaluated_step_},
                {"best_miou", best_miou_ ? nlohmann::json(*best_miou_) : nlohmann::json()},
                {"config", dump_yaml(config_)},
                {"dataset_hash", fmt::format("{:016x}", train_data_.content_hash())},
                {"classes", class_table_json({train_data_.class_names(), train_data_.palette()})}};
  checkpoints_->save(state, step_, is_best);
  saved_step_ = step_;
}

// predictions/<sample>_{image,label,prediction,overlay}.png of validation images spread over the set.
void Trainer::draw_pictures() {
  if (!val_data_) return;
  const int64_t count = std::min(options_.pictures, val_data_->size());
  const auto& palette = val_data_->palette();
  for (int64_t i = 0; i < count; ++i) {
    Sample sample;
    try {
      sample = val_data_->decode(i * val_data_->size() / count);
    } catch (const Error& error) {
      directory_->log().warning("no picture: {}", error.what());
      continue;
    }
    const LabelMap prediction = predictor_->predict(sample.image);
    const std::string base = (directory_->predictions() / fs::path(sample.name).stem()).string();
    write_png(base + "_image.png", shrunk(sample.image, kPictureWidth));
    write_png(base + "_label.png", shrunk(color_picture(sample.labels, palette), kPictureWidth));
    write_png(base + "_prediction.png", shrunk(color_picture(prediction, palette), kPictureWidth));
    write_png(base + "_overlay.png", shrunk(overlay_picture(sample.image, prediction, palette), kPictureWidth));
  }
}

// Called before each step and at the end: records kProfiledSteps steps after a first one to warm up.
void Trainer::profile_step() {
  if (options_.profile.empty()) return;
  Profiler& profiler = context_.profiler();
  if (profile_until_ == 0) {
    profile_until_ = step_ + 1 + kProfiledSteps;
  } else if (step_ >= profile_until_ || step_ == total_steps_) {
    profiler.enable(false);
    profiler.write_chrome_trace(options_.profile.string());
    directory_->log().info("profile: {}", options_.profile.string());
    options_.profile.clear();
  } else {
    profiler.enable(true);
  }
}

std::optional<std::string> Trainer::reason_to_stop() const {
  if (options_.stop_reason)
    if (const char* reason = options_.stop_reason()) return reason;
  if (options_.stop_at_step > 0 && step_ >= options_.stop_at_step) return "stopped as asked";
  const double seconds = seconds_between(start_, Clock::now());
  if (options_.max_seconds > 0 && seconds >= options_.max_seconds)
    return fmt::format("stopped after {:.0f} s", seconds);
  return std::nullopt;
}

}  // namespace convoy
