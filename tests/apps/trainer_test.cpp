#include <cstring>

#include "apps/model_state.h"
#include "fixture.h"
#include "io/metrics_file.h"

using namespace convoy;
using Catch::Matchers::Contains;

namespace {

/// Everything that a checkpoint would hold, as bytes.
std::string state_bytes(Trainer& trainer) {
  std::string bytes;
  for (const NamedTensor& tensor : state_tensors(trainer.parameters()))
    bytes.append(static_cast<const char*>(tensor.values()), tensor.bytes());
  return bytes;
}

}  // namespace

TEST_CASE("a stopped and resumed run equals an undisturbed one bit for bit") {
  const TinyRun tiny;
  Trainer whole(tiny.config(), tiny.options("whole"));
  CHECK(whole.run().finished);

  TrainerOptions options = tiny.options("halves");
  options.stop_at_step = 4;
  {
    Trainer first(tiny.config(), options);
    const TrainResult result = first.run();
    CHECK_FALSE(result.finished);
    CHECK(result.step == 4);
  }
  options.stop_at_step = 0;
  options.resume = "auto";
  Trainer second(tiny.config(), options);
  CHECK(second.run().finished);
  CHECK(state_bytes(second) == state_bytes(whole));
  CHECK(losses(tiny / "halves") == losses(tiny / "whole"));
  CHECK(losses(tiny / "whole").size() == 8);
  CHECK(load_checkpoint(tiny / "halves").meta.at("samples_seen") == 16);
}

TEST_CASE("every optimizer goes on from a checkpoint as if it had not stopped") {
  const TinyRun tiny;
  for (const std::string name : {"adam", "adamw", "rmsprop", "adadelta"}) {
    INFO(name);
    const std::vector<std::string> settings = {"SOLVER.OPTIMIZER", name,    "TRAIN.MAX_ITERS",      "4",
                                               "SOLVER.LR",        "0.001", "SOLVER.MAX_GRAD_NORM", "1"};
    Trainer whole(tiny.config(settings), tiny.options("whole-" + name));
    CHECK(whole.run().finished);
    TrainerOptions options = tiny.options("halves-" + name);
    options.stop_at_step = 2;
    CHECK_FALSE(Trainer(tiny.config(settings), options).run().finished);
    options.stop_at_step = 0;
    options.resume = "auto";
    Trainer second(tiny.config(settings), options);
    CHECK(second.run().finished);
    CHECK(second.parameters().optimizer_states().size() == 2);
    CHECK(state_bytes(second) == state_bytes(whole));
    CHECK(losses(tiny / ("halves-" + name)) == losses(tiny / ("whole-" + name)));
  }
  TrainerOptions options = tiny.options("halves-adam");
  options.resume = "auto";
  CHECK_THAT(error_of([&] {
               Trainer(tiny.config({"SOLVER.OPTIMIZER", "rmsprop", "TRAIN.MAX_ITERS", "6"}), options);
             }),
             Contains("holds no optimizer.square_avg") && Contains("SOLVER.OPTIMIZER was another one"));
}

TEST_CASE("the number of threads changes nothing") {
  const TinyRun tiny;
  std::string states[2];
  for (int threads : {1, 2}) {
    TrainerOptions options = tiny.options("threads" + std::to_string(threads));
    options.context.threads = threads;
    Trainer trainer(tiny.config({"TRAIN.MAX_ITERS", "3", "DATASET.WORKERS", std::to_string(2 * threads - 2)}), options);
    trainer.run();
    states[threads - 1] = state_bytes(trainer);
  }
  CHECK(states[0] == states[1]);
  CHECK(losses(tiny / "threads1") == losses(tiny / "threads2"));
}

