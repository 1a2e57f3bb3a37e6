// convoy eval: scores of a trained network over a split.
#include <unistd.h>

#include <chrono>
#include <nlohmann/json.hpp>

#include "apps/commands.h"
#include "apps/evaluator.h"
#include "apps/model_state.h"
#include "apps/pictures.h"
#include "apps/progress.h"
#include "apps/ranks.h"
#include "io/json_text.h"

namespace convoy {
namespace {

using Clock = std::chrono::steady_clock;

struct EvalArguments {
  explicit EvalArguments(CLI::App& command) : config(command), context(command), ranks(command) {
    command.add_option("--run-dir", run_directory, "a run: its best checkpoint, else its newest")->type_name("DIR");
    command.add_option("--checkpoint", checkpoint, "a directory step-N, or a weight file (.pth, .safetensors)")
        ->type_name("PATH");
    command.add_option("--split", split, "train, val, ...")->capture_default_str();
    command.add_option("--save-predictions", pictures, "write the predictions as PNG files below this folder")
        ->type_name("DIR");
    picture_kinds.add_to(command);
    command
        .add_option("--on-bad-sample", on_bad_sample,
                    "an unreadable image or label file ends the evaluation (fail) or is named and left out (skip)")
        ->capture_default_str()
        ->check(CLI::IsMember({"fail", "skip"}));
    command.add_flag("--json", json, "print the scores as JSON");
    command.add_flag("--confusion", confusion,
                     "with --json: the counts of pixels, one row for each class in the labels, one column for each "
                     "predicted class");
  }
  ModelSource source() const { return {run_directory, checkpoint, config.file(), config.overrides()}; }

  ConfigArguments config;
  ContextArguments context;
  RankArguments ranks;
  PictureArguments picture_kinds;
  std::string run_directory, checkpoint, split = "val", pictures, on_bad_sample = "fail";
  bool json = false, confusion = false;
};

/// Rank 0 chooses the checkpoint; every rank reads it.
std::unique_ptr<TrainedModel> load_same_model(Communicator& communicator, const EvalArguments& args) {
  std::unique_ptr<TrainedModel> model;
  if (communicator.rank() == 0) model = load_model(args.source());
  const std::string path = broadcast_text(communicator, model ? model->path.string() : "", "the checkpoint to score");
  if (!model)
    model = load_model({.checkpoint = path, .config_file = args.config.file(), .overrides = args.config.overrides()},
                       false);
  check_same_start(communicator, model->config);
  check_same_state(communicator, model->store, model->step);
  return model;
}

/// "evaluation: 120 of 500 images, 3.2 images/s, 2:01 left" on standard error now and then: in place on a terminal,
/// else line by line and less often.
class ProgressLine {
 public:
  explicit ProgressLine(int ranks) : ranks_(ranks), in_place_(::isatty(STDERR_FILENO) == 1) {}
  void show(int64_t done, int64_t all) {
    const double elapsed = seconds();
    if (elapsed - shown_ < (in_place_ ? 1 : 30)) return;
    shown_ = elapsed;
    const double each = elapsed / static_cast<double>(done);
    fmt::print(stderr, "{}evaluation: {} of {} images{}, {:.2f} images/s, {} left{}", in_place_ ? "\r" : "", done, all,
               ranks_ > 1 ? " of rank 0" : "", ranks_ / each, duration_text(each * static_cast<double>(all - done)),
               in_place_ ? "   " : "\n");
    std::fflush(stderr);
  }
  /// Leaves the terminal's line.
  void end() const {
    if (in_place_ && shown_ > 0) fmt::print(stderr, "\n");
  }
  double seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

