// Several ranks, as threads of this process.
#include "fixture.h"

#include <atomic>
#include <mutex>

#include "apps/model_state.h"
#include "io/metrics_file.h"

using namespace convoy;
using Catch::Matchers::Contains;

namespace {

using Ranks = std::vector<std::string>;  // the message of each, "" for none

Ranks none(int ranks) {
  return Ranks(static_cast<size_t>(ranks));
}

std::string state_bytes(const std::filesystem::path& run) {
  std::string bytes;
  for (const NamedTensor& tensor : load_checkpoint(run).tensors)
    bytes.append(tensor.name).append(static_cast<const char*>(tensor.values()), tensor.bytes());
  return bytes;
}

/// Trains on so many ranks; `adapt` changes a rank's options.
Ranks train(int ranks, const Config& config, const TrainerOptions& options,
            const std::function<void(TrainerOptions&, int rank)>& adapt = {}) {
  return on_ranks(ranks, [&](const std::shared_ptr<Communicator>& communicator) {
    TrainerOptions own = options;
    own.communicator = communicator;
    if (adapt) adapt(own, communicator->rank());
    Trainer(config, own).run();
  });
}

void check_same_message(const Ranks& messages, const std::vector<std::string>& words) {
  for (const std::string& message : messages) {
    CHECK(message == messages[0]);
    for (const std::string& word : words) CHECK_THAT(message, Contains(word));
  }
}

}  // namespace

TEST_CASE("an evaluation has the same counts on any number of ranks") {
  const TinyRun tiny;
  const Config config = tiny.config();
  const SegmentationDataset data = open_dataset(config, "train");
  std::vector<int64_t> expected;
  for (const int ranks : {1, 2, 3, 4, static_cast<int>(data.size()) + 1}) {
    INFO(ranks << " ranks");
    std::mutex mutex;
    std::vector<SegmentationScores> all;
    CHECK(on_ranks(ranks, [&](const std::shared_ptr<Communicator>& communicator) {
            Context context({.threads = 1}, communicator);
            ParamStore store;
            const auto network = make_network({.name = "FastSCNN", .classes = 19}, store);
            store.initialize(2);
            Predictor predictor(context, store, *network, normalization(config));
            const auto scores =
                evaluate_dataset(predictor, data, {.batch_size = 2, .communicator = communicator.get()});
            const std::lock_guard lock(mutex);
            if (scores) all.push_back(*scores);
          }) == none(ranks));
    REQUIRE(all.size() == static_cast<size_t>(ranks));
    if (ranks == 1) expected = all[0].confusion;
    for (const SegmentationScores& scores : all) {
      CHECK(scores.confusion == expected);
      CHECK(scores.images == data.size());
    }
  }
}

TEST_CASE("an evaluation that one rank gives up is given up by all") {
  const TinyRun tiny;
  const Config config = tiny.config();
  const SegmentationDataset data = open_dataset(config, "train");
  std::atomic<int> given_up = 0;
  CHECK(on_ranks(3, [&](const std::shared_ptr<Communicator>& communicator) {
          Context context({.threads = 1}, communicator);
          ParamStore store;
          const auto network = make_network({.name = "FastSCNN", .classes = 19}, store);
          store.initialize(2);
          Predictor predictor(context, store, *network, normalization(config));
          EvaluationOptions options{.communicator = communicator.get()};
          if (communicator->rank() == 1) options.stop = [] { return true; };
          given_up += !evaluate_dataset(predictor, data, options);
        }) == none(3));
  CHECK(given_up == 3);
}

TEST_CASE("several ranks start with the loss of one and write one run") {
  const TinyRun tiny;
  const Config config = tiny.config({"TRAIN.GLOBAL_BATCH", "3", "TRAIN.MAX_ITERS", "4"});
  TrainerOptions options = tiny.options("one");
  options.skip_val = false;
  CHECK(train(1, config, options) == none(1));
  const auto expected = losses(tiny / "one");
  REQUIRE(expected.size() == 4);
  for (const int ranks : {2, 3, 4}) {  // 2+1, 1+1+1, 1+1+1+0 images
    INFO(ranks << " ranks");
    options.run_directory = tiny / ("ranks" + std::to_string(ranks));
    CHECK(train(ranks, config, options) == none(ranks));
    const auto found = losses(options.run_directory);
    REQUIRE(found.size() == 4);
    CHECK(std::abs(found[0].second - expected[0].second) <= 1e-6 * std::abs(expected[0].second));
    const LoadedCheckpoint checkpoint = load_checkpoint(options.run_directory);
    CHECK(checkpoint.step == 4);
    CHECK(checkpoint.meta.at("ranks") == ranks);
    CHECK(checkpoint.meta.at("samples_seen") == 12);
    CHECK(std::filesystem::exists(options.run_directory / "report.html"));
  }
}

