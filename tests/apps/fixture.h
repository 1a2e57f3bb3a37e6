// A generated data set, a recipe that trains on it in moments, and a folder that goes away.
#pragma once
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>

#include "apps/ranks.h"
#include "apps/trainer.h"
#include "comm/host_communicator.h"
#include "io/synth.h"

class TinyRun {
 public:
  TinyRun() {
    std::string pattern = (std::filesystem::temp_directory_path() / "convoy-apps-XXXXXX").string();
    if (!::mkdtemp(pattern.data())) throw std::runtime_error("no temporary directory");
    path_ = pattern;
    convoy::synthesize(data().string(), {.images = 10, .height = 70, .width = 130, .seed = 5});
  }
  ~TinyRun() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TinyRun(const TinyRun&) = delete;
  TinyRun& operator=(const TinyRun&) = delete;

  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }
  std::filesystem::path data() const { return path_ / "data"; }

  convoy::Config config(const std::vector<std::string>& more = {}) const {
    std::vector<std::string> pairs = {"DATASET.NAME",    "cityscape", "DATASET.ROOT",       data().string(),
                                      "DATASET.WORKERS", "1",         "TRAIN.GLOBAL_BATCH", "2",
                                      "TRAIN.CROP_SIZE", "(64, 96)",  "TRAIN.BASE_SIZE",    "64",
                                      "TRAIN.MAX_ITERS", "8",         "SOLVER.LR",          "0.02",
                                      "SOLVER.AUX",      "True",      "MODEL.MODEL_NAME",   "FastSCNN"};
    pairs.insert(pairs.end(), more.begin(), more.end());
    return convoy::load_config("", pairs);
  }
  convoy::TrainerOptions options(const std::string& name) const {
    convoy::TrainerOptions options;
    options.run_directory = path_ / name;
    options.context.threads = 1;
    options.log_interval = 1;
    options.skip_val = true;
    options.console = false;
    options.pictures = 1;
    return options;
  }

 private:
  std::filesystem::path path_;
};

/// The figures of metrics.jsonl that may not depend on the clock.
inline std::vector<std::pair<int64_t, double>> losses(const std::filesystem::path& run) {
  std::vector<std::pair<int64_t, double>> result;
  for (const auto& object : convoy::read_metrics(run / "metrics.jsonl"))
    if (object.contains("loss")) result.emplace_back(object["step"], object["loss"]);
  return result;
}

template <class Action>
std::string error_of(Action action) {
  try {
    action();
  } catch (const convoy::Error& error) {
    return error.what();
  }
  return "";
}

/// Runs `part` on ranks that are threads. Returns the message with which each ended, "" for none.
inline std::vector<std::string> on_ranks(
    int ranks, const std::function<void(const std::shared_ptr<convoy::Communicator>&)>& part) {
  auto communicators = convoy::thread_communicators(ranks);
  std::vector<std::string> errors(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      const auto communicator = std::move(communicators[static_cast<size_t>(rank)]);
      errors[static_cast<size_t>(rank)] =
          error_of([&] { convoy::run_rank(*communicator, [&] { part(communicator); }); });
    });
  for (std::thread& thread : threads) thread.join();
  return errors;
}