 private:
  int ranks_;
  bool in_place_;
  Clock::time_point start_ = Clock::now();
  double shown_ = 0;
};

nlohmann::ordered_json scores_json(const SegmentationScores& scores, const SegmentationDataset& data, bool confusion) {
  nlohmann::ordered_json json = scores.json(data.class_names());
  json["left_out"] = data.size() - scores.images;
  auto& classes = json["classes"] = nlohmann::ordered_json::array();
  for (int64_t c = 0; c < scores.classes; ++c) {
    const auto iou = scores.iou(c);
    classes.push_back({{"id", c},
                       {"name", data.class_names()[static_cast<size_t>(c)]},
                       {"iou", iou ? nlohmann::ordered_json(*iou) : nlohmann::ordered_json()}});
  }
  if (!confusion) return json;
  auto& rows = json["confusion"] = nlohmann::ordered_json::array();
  for (auto row = scores.confusion.begin(); row != scores.confusion.end(); row += scores.classes)
    rows.push_back(std::vector<int64_t>(row, row + scores.classes));
  return json;
}

void eval_rank(const EvalArguments& args, const JoinedRanks& joined) {
  Communicator& communicator = *joined.communicator;
  const auto model = load_same_model(communicator, args);
  const SegmentationDataset data = open_dataset(model->config, args.split);
  CONVOY_CHECK(data.num_classes() == static_cast<int64_t>(model->classes.names.size()),
               "{}: the data set has {} classes, the network {}", data.root(), data.num_classes(),
               model->classes.names.size());
  check_same(communicator, "data set", fmt::format("{} images, hash {:016x}", data.size(), data.content_hash()));
  ContextOptions options = args.context.options();
  if (options.threads == 0) options.threads = joined.threads;
  Context context(options, joined.communicator);
  Predictor predictor(context, model->store, *model->network, normalization(model->config),
                      prediction_options(model->config));
  EvaluationOptions evaluation = evaluation_options(model->config);
  evaluation.communicator = &communicator;
  ProgressLine progress(communicator.size());
  if (communicator.rank() == 0) evaluation.progress = [&](int64_t done, int64_t all) { progress.show(done, all); };
  if (args.on_bad_sample == "skip")
    evaluation.skip = [](const std::string& message) { fmt::print(stderr, "left out: {}\n", message); };
  std::optional<PictureWriter> writer;
  std::vector<std::string> names;
  if (!args.pictures.empty()) {
    writer.emplace(args.pictures, model->classes, args.picture_kinds.options());
    std::vector<std::filesystem::path> samples;
    for (int64_t i = 0; i < data.size(); ++i) samples.emplace_back(data.sample_name(i));
    names = output_names(samples);
    std::vector<std::filesystem::path> inputs;
    for (int64_t i = 0; i < data.size(); ++i) {
      inputs.emplace_back(data.image_path(i));
      if (data.has_labels()) inputs.emplace_back(data.label_path(i));
    }
    writer->require_apart(names, inputs);
    evaluation.prediction = [&](int64_t index, const Image& image, const LabelMap& labels) {
      writer->write(names[static_cast<size_t>(index)], image, labels);
    };
  }
  const SegmentationScores scores = *evaluate_dataset(predictor, data, evaluation);
  if (communicator.rank() != 0) return;
  progress.end();
  const std::string how = predictor.options().text();
  if (!args.json) {
    fmt::print("{} on {} of {}{}\n{}", model->path.string(), args.split, data.root(), how.empty() ? "" : "; " + how,
               score_table(scores, data.class_names()));
    fmt::print(" in {}, {:.2f} images/s\n", duration_text(progress.seconds()),
               static_cast<double>(scores.images) / progress.seconds());
    if (writer) fmt::print("predictions: {}\n", args.pictures);
    return;
  }
  nlohmann::ordered_json json = scores_json(scores, data, args.confusion);
  json["step"] = model->step;
  json["checkpoint"] = model->path.string();
  json["split"] = args.split;
  json["prediction"] = how;
  fmt::print("{}\n", json_text(json, 1));
}

void eval(const EvalArguments& args) {
  CONVOY_CHECK(!args.confusion || args.json, "--confusion is part of the JSON output; add --json");
  args.picture_kinds.require_use(!args.pictures.empty(), "--save-predictions DIR");
  if (args.ranks.is_launcher()) args.ranks.launch();
  const JoinedRanks joined = args.ranks.join();
  run_rank(*joined.communicator, [&] { eval_rank(args, joined); });
}

}  // namespace

void add_eval_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand("eval", "score a trained network");
  const auto args = std::make_shared<EvalArguments>(*command);
  command->callback([args] { eval(*args); });
}

}  // namespace convoy