TEST_CASE("under exact sums a run moves between numbers of ranks without changing a bit") {
  const TinyRun tiny;
  const Config config = tiny.config({"TRAIN.GLOBAL_BATCH", "3", "TRAIN.MAX_ITERS", "5"});
  TrainerOptions options = tiny.options("whole");
  options.context.exact_ranks = true;
  CHECK(train(1, config, options) == none(1));
  options.run_directory = tiny / "moved";
  options.resume = "auto";
  for (const auto& [ranks, until] : {std::pair{2, 2}, {4, 3}, {1, 4}, {3, 0}}) {
    options.stop_at_step = until;
    CHECK(train(ranks, config, options) == none(ranks));
  }
  CHECK(losses(tiny / "moved") == losses(tiny / "whole"));
  CHECK(state_bytes(tiny / "moved") == state_bytes(tiny / "whole"));
}

TEST_CASE("statistics of groups of images do not depend on the number of ranks") {
  const TinyRun tiny;
  const Config config = tiny.config({"TRAIN.GLOBAL_BATCH", "6", "TRAIN.MAX_ITERS", "3", "MODEL.BN_GROUP", "2"});
  TrainerOptions options = tiny.options("one");
  options.context.exact_ranks = true;
  CHECK(train(1, config, options) == none(1));
  for (const int ranks : {2, 4}) {  // 4+2, 2+2+2+0 images
    INFO(ranks << " ranks");
    options.run_directory = tiny / ("ranks" + std::to_string(ranks));
    CHECK(train(ranks, config, options) == none(ranks));
    CHECK(losses(options.run_directory) == losses(tiny / "one"));
    CHECK(state_bytes(options.run_directory) == state_bytes(tiny / "one"));
  }
}

TEST_CASE("ranks may keep statistics of their own, of which rank 0's are saved") {
  const TinyRun tiny;
  TrainerOptions options = tiny.options("run");
  options.skip_val = false;
  const Config config =
      tiny.config({"TRAIN.GLOBAL_BATCH", "4", "TRAIN.MAX_ITERS", "4", "TRAIN.SYNC_BATCH_NORM", "False"});
  CHECK(train(2, config, options) == none(2));
  CHECK(losses(tiny / "run").size() == 4);
  CHECK(load_checkpoint(tiny / "run").step == 4);
}

TEST_CASE("when one rank is asked to stop, all stop after the same step and the run goes on later") {
  const TinyRun tiny;
  const Config config = tiny.config({"TRAIN.MAX_ITERS", "6"});
  TrainerOptions options = tiny.options("run");
  std::mutex mutex;
  std::vector<TrainResult> results;
  const auto train_all = [&](const std::function<void(TrainerOptions&, int)>& adapt) {
    results.clear();
    return on_ranks(2, [&](const std::shared_ptr<Communicator>& communicator) {
      TrainerOptions own = options;
      own.communicator = communicator;
      adapt(own, communicator->rank());
      const TrainResult result = Trainer(config, own).run();
      const std::lock_guard lock(mutex);
      results.push_back(result);
    });
  };
  CHECK(train_all([](TrainerOptions& own, int rank) {
          if (rank != 1) return;
          own.stop_reason = [asked = 0]() mutable -> const char* { return ++asked > 3 ? "SIGTERM" : nullptr; };
        }) == none(2));
  REQUIRE(results.size() == 2);
  for (const TrainResult& result : results) {
    CHECK_FALSE(result.finished);
    CHECK(result.stop_reason == "SIGTERM");
    CHECK(result.step == results[0].step);
    CHECK(result.step > 0);
  }
  CHECK(load_checkpoint(tiny / "run").step == results[0].step);
  options.resume = "auto";
  CHECK(train_all([](TrainerOptions&, int) {}) == none(2));
  for (const TrainResult& result : results) CHECK(result.finished);
}

