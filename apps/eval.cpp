// convoy eval: scores of a trained network over a split.
#include <nlohmann/json.hpp>

#include "apps/commands.h"
#include "apps/evaluator.h"
#include "apps/model_state.h"
#include "apps/ranks.h"

namespace convoy {
namespace {

struct EvalArguments {
  explicit EvalArguments(CLI::App& command) : config(command), context(command), ranks(command) {
    command.add_option("--run-dir", run_directory, "a run: its best checkpoint, else its newest")->type_name("DIR");
    command.add_option("--checkpoint", checkpoint, "a directory step-N")->type_name("DIR");
    command.add_option("--split", split, "train, val, ...")->capture_default_str();
    command.add_flag("--json", json, "print the scores as JSON");
  }
  ConfigArguments config;
  ContextArguments context;
  RankArguments ranks;
  std::string run_directory, checkpoint, split = "val";
  bool json = false;
};

/// Rank 0 chooses the checkpoint; every rank reads it.
std::unique_ptr<TrainedModel> load_same_model(Communicator& communicator, const EvalArguments& args) {
  std::unique_ptr<TrainedModel> model;
  if (communicator.rank() == 0)
    model = load_model(args.run_directory.empty() ? args.checkpoint : args.run_directory, args.config.overrides());
  const std::string path = broadcast_text(communicator, model ? model->path.string() : "", "the checkpoint to score");
  if (!model) model = load_model(path, args.config.overrides());
  check_same_start(communicator, model->config);
  check_same_state(communicator, model->store, model->step);
  return model;
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
  Predictor predictor(context, model->store, *model->network, normalization(model->config));
  EvaluationOptions evaluation = evaluation_options(model->config);
  evaluation.communicator = &communicator;
  const SegmentationScores scores = *evaluate_dataset(predictor, data, evaluation);
  if (communicator.rank() != 0) return;
  if (!args.json) {
    fmt::print("{} on {} of {}\n{}\n", model->path.string(), args.split, data.root(),
               score_table(scores, data.class_names()));
    return;
  }
  nlohmann::ordered_json json = scores.json(data.class_names());
  json["step"] = model->step;
  json["checkpoint"] = model->path.string();
  json["split"] = args.split;
  json["confusion"] = scores.confusion;
  fmt::print("{}\n", json.dump(1));
}

void eval(const EvalArguments& args) {
  CONVOY_CHECK(args.run_directory.empty() != args.checkpoint.empty(),
               "eval needs the weights: --run-dir DIR or --checkpoint DIR");
  CONVOY_CHECK(args.config.file().empty(),
               "eval takes its configuration from the checkpoint; override single keys by KEY VALUE");
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