TEST_CASE("training lowers the loss and an evaluation scores it") {
  const TinyRun tiny;
  TrainerOptions options = tiny.options("run");
  options.skip_val = false;
  const TrainResult result = Trainer(tiny.config({"TRAIN.MAX_ITERS", "24"}), options).run();
  CHECK(result.finished);
  REQUIRE(result.best_miou);
  CHECK(*result.best_miou > 0);
  const auto all = losses(tiny / "run");
  CHECK(all.back().second < 0.8 * all.front().second);
  CHECK(std::filesystem::exists(tiny / "run/report.html"));
  CHECK(find_best(tiny / "run/checkpoints"));
  const auto model = load_model(tiny / "run");
  CHECK(model->classes.names.size() == 19);
}

TEST_CASE("an evaluation that was broken off is made up for on resume") {
  const TinyRun tiny;
  TrainerOptions options = tiny.options("run");
  options.skip_val = false;
  int asked = 0;
  options.stop_reason = [&asked]() -> const char* {
    return ++asked > 4 ? "asked" : nullptr;
  };  // within the first evaluation
  const TrainResult stopped = Trainer(tiny.config(), options).run();
  CHECK_FALSE(stopped.finished);
  CHECK(stopped.stop_reason == "asked");
  const auto evaluations = [&] {
    std::vector<int64_t> steps;
    for (const auto& object : read_metrics(tiny / "run/metrics.jsonl"))
      if (object.contains("eval")) steps.push_back(object["step"]);
    return steps;
  };
  CHECK(evaluations().empty());
  options.stop_reason = nullptr;
  options.resume = "auto";
  CHECK(Trainer(tiny.config(), options).run().finished);
  CHECK(evaluations() == std::vector<int64_t>{4, 8});
}

TEST_CASE("a loss that is not finite names step and images and saves nothing") {
  const TinyRun tiny;
  const std::string message = error_of([&] { Trainer(tiny.config({"SOLVER.LR", "1e30"}), tiny.options("run")).run(); });
  CHECK_THAT(message, Contains("loss is") && Contains("leftImg8bit.png") && Contains("SOLVER.LR"));
  CHECK(std::filesystem::is_empty(tiny / "run/checkpoints"));
}

TEST_CASE("resuming refuses what cannot go on, and says what changed") {
  const TinyRun tiny;
  TrainerOptions options = tiny.options("run");
  Trainer(tiny.config({"TRAIN.MAX_ITERS", "1"}), options).run();
  CHECK_THAT(error_of([&] { Trainer(tiny.config(), options); }), Contains("earlier run") && Contains("--resume"));
  options.resume = (tiny / "mistyped").string();
  CHECK_THAT(error_of([&] { Trainer(tiny.config(), options); }), Contains("mistyped"));
  options.resume = "auto";
  CHECK_THAT(error_of([&] {
               Trainer(
                   tiny.config({"SOLVER.AUX", "False", "MODEL.MODEL_NAME", "BiSeNet", "MODEL.BACKBONE", "resnet18"}),
                   options);
             }),
             Contains("do not fit") && Contains("missing"));
  Trainer(tiny.config({"TRAIN.MAX_ITERS", "2", "SOLVER.LR", "0.01"}), options).run();
  std::ifstream log(tiny / "run/log.txt");
  const std::string text{std::istreambuf_iterator<char>(log), {}};
  CHECK_THAT(text, Contains("SOLVER.LR: 0.02 -> 0.01"));
}

TEST_CASE("what is not built yet is refused by name") {
  const TinyRun tiny;
  CHECK_THAT(error_of([&] {
               Trainer(tiny.config({"MODEL.BN_TYPE", "GN"}), tiny.options("run"));
             }),
             Contains("not available yet") && Contains("MODEL.BN_TYPE"));
  CHECK_THAT(error_of([&] {
               Trainer(tiny.config({"MODEL.MODEL_NAME", "FastSCN"}), tiny.options("run"));
             }),
             Contains("FastSCNN"));
  CHECK_THAT(error_of([&] {
               Trainer(tiny.config({"TRAIN.CROP_SIZE", "(70, 96)"}), tiny.options("run"));
             }),
             Contains("TRAIN.CROP_SIZE"));
}
