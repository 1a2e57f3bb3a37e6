// What a Trainer keeps: evaluations, checkpoints and their way back, lines of metrics, pictures.
#include <algorithm>
#include <cmath>

#include "apps/model_state.h"
#include "apps/pictures.h"
#include "apps/ranks.h"
#include "apps/recipe.h"
#include "apps/trainer.h"

namespace convoy {
namespace fs = std::filesystem;
namespace {

constexpr int64_t kProfiledSteps = 10;
constexpr int64_t kPictureWidth = 640;

/// A run that was killed between an evaluation and the checkpoint behind it has recorded that evaluation already.
bool recorded_evaluation(const fs::path& metrics, int64_t step) {
  const auto objects = read_metrics(metrics);
  return std::any_of(objects.begin(), objects.end(), [&](const nlohmann::json& o) {
    return o.value("eval", false) && o.value("step", int64_t{-1}) == step;
  });
}

/// A step whose loss was finite can still leave weights that are not: a checkpoint of those would be worthless. The
/// message about the first such value, or "".
std::string not_finite(const NamedTensor& tensor, int64_t step) {
  if (tensor.dtype != ElementType::kF32) return "";
  const auto* values = static_cast<const float*>(tensor.values());
  const auto* end = values + tensor.bytes() / sizeof(float);
  const auto* found = std::find_if(values, end, [](float value) { return !std::isfinite(value); });
  if (found == end) return "";
  return fmt::format(
      "step {}: {} holds {} after the update, so no checkpoint of this step was saved. Lower SOLVER.LR or raise "
      "SOLVER.WARMUP.EPOCHS",
      step, tensor.name, *found);
}

}  // namespace

// Rank 0 finds the checkpoint; every rank reads it. Returns whether there is one.
bool Trainer::resume() {
  communicator_->set_activity("looking for the checkpoint to resume from");
  std::optional<LoadedCheckpoint> checkpoint;
  std::string weights_file;
  if (is_main()) {
    fs::path from = options_.resume;
    if (options_.resume == "auto") {
      const auto found = find_latest(directory_->checkpoints());
      from = found ? found->path : "";
      if (found)
        for (const std::string& reason : found->skipped)
          log().warning("a damaged checkpoint was passed over: {}", reason);
    }
    std::error_code ignored;
    if (fs::is_regular_file(from, ignored))
      weights_file = from.string();
    else if (!from.empty())
      checkpoint = load_checkpoint(from);
  }
  const std::string path = broadcast_text(*communicator_, checkpoint ? checkpoint->path.string() : weights_file,
                                          "the checkpoint to resume from");
  if (path.empty()) {
    if (!is_main()) return false;
    log().info("resume auto: {} holds no checkpoint, the run starts anew", directory_->checkpoints().string());
    directory_->metrics().truncate_after(0);
    return false;
  }
  communicator_->set_activity("reading a checkpoint");
  std::error_code ignored;
  if (fs::is_regular_file(path, ignored)) {
    resume_from_file(path);
  } else {
    if (!checkpoint) checkpoint = load_checkpoint(path);
    restore(*checkpoint);
  }
  if (!is_main()) return true;
  if (checkpoint)
    for (const std::string& reason : checkpoint->skipped)
      log().warning("a damaged checkpoint was passed over: {}", reason);
  const MetricsFile::Cut cut = directory_->metrics().truncate_after(step_);
  const int abandoned = checkpoints_->set_aside_after(step_);
  log().info("resumed from {} at step {}{}{}", path, step_,
             cut.removed ? fmt::format("; {} later metrics were cut off", cut.removed) : "",
             abandoned ? fmt::format("; {} later checkpoints were set aside as .abandoned", abandoned) : "");
  return true;
}

void Trainer::restore(const LoadedCheckpoint& checkpoint) {
  restore_tensors(checkpoint, checkpoint.path.string(), store_, true);
  std::vector<std::string> changes;
  try {
    const nlohmann::json& meta = checkpoint.meta;
    optimizer_->resume(meta.at("optimizer_steps").get<int64_t>());
    samples_seen_ = meta.at("samples_seen").get<int64_t>();
    evaluated_step_ = meta.at("evaluated_step").get<int64_t>();
    if (!meta.at("best_miou").is_null()) best_miou_ = meta.at("best_miou").get<double>();
    if (meta.at("dataset_hash") != fmt::format("{:016x}", train_data_.content_hash()) && is_main())
      log().warning("the training images are not those of the checkpoint: {} was {}", train_data_.root(),
                    meta.at("dataset_hash").dump());
    changes = config_changes(parse_config(meta.at("config").get<std::string>(), "checkpoint"), config_);
    const int64_t batch = meta.value("global_batch", shard_.global);
    if (batch != shard_.global) changes.push_back(fmt::format("global batch {} -> {}", batch, shard_.global));
    const int ranks = meta.value("ranks", communicator_->size());
    if (ranks != communicator_->size() && !options_.context.exact_ranks)
      changes.push_back(fmt::format("ranks {} -> {}: sums are rounded in another order", ranks, communicator_->size()));
  } catch (const nlohmann::json::exception& error) {
    fail("{}: the state of the run is incomplete: {}", checkpoint.path.string(), error.what());
  }
  if (is_main())
    for (const std::string& change : changes) log().warning("changed since the checkpoint: {}", change);
  step_ = saved_step_ = checkpoint.step;
  CONVOY_CHECK(step_ <= total_steps_,
               "{}: the checkpoint is of step {}, the run has only {} steps; raise TRAIN.EPOCHS or TRAIN.MAX_ITERS",
               checkpoint.path.string(), step_, total_steps_);
  loader_->seek(step_);
}

void Trainer::log_step(const Batch& batch) {
  const double seconds = progress_.seconds_per_step(), images_per_second = static_cast<double>(shard_.global) / seconds;
  const double lr = schedule_.at(step_ - 1);
  const int64_t peak = peak_memory_bytes();
  log().info(
      "step {}/{}  epoch {}  lr {:.3g}  loss {:.4f}  {:.1f} images/s  data wait {:.0f} %{}  ETA {}  memory {:.2f} GiB",
      step_, total_steps_, batch.epoch + 1, lr, loss_, images_per_second, progress_.data_wait_share() * 100,
      communicator_->size() > 1 ? fmt::format("  exchanges {:.0f} %", progress_.comm_wait_seconds() / seconds * 100)
                                : "",
      duration_text(seconds * static_cast<double>(total_steps_ - step_)), static_cast<double>(peak) / (1 << 30));
  directory_->metrics().append(nlohmann::json{{"step", step_},
                                              {"epoch", batch.epoch + 1},
                                              {"loss", loss_},
                                              {"lr", lr},
                                              {"images_per_second", images_per_second},
                                              {"data_wait_ms", progress_.data_wait_seconds() * 1000},
                                              {"comm_wait_ms", progress_.comm_wait_seconds() * 1000},
                                              {"peak_memory_bytes", peak}});
  events_->add_scalar("train/loss", loss_, step_);
  events_->add_scalar("train/lr", lr, step_);
  events_->add_scalar("train/images_per_second", images_per_second, step_);
}

/// Returns whether the mean IoU is the best so far. An evaluation that is broken off leaves evaluated_step_ as it was,
/// so that a resumed run makes up for it.
bool Trainer::evaluate() {
  if (batch_plan_.statistics == GlobalBatch::Statistics::kRank) share_statistics(*communicator_, store_);
  EvaluationOptions evaluation = evaluation_options(config_);
  evaluation.communicator = communicator_.get();
  uint32_t wishes = 0;
  const bool stopping = should_stop();
  evaluation.stop = [&] { return stopping || (wishes |= stop_wishes()) != 0; };
  if (config_.train.on_bad_sample == "skip")
    evaluation.skip = [this](const std::string& message) { log().warning("left out of the evaluation: {}", message); };
  const auto start = Clock::now();
  const auto scores = evaluate_dataset(*predictor_, *val_data_, evaluation);
  stop_flags_ |= any_rank(*communicator_, wishes, "reasons to stop after an evaluation");
  if (!scores) return false;
  evaluated_step_ = step_;
  saved_step_ = -1;
  const bool best = !best_miou_ || scores->miou() > *best_miou_;
  if (best) best_miou_ = scores->miou();
  if (is_main()) record_evaluation(*scores, std::chrono::duration<double>(Clock::now() - start).count(), best);
  return best;
}

void Trainer::record_evaluation(const SegmentationScores& scores, double seconds, bool best) {
  nlohmann::ordered_json json = scores.json(val_data_->class_names());
  json["epoch"] = step_ / steps_per_epoch_;
  if (const std::string how = predictor_->options().text(); !how.empty()) json["prediction"] = how;
  json["step"] = step_;
  if (!recorded_evaluation(directory_->path() / "metrics.jsonl", step_)) directory_->metrics().append(json);
  events_->add_scalar("val/miou", scores.miou(), step_);
  events_->add_scalar("val/pixel_accuracy", scores.pixel_accuracy().value_or(0), step_);
  log().info(
      "evaluation at step {}: mIoU {:.2f} % ({:.2f} % over classes that occur), pixel accuracy {:.2f} %, {} images in "
      "{}{}",
      step_, scores.miou() * 100, scores.miou_present().value_or(0) * 100, scores.pixel_accuracy().value_or(0) * 100,
      scores.images, duration_text(seconds), best ? "; the best so far" : "");
}

// Ranks that have drifted apart are an error before anything is saved. Writing goes on in the background.
void Trainer::save_checkpoint(bool is_best) {
  communicator_->set_activity(fmt::format("saving the checkpoint of step {}", step_));
  if (batch_plan_.statistics == GlobalBatch::Statistics::kRank) share_statistics(*communicator_, store_);
  check_same_state(*communicator_, store_, step_);
  CheckpointState state{.tensors = state_tensors(store_)};
  for (const NamedTensor& tensor : state.tensors)
    if (const std::string fault = not_finite(tensor, step_); !fault.empty()) fail_together(*communicator_, fault);
  saved_step_ = step_;
  if (!is_main()) return;
  state.meta = {{"step", step_},
                {"samples_seen", samples_seen_},
                {"epoch", step_ / steps_per_epoch_},
                {"seed", config_.seed},
                {"global_batch", shard_.global},
                {"ranks", communicator_->size()},
                {"optimizer_steps", optimizer_->steps_taken()},
                {"evaluated_step", evaluated_step_},
                {"best_miou", best_miou_ ? nlohmann::json(*best_miou_) : nlohmann::json()},
                {"config", dump_yaml(config_)},
                {"dataset_hash", fmt::format("{:016x}", train_data_.content_hash())},
                {"classes", class_table_json(train_data_.classes())}};
  checkpoints_->save(state, step_, is_best);
}

// predictions/<sample>_{image,label,prediction,overlay}.png of validation images spread over the set.
void Trainer::draw_pictures() {
  if (!val_data_) return;
  const int64_t count = std::min(options_.pictures, val_data_->size());
  const auto& palette = val_data_->palette();
  std::vector<fs::path> samples;
  for (int64_t i = 0; i < count; ++i)
    samples.push_back(fs::path(val_data_->sample_name(i * val_data_->size() / count)).filename());
  const std::vector<std::string> names = output_names(samples);
  for (int64_t i = 0; i < count; ++i) {
    communicator_->set_activity(fmt::format("drawing picture {} of {}", i + 1, count));
    Sample sample;
    try {
      sample = val_data_->decode(i * val_data_->size() / count);
    } catch (const Error& error) {
      log().warning("no picture: {}", error.what());
      continue;
    }
    const LabelMap prediction = predictor_->predict(sample.image);
    const std::string base = (directory_->predictions() / names[static_cast<size_t>(i)]).string();
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
    log().info("profile: {}", options_.profile.string());
    options_.profile.clear();
  } else {
    profiler.enable(true);
  }
}

}  // namespace convoy
