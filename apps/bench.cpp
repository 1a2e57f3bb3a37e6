// convoy bench: measurements. step: the time of training steps, alone or in turns with PyTorch.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "apps/commands.h"
#include "apps/step_benchmark.h"
#include "io/file.h"

namespace convoy {
namespace {

struct BenchArguments {
  explicit BenchArguments(CLI::App& command) {
    command.add_option("--net", options.net, "network")->capture_default_str();
    command.add_option("--backbone", options.backbone, "backbone, where the network has one")->capture_default_str();
    command.add_option("--size", size, "HEIGHTxWIDTH")->capture_default_str();
    command.add_option("--batch", options.batch, "images per step")
        ->capture_default_str()
        ->check(CLI::Range(int64_t{1}, kLargestCount));
    command.add_option("--threads", options.threads, "compute threads of each side")
        ->capture_default_str()
        ->check(CLI::Range(int64_t{1}, kLargestCount));
    command.add_option("--warmup", options.warmup, "steps before the clock starts")
        ->capture_default_str()
        ->check(CLI::Range(int64_t{0}, kLargestCount));
    command.add_option("--pairs", options.pairs, "rounds")
        ->capture_default_str()
        ->check(CLI::Range(int64_t{1}, kLargestCount));
    command.add_flag("--aux", options.aux, "auxiliary heads");
    command.add_flag("--direct-conv", options.direct_conv, "dense convolutions by the plain kernel");
    command.add_option("--torch", options.torch_python, "Python with PyTorch, to take turns with")->type_name("PYTHON");
    command.add_option("--peer", options.peer_script, "the peer's script")->capture_default_str()->type_name("FILE");
    command.add_option("--json", json, "write every time to a file")->type_name("FILE");
    options.peer_script = "bench/torch_peer/step.py";
  }
  StepBenchmarkOptions options;
  std::string size = "256x512", json;
};

void bench_step(BenchArguments& args) {
  const SizeHW size = parse_size(args.size);
  args.options.height = size.height;
  args.options.width = size.width;
  const nlohmann::json result = run_step_benchmark(args.options);
  if (!args.json.empty()) write_text_file(args.json, result.dump(1) + "\n");
  fmt::print("{} {}, {} threads, {}\n", args.options.net, result.at("input").get<std::string>(), args.options.threads,
             result.at("isa").get<std::string>());
  const auto row = [&](const char* name, const char* key) {
    if (!result.contains(key)) return;
    const auto& side = result.at(key);
    fmt::print("{:<24} {:9.1f} ms  {:8.1f} MiB{}\n", name, side.at("median_seconds").get<double>() * 1e3,
               side.at("peak_bytes").get<double>() / (1 << 20),
               side.contains("ratio_to_ours")
                   ? fmt::format("  {:.2f} times ours", side.at("ratio_to_ours").get<double>())
                   : "");
  };
  row("Convoy", "ours");
  row("PyTorch", "nchw");
  row("PyTorch, channels last", "channels_last");
}

}  // namespace

void add_bench_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand("bench", "measurements");
  command->require_subcommand(1);
  CLI::App* step = command->add_subcommand("step", "time and memory of training steps, alone or in turns with PyTorch");
  const auto args = std::make_shared<BenchArguments>(*step);
  step->callback([args] { bench_step(*args); });
}

}  // namespace convoy
