// convoy eval: scores of a trained network over a split.
#include <nlohmann/json.hpp>

#include "apps/commands.h"
#include "apps/evaluator.h"
#include "apps/model_state.h"

namespace convoy {
namespace {

struct EvalArguments {
  explicit EvalArguments(CLI::App& command) : config(command), context(command) {
    command.add_option("--run-dir", run_directory, "a run: its best checkpoint, else its newest")->type_name("DIR");
    command.add_option("--checkpoint", checkpoint, "a directory step-N")->type_name("DIR");
    command.add_option("--split", split, "train, val, ...")->capture_default_str();
    command.add_flag("--json", json, "print the scores as JSON");
  }
  ConfigArguments config;
  ContextArguments context;
  std::string run_directory, checkpoint, split = "val";
  bool json = false;
};

void eval(const EvalArguments& args) {
  CONVOY_CHECK(args.run_directory.empty() != args.checkpoint.empty(),
               "eval needs the weights: --run-dir DIR or --checkpoint DIR");
  CONVOY_CHECK(args.config.file().empty(),
               "eval takes its configuration from the checkpoint; override single keys by KEY VALUE");
  const auto model =
      load_model(args.run_directory.empty() ? args.checkpoint : args.run_directory, args.config.overrides());
  const SegmentationDataset data = open_dataset(model->config, args.split);
  CONVOY_CHECK(data.num_classes() == static_cast<int64_t>(model->classes.names.size()),
               "{}: the data set has {} classes, the network {}", data.root(), data.num_classes(),
               model->classes.names.size());
  Context context(args.context.options());
  Predictor predictor(context, model->store, *model->network, normalization(model->config));
  const SegmentationScores scores = *evaluate_dataset(predictor, data, evaluation_options(model->config));
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

}  // namespace

void add_eval_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand("eval", "score a trained network");
  const auto args = std::make_shared<EvalArguments>(*command);
  command->callback([args] { eval(*args); });
}

}  // namespace convoy
