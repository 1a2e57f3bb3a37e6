#include "io/run_directory.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <csignal>
#include <nlohmann/json.hpp>
#include <regex>

#include "engine/error.h"
#include "temporary_directory.h"

using namespace convoy;
namespace fs = std::filesystem;

namespace {

std::vector<int64_t> steps_in(const fs::path& path) {
  std::vector<int64_t> steps;
  for (const auto& object : read_metrics(path)) steps.push_back(object.at("step").get<int64_t>());
  return steps;
}

}  // namespace

TEST_CASE("a run directory holds what the run says about itself") {
  TemporaryDirectory directory;
  const fs::path path = directory / "runs/a";
  {
    RunDirectory run(path);
    CHECK_FALSE(run.has_earlier_run());
    CHECK(fs::is_directory(run.checkpoints()));
    CHECK(fs::is_directory(run.predictions()));
    run.write_config("SEED: 1\n");
    run.write_manifest({{"convoy", "train", "--seed", "1"}, "0.1.0", 2, 1, "cpu", "abc"});
    run.metrics().append({{"step", 1}, {"loss", 2.5}});
  }
  {
    RunDirectory run(path);
    CHECK(run.has_earlier_run());
    run.write_manifest({{"convoy", "train", "--resume", "auto"}, "0.1.0", 2, 1, "cpu", "abc"});
  }
  CHECK(slurp(path / "config.yaml") == "SEED: 1\n");
  const auto manifest = nlohmann::json::parse(slurp(path / "manifest.json"));
  CHECK(manifest["command_line"].back() == "auto");
  CHECK(manifest["threads"] == 2);
  CHECK(manifest["dataset_hash"] == "abc");
  CHECK_FALSE(manifest["host"].get<std::string>().empty());
  REQUIRE(manifest["earlier"].size() == 1);
  CHECK(manifest["earlier"][0]["command_line"].back() == "1");
  CHECK(steps_in(path / "metrics.jsonl") == std::vector<int64_t>{1});
}

TEST_CASE("a run directory in use is refused, the lock of a dead process is taken over") {
  TemporaryDirectory directory;
  const fs::path path = directory / "run";
  {
    RunDirectory run(path);
    CHECK_THROWS_WITH(RunDirectory(path), Catch::Contains("in use by process " + std::to_string(::getpid())));
  }
  int ready[2];
  REQUIRE(::pipe(ready) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    RunDirectory run(path);
    [[maybe_unused]] const auto written = ::write(ready[1], "x", 1);
    ::pause();
    ::_exit(0);
  }
  char byte;
  REQUIRE(::read(ready[0], &byte, 1) == 1);
  CHECK_THROWS_WITH(RunDirectory(path), Catch::Contains("in use by process " + std::to_string(child)));
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  CHECK(slurp(path / "lock").find(std::to_string(child)) != std::string::npos);
  CHECK_NOTHROW(RunDirectory(path));
  spill(path / "lock", "garbage");
  CHECK_NOTHROW(RunDirectory(path));
  spill(directory / "file", "");
  CHECK_THROWS_WITH(RunDirectory(directory / "file/run"), Catch::Contains("file/run"));
}

TEST_CASE("metrics are cut back to a step, torn and damaged lines are tolerated") {
  TemporaryDirectory directory;
  const fs::path path = directory / "metrics.jsonl";
  {
    MetricsFile metrics(path);
    for (int step = 1; step <= 5; ++step) metrics.append({{"step", step}, {"loss", 1.0 / step}});
    metrics.append({{"step", 5}, {"eval", true}, {"miou", 0.5}});
    metrics.append({{"step", 6}, {"loss", std::nan("")}});
    CHECK_THROWS_WITH(metrics.append({{"loss", 1}}), Catch::Contains("\"step\""));
  }
  const std::string good = slurp(path);
  spill(path, good + "{\"step\": 7, \"lo");
  CHECK(read_metrics(path).size() == 7);
  CHECK(read_metrics(path).back().at("loss").is_null());
  {
    MetricsFile metrics(path);
    CHECK(slurp(path) == good);
    const auto cut = metrics.truncate_after(4);
    CHECK(cut.kept == 4);
    CHECK(cut.removed == 3);
    CHECK(cut.damaged == 0);
    metrics.append({{"step", 5}, {"loss", 0.25}});
  }
  CHECK(steps_in(path) == std::vector<int64_t>{1, 2, 3, 4, 5});

  spill(path, "{\"step\": 1}\n\n[1]\n{\"step\": \"2\"}\n" + std::string(100000, '[') + "\n\xff\xfe\n{\"step\": 3}\n");
  int64_t damaged = 0;
  CHECK(read_metrics(path, &damaged).size() == 3);
  CHECK(damaged == 4);
  MetricsFile metrics(path);
  const auto cut = metrics.truncate_after(10);
  CHECK(cut.kept == 2);
  CHECK(cut.damaged == 5);
  CHECK(steps_in(path) == std::vector<int64_t>{1, 3});
  CHECK(read_metrics(directory / "absent").empty());
}

TEST_CASE("metrics truncated at every length: whole lines stay, nothing else") {
  TemporaryDirectory directory;
  const fs::path path = directory / "metrics.jsonl";
  std::string text;
  for (int step = 1; step <= 4; ++step) text += fmt::format("{{\"loss\":0.5,\"step\":{}}}\n", step);
  for (size_t length = 0; length <= text.size(); ++length) {
    CAPTURE(length);
    spill(path, text.substr(0, length));
    const auto lines = std::count(text.begin(), text.begin() + static_cast<ptrdiff_t>(length), '\n');
    MetricsFile metrics(path);
    metrics.append({{"step", 9}});
    auto steps = steps_in(path);
    REQUIRE(static_cast<ptrdiff_t>(steps.size()) == lines + 1);
    CHECK(steps.back() == 9);
  }
}

TEST_CASE("a metrics line that does not fit is an Error and leaves the file as before") {
  TemporaryDirectory directory;
  const fs::path path = directory / "metrics.jsonl";
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{100, 100};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    MetricsFile metrics(path);
    metrics.append({{"step", 1}, {"text", std::string(60, 'x')}});
    try {
      metrics.append({{"step", 2}, {"text", std::string(60, 'x')}});
    } catch (const Error& error) {
      ::_exit(std::string(error.what()).find("metrics.jsonl") != std::string::npos ? 0 : 2);
    }
    ::_exit(1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  CHECK(status == 0);
  CHECK(steps_in(path) == std::vector<int64_t>{1});
}

TEST_CASE("log lines carry time and level") {
  TemporaryDirectory directory;
  {
    Log log(directory / "log.txt");
    log.set_console(false);
    log.info("step {} of {}", 1, 2);
    log.warning("slow");
    log.error("{}", "lost");
  }
  CHECK(std::regex_match(slurp(directory / "log.txt"),
                         std::regex(R"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} INFO step 1 of 2\n)"
                                    R"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} WARNING slow\n)"
                                    R"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} ERROR lost\n)")));
  CHECK_THROWS_WITH(Log(directory / "no/log.txt"), Catch::Contains("no/log.txt"));
}
