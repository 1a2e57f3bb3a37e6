// convoy bench: measurements of training steps, alone or in turns with PyTorch (step), of what ranks cost them (ranks)
// and of exchanges by themselves (comm); of single operators (op, in bench_op.cpp).
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "apps/comm_benchmark.h"
#include "apps/commands.h"
#include "apps/ranks.h"
#include "apps/ranks_benchmark.h"
#include "apps/step_benchmark.h"
#include "engine/param_store.h"
#include "io/file.h"
#include "io/json_text.h"
#include "nets/network.h"

namespace convoy {
namespace {

/// Network, size and how it is computed: what the steps of all benchmarks have in common.
void add_step_options(CLI::App& command, StepBenchmarkOptions& step, std::string& size) {
  command.add_option("--net", step.net, "network")->capture_default_str();
  command.add_option("--backbone", step.backbone, "backbone, where the network has one")->capture_default_str();
  command.add_option("--size", size, "HEIGHTxWIDTH")->capture_default_str();
  command.add_flag("--aux", step.aux, "auxiliary heads");
  command.add_flag("--direct-conv", step.direct_conv, "dense convolutions by the plain kernel");
}

template <class T>
void add_count(CLI::App& command, const std::string& name, T& value, int64_t least, const std::string& what) {
  command.add_option(name, value, what)->capture_default_str()->check(CLI::Range(least, kLargestCount));
}

void set_size(StepBenchmarkOptions& step, const std::string& text) {
  const SizeHW size = parse_size(text);
  step.height = size.height;
  step.width = size.width;
}

struct StepArguments {
  explicit StepArguments(CLI::App& command) {
    add_step_options(command, options, size);
    add_count(command, "--batch", options.batch, 1, "images per step");
    add_count(command, "--threads", options.threads, 1, "compute threads of each side");
    add_count(command, "--warmup", options.warmup, 0, "steps before the clock starts");
    add_count(command, "--pairs", options.pairs, 1, "rounds");
    command.add_option("--torch", options.torch_python, "Python with PyTorch, to take turns with")->type_name("PYTHON");
    command.add_option("--peer", options.peer_script, "the peer's script")->capture_default_str()->type_name("FILE");
    command.add_flag("--torch-compile", options.peer_compiled, "the peer's network by torch.compile");
    command.add_option("--peer-timeout", options.peer_timeout, "seconds that an answer of the peer may take")
        ->capture_default_str()
        ->check(number_between(1, 1e6));
    command.add_option("--json", json, "write every time to a file")->type_name("FILE");
    options.peer_script = "bench/torch_peer/step.py";
  }
  StepBenchmarkOptions options;
  std::string size = "256x512", json;
};

struct RanksArguments {
  explicit RanksArguments(CLI::App& command) : ranks(command) {
    add_step_options(command, options.step, size);
    options.step.threads = 1;
    add_count(command, "--batch", options.step.batch, 1, "images per step, of all ranks together");
    add_count(command, "--threads-per-rank", options.step.threads, 1, "compute threads of each rank");
    add_count(command, "--warmup", options.warmup, 0, "steps of each kind before the clock starts");
    add_count(command, "--rounds", options.rounds, 1, "rounds");
    add_count(command, "--steps", options.steps, 1, "steps of each kind in a round");
    bucket_size.add_to(command);
    command.add_option("--json", json, "write every time to a file")->type_name("FILE");
  }
  RankArguments ranks;
  RanksBenchmarkOptions options;
  BucketSize bucket_size;
  std::string size = "256x512", json;
};

struct CommArguments {
  explicit CommArguments(CLI::App& command) : ranks(command) {
    command.add_option("--net", network.name, "network whose gradients the bucket size is for")->capture_default_str();
    command.add_option("--backbone", network.backbone, "its backbone, where it has one")->capture_default_str();
    add_count(command, "--repeats", options.repeats, 1, "times that each size is measured");
    command.add_option("--json", json, "write the figures to a file")->type_name("FILE");
  }
  RankArguments ranks;
  CommBenchmarkOptions options;
  NetworkOptions network{.name = "BiSeNet", .backbone = "resnet18", .classes = 19};
  std::string json;
};

void bench_step(StepArguments& args) {
  set_size(args.options, args.size);
  const nlohmann::json result = run_step_benchmark(args.options);
  if (!args.json.empty()) write_text_file(args.json, json_text(result, 1) + "\n");
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

/// Makes this process a rank, or starts the ranks; rank 0 writes and prints what `measure(communicator)` returns.
template <class Measure, class Print>
void bench_ranks(const RankArguments& ranks, const std::string& file, Measure measure, Print print) {
  if (ranks.is_launcher()) ranks.launch();
  const JoinedRanks joined = ranks.join();
  run_rank(*joined.communicator, [&] {
    nlohmann::json result = measure(joined.communicator);
    if (joined.communicator->rank() != 0) return;
    result["joined"] = joined.notes;
    for (const std::string& note : joined.notes) fmt::print("{}\n", note);
    if (!file.empty()) write_text_file(file, json_text(result, 1) + "\n");
    print(result);
  });
}

void print_ranks(const nlohmann::json& result) {
  const auto number = [&](const char* part, const char* key) { return result.at(part).at(key).get<double>(); };
  fmt::print("{} {}, {} ranks of {} threads, {}\n", result.at("net").get<std::string>(),
             result.at("input").get<std::string>(), result.at("ranks").get<int>(),
             result.at("threads_per_rank").get<int>(), result.at("isa").get<std::string>());
  fmt::print("together                 {:9.2f} ms  {:9.2f} ms of core time\n",
             number("together", "median_seconds") * 1e3, number("together", "median_cpu_seconds") * 1e3);
  const auto other = [&](const char* name, const char* part, const char* ratio) {
    fmt::print("{:<24} {:9.2f} ms  {:9.2f} ms of core time  together takes {:.3f} times as long\n", name,
               number(part, "median_seconds") * 1e3, number(part, "median_cpu_seconds") * 1e3,
               result.at(ratio).get<double>());
  };
  other("one rank alone", "alone", "ratio_to_alone");
  other("ranks side by side", "side_by_side", "ratio_to_side_by_side");
  const auto exchange = [&](const char* name, const char* part, const char* unit) {
    fmt::print("{:<24} {:9.2f} ms  {:.2f} ms for the rank that waits for nobody; {} {}, {:.3f} MiB\n", name,
               number(part, "median_seconds") * 1e3, number(part, "median_seconds_without_waiting") * 1e3,
               number(part, "messages"), unit, number(part, "bytes") / (1 << 20));
  };
  exchange("  statistics, counts", "statistics_and_counts", "messages");
  exchange("  gradients", "gradients", "buckets");
}

void print_comm(const nlohmann::json& result) {
  for (const char* part : {"all_reduce", "gradient_sum"}) {
    for (const auto& size : result.at(part).at("sizes"))
      fmt::print("{:<14} {:9} bytes {:11.1f} us {:10.1f} MB/s\n", part, size.at("bytes").get<int64_t>(),
                 size.at("seconds").get<double>() * 1e6, size.at("bytes_per_second").get<double>() / 1e6);
  }
  fmt::print("buckets of {:.2f} MiB suit gradients of {:.1f} MiB (--bucket-mb)\n",
             result.at("best_bucket_bytes").get<double>() / (1 << 20),
             result.at("gradient_bytes").get<double>() / (1 << 20));
}

double gradient_bytes(const NetworkOptions& network) {
  ParamStore store;
  const auto made = make_network(network, store);
  double floats = 0;
  for (const Parameter& parameter : store.parameters()) floats += static_cast<double>(parameter.shape.count());
  return floats * sizeof(float);
}

}  // namespace

void add_bench_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand("bench", "measurements");
  command->require_subcommand(1);
  CLI::App* step = command->add_subcommand("step", "time and memory of training steps, alone or in turns with PyTorch");
  const auto step_args = std::make_shared<StepArguments>(*step);
  step->callback([step_args] { bench_step(*step_args); });

  CLI::App* ranks = command->add_subcommand("ranks", "what exchanges between ranks cost a training step");
  const auto ranks_args = std::make_shared<RanksArguments>(*ranks);
  ranks->callback([ranks_args] {
    RanksBenchmarkOptions& options = ranks_args->options;
    set_size(options.step, ranks_args->size);
    options.step.bucket_bytes = ranks_args->bucket_size.bytes();
    const auto measure = [&](const std::shared_ptr<Communicator>& c) { return run_ranks_benchmark(options, c); };
    bench_ranks(ranks_args->ranks, ranks_args->json, measure, print_ranks);
  });

  add_bench_op_command(*command);
  CLI::App* comm = command->add_subcommand("comm", "latency and bandwidth of exchanges between ranks");
  const auto comm_args = std::make_shared<CommArguments>(*comm);
  comm->callback([comm_args] {
    CommBenchmarkOptions& options = comm_args->options;
    options.gradient_bytes = gradient_bytes(comm_args->network);
    const auto measure = [&](const std::shared_ptr<Communicator>& c) { return run_comm_benchmark(options, *c); };
    bench_ranks(comm_args->ranks, comm_args->json, measure, print_comm);
  });
}

}  // namespace convoy