TEST_CASE("the time budget counts by rank 0's clock") {
  const TinyRun tiny;
  TrainerOptions options = tiny.options("run");
  CHECK(train(2, tiny.config({"TRAIN.MAX_ITERS", "3"}), options,
              [](TrainerOptions& own, int rank) { own.max_seconds = rank == 0 ? 0 : 1e-9; }) == none(2));
  CHECK(load_checkpoint(tiny / "run").step == 3);
}

TEST_CASE("an error on one rank ends all with one message that names it") {
  const TinyRun tiny;
  const Config config = tiny.config();
  check_same_message(train(3, config, tiny.options("error"),
                           [](TrainerOptions& own, int rank) {
                             if (rank != 1) return;
                             own.stop_reason = [asked = 0]() mutable -> const char* {
                               if (++asked > 2) fail("a planted error");
                               return nullptr;
                             };
                           }),
                     {"rank 1 on ", "a planted error"});

  const RunDirectory held(tiny / "held");
  check_same_message(train(2, config, tiny.options("held")), {"rank 0 on ", "in use by process"});
  CHECK(train(2, config, tiny.options("after")) == none(2));
}

TEST_CASE("a loss that is not finite ends all ranks alike and saves nothing") {
  const TinyRun tiny;
  const Ranks messages = train(2, tiny.config({"SOLVER.LR", "1e30"}), tiny.options("run"));
  check_same_message(messages, {"step ", "SOLVER.LR"});
  CHECK(messages[0].starts_with("step "));
  CHECK(std::filesystem::is_empty(tiny / "run/checkpoints"));
}

TEST_CASE("ranks that do not start from the same are told which and what") {
  const TinyRun tiny, other;
  const auto start = [&](const std::function<Config(int rank)>& config) {
    return on_ranks(3, [&](const std::shared_ptr<Communicator>& communicator) {
      TrainerOptions options = tiny.options("run");
      options.communicator = communicator;
      Trainer(config(communicator->rank()), options).run();
    });
  };
  check_same_message(start([&](int rank) {
                       return rank == 2 ? tiny.config({"SOLVER.LR", "0.03"}) : tiny.config();
                     }),
                     {"rank 2 on ", "configuration", "LR", "0.03", "0.02"});
  check_same_message(start([&](int rank) {
                       if (rank == 1) fail("no such recipe");
                       return tiny.config();
                     }),
                     {"rank 1 on ", "no such recipe"});
}

TEST_CASE("ranks whose weights have drifted apart are named") {
  check_same_message(on_ranks(3,
                              [](const std::shared_ptr<Communicator>& communicator) {
                                ParamStore store;
                                const auto network = make_network({.name = "FastSCNN", .classes = 4}, store);
                                store.initialize(1);
                                check_same_state(*communicator, store, 1);
                                if (communicator->rank() == 1) store.value(3)[0] += 1;
                                check_same_state(*communicator, store, 2);
                              }),
                     {"rank 1 on ", "state at step 2"});
}

TEST_CASE("texts, flags and statistics reach every rank") {
  CHECK(on_ranks(3, [](const std::shared_ptr<Communicator>& communicator) {
          const int rank = communicator->rank();
          for (const std::string text : {std::string(), std::string("runs/first"), std::string(100'000, 'x')})
            if (broadcast_text(*communicator, rank == 0 ? text : "mine", "text") != text) fail("another text");
          if (any_rank(*communicator, 1u << rank, "flags") != 7) fail("flags are missing");
          if (any_rank(*communicator, 0, "flags") != 0) fail("flags from nowhere");
          ParamStore store;
          const auto network = make_network({.name = "FastSCNN", .classes = 4}, store);
          store.initialize(1);
          for (Buffer& buffer : store.buffers())
            if (buffer.value.dtype() == DType::kF32) buffer.value.f32()[0] = static_cast<float>(rank + 5);
          share_statistics(*communicator, store);
          for (const Buffer& buffer : store.buffers())
            if (buffer.value.dtype() == DType::kF32 && buffer.value.f32()[0] != 5) fail("other statistics");
        }) == none(3));
}

TEST_CASE("the division of a global batch is said") {
  CHECK(division_text({}, 7, 3) == "3+2+2");
  CHECK(division_text({}, 2, 4) == "1+1+0+0");
  CHECK(division_text({}, 37, 16) == "3 on each of 5 ranks, 2 on each of 11 ranks");
}
