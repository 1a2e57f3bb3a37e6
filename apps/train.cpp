// convoy train: options to configuration and TrainerOptions; the training itself is in apps/trainer.cpp.
#include <algorithm>
#include <cctype>
#include <filesystem>

#include "apps/commands.h"
#include "apps/interrupt.h"
#include "apps/ranks.h"
#include "apps/trainer.h"
#include "engine/version.h"

namespace convoy {
namespace {

struct TrainArguments {
  explicit TrainArguments(CLI::App& command) : config(command), context(command), ranks(command) {
    context.add_exact_ranks(command);
    context.add_bucket_size(command);
    command
        .add_option("--run-dir", run_directory,
                    "where the run writes; default runs/<network>_<backbone>_<data set>_<time>")
        ->type_name("DIR");
    command
        .add_option("--resume", trainer.resume,
                    "auto: newest checkpoint of the run directory, or a path: step-N, or the reference's {epoch}.pth")
        ->type_name("auto|PATH");
    command.add_option("--max-iters", max_iters, "steps of the run (TRAIN.MAX_ITERS)")
        ->check(CLI::Range(int64_t{1}, int64_t{1'000'000'000'000}));
    command.add_option("--max-seconds", trainer.max_seconds, "stop in good order after this time, with exit code 75")
        ->check(number_between(0.001, 1e9));
    command.add_option("--log-iter", trainer.log_interval, "steps between log lines")
        ->capture_default_str()
        ->check(CLI::Range(int64_t{1}, kLargestCount));
    command.add_option("--val-epoch", trainer.val_epochs, "epochs between evaluations")
        ->capture_default_str()
        ->check(CLI::Range(int64_t{1}, kLargestCount));
    command.add_flag("--skip-val", trainer.skip_val, "no evaluation");
    command.add_flag("--test-mode", test_mode, "try everything in 5 steps: train, save, resume, evaluate, report");
    command.add_option("--seed", seed, "of weights, data order and dropout (SEED)");
    command.add_option("--workers", workers, "loader threads (DATASET.WORKERS)")->check(CLI::Range(0, 1024));
    command.add_option("--on-bad-sample", on_bad_sample, "fail or skip (TRAIN.ON_BAD_SAMPLE)")
        ->check(CLI::IsMember({"fail", "skip"}));
    command.add_option("--profile", trainer.profile, "write a Chrome trace of ten steps")->type_name("FILE");
  }

  ConfigArguments config;
  ContextArguments context;
  RankArguments ranks;
  TrainerOptions trainer;
  std::string run_directory, on_bad_sample;
  std::optional<int64_t> max_iters, seed, workers;
  bool test_mode = false;
};

std::vector<std::string> overrides_of(const TrainArguments& args) {
  std::vector<std::string> pairs;
  const auto add = [&](const char* key, const std::optional<int64_t>& value) {
    if (value) pairs.insert(pairs.end(), {key, std::to_string(*value)});
  };
  add("TRAIN.MAX_ITERS", args.max_iters);
  add("SEED", args.seed);
  add("DATASET.WORKERS", args.workers);
  if (!args.on_bad_sample.empty()) pairs.insert(pairs.end(), {"TRAIN.ON_BAD_SAMPLE", args.on_bad_sample});
  return pairs;
}

std::string default_run_directory(const Config& config) {
  std::string name = config.model.model_name;
  for (const std::string& part : {config.model.backbone, config.dataset.name})
    if (!part.empty()) name += "_" + part;
  std::string time = timestamp().substr(0, 19);
  std::replace_if(
      time.begin(), time.end(), [](unsigned char c) { return !std::isdigit(c); }, '-');
  return "runs/" + name + "_" + time;
}

/// The configuration that the command line asks for, with the options that go with it.
Config read_arguments(const TrainArguments& args, TrainerOptions& options) {
  if (args.config.file().empty()) {
    const std::filesystem::path own = std::filesystem::path(args.run_directory) / "config.yaml";
    std::error_code ignored;
    CONVOY_CHECK(args.run_directory.empty() || !std::filesystem::exists(own, ignored),
                 "train needs a recipe; to go on with the run of {} as it was started: --config-file {} --resume auto",
                 args.run_directory, own.string());
    fail("train needs a recipe: --config-file FILE (configs/synth_demo.yaml is a small one)");
  }
  options = args.trainer;
  options.context = args.context.options();
  const Config config = args.config.load(overrides_of(args));
  if (options.context.threads == 0) options.context.threads = static_cast<int>(config.train.threads);
  options.run_directory = args.run_directory.empty() ? default_run_directory(config) : args.run_directory;
  CONVOY_CHECK(options.resume.empty() || !args.run_directory.empty() || options.resume != "auto",
               "--resume auto needs --run-dir DIR, the run to go on with");
  return config;
}

/// This rank's part. Returns whether the training came to its end.
bool train_rank(const TrainArguments& args, const JoinedRanks& joined, const std::vector<std::string>& command_line) {
  TrainerOptions options;
  Config config = read_arguments(args, options);
  options.communicator = joined.communicator;
  if (options.context.threads == 0) options.context.threads = joined.threads;
  options.notes = joined.notes;
  options.command_line = command_line;
  options.version = kVersion;
  options.stop_reason = [] { return StopSignals::received(); };
  if (args.test_mode) {
    config.train.max_iters = 5;
    config.train.checkpoint_iters = 0;
    options.log_interval = 1;
    TrainerOptions first = options;
    first.stop_at_step = 3;
    Trainer(config, first).run();
    options.resume = "auto";
  }
  const TrainResult result = Trainer(config, options).run();
  if (args.test_mode && result.finished && joined.communicator->rank() == 0)
    fmt::print("test mode: trained, saved, resumed, evaluated and reported in {}\n", options.run_directory.string());
  return result.finished;
}

void train(const TrainArguments& args, const std::vector<std::string>& command_line) {
  if (args.ranks.is_launcher()) {
    TrainerOptions ignored;
    read_arguments(args, ignored);  // what is wrong with the command line is said once, not by every rank
    args.ranks.launch(LostOutput::kIsIgnored);
  }
  const StopSignals signals;  // from here on a signal stops all ranks in good order, however early it comes
  bool finished = false;
  {  // the ranks part before an exit code is thrown: parting by an exception would tell the others of a failure
    const JoinedRanks joined = args.ranks.join();
    run_rank(*joined.communicator, [&] { finished = train_rank(args, joined, command_line); });
  }
  if (!finished) throw Exit{kExitResumable};
}

}  // namespace

void add_train_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand("train", "train a network");
  const auto args = std::make_shared<TrainArguments>(*command);
  command->callback([args] { train(*args, command_line()); });
}

}  // namespace convoy
