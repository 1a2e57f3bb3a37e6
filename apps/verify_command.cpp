// convoy verify: networks against reference figures, or ranks against one rank.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "apps/commands.h"
#include "apps/ranks.h"
#include "apps/verify.h"
#include "apps/verify_ranks.h"
#include "io/json_text.h"

namespace convoy {
namespace {

struct VerifyArguments {
  explicit VerifyArguments(CLI::App& command) : context(command), ranks(command) {
    command.add_option("files", files, "reference files")->type_name("FILE.json");
    command.add_flag("--json", json, "print every raw figure as JSON");
    context.add_exact_ranks(command);
    command.add_option("--net", networks, "with --exact-ranks: networks to train; default: all")->type_name("NAME");
    command.add_option("--backbone", on_ranks.backbone,
                       "with --exact-ranks: of networks that have one; default: a light one");
    command.add_option("--size", size, "with --exact-ranks: size of the images")->capture_default_str();
    command.add_option("--batch", on_ranks.batch, "with --exact-ranks: global batch; default: 2 per rank and one more")
        ->check(CLI::Range(int64_t{1}, kLargestCount));
    command.add_option("--steps", on_ranks.steps, "with --exact-ranks: training steps")
        ->capture_default_str()
        ->check(CLI::Range(1, 1'000'000));
    command.footer(
        "--exact-ranks takes no files: it trains on random images, on all ranks (--ranks N, or under mpirun)\n"
        "and on one, and compares them bit for bit.");
  }
  ContextArguments context;
  RankArguments ranks;
  std::vector<std::string> files, networks;
  std::string size = "64x128";
  VerifyRanksOptions on_ranks;
  bool json = false;
};

/// What was compared so far.
struct Report {
  explicit Report(bool json) : json(json) {}

  void add(const std::string& title, const std::vector<VerifyLine>& lines, const nlohmann::json& figures) {
    auto entries = nlohmann::json::array();
    if (!json) fmt::print("{}\n", title);
    for (const VerifyLine& line : lines) {
      ++(line.passed ? passed : failed);
      if (!json) fmt::print("  {} {:<24} {}\n", line.passed ? "ok    " : "FAILED", line.group, line.summary);
      entries.push_back({{"group", line.group}, {"passed", line.passed}, {"summary", line.summary}});
    }
    files.push_back({{"file", title}, {"lines", entries}, {"figures", figures}});
  }
  void finish() const {
    if (json)
      fmt::print("{}\n", json_text(nlohmann::json{{"files", files}, {"passed", passed}, {"failed", failed}}, 1));
    else
      fmt::print("{} passed, {} failed\n", passed, failed);
  }

  bool json;
  nlohmann::json files = nlohmann::json::array();
  int64_t passed = 0, failed = 0;
};

bool verify_files(const VerifyArguments& args) {
  CONVOY_CHECK(!args.files.empty(), "verify needs reference files, or --exact-ranks; see convoy verify --help");
  const ContextOptions options = args.context.options();
  Report report(args.json);
  for (const std::string& file : args.files) {
    const VerifyResult result = verify(file, options);
    report.add(file, result.lines, result.figures);
  }
  report.finish();
  return report.failed == 0;
}

bool verify_on_ranks(const VerifyArguments& args, const JoinedRanks& joined) {
  VerifyRanksOptions options = args.on_ranks;
  const SizeHW size = parse_size(args.size);
  options.height = size.height, options.width = size.width;
  options.threads = args.context.options().threads > 0 ? args.context.options().threads : joined.threads;
  const bool main = joined.communicator->rank() == 0;
  Report report(args.json);
  if (main && !args.json)
    for (const std::string& note : joined.notes) fmt::print("{}\n", note);
  for (const std::string& network : args.networks.empty() ? network_names() : args.networks) {
    options.network = network;
    const std::vector<VerifyLine> lines = verify_ranks(joined.communicator, options);
    if (main) report.add(network, lines, nlohmann::json::object());
    if (!main)
      for (const VerifyLine& line : lines) report.failed += !line.passed;
  }
  if (main) report.finish();
  return report.failed == 0;
}

void run(const VerifyArguments& args) {
  if (!args.context.options().exact_ranks) {
    if (!verify_files(args)) throw Exit{1};
    return;
  }
  CONVOY_CHECK(args.files.empty(), "--exact-ranks compares ranks with one rank and takes no files; found '{}'",
               args.files[0]);
  if (args.ranks.is_launcher()) args.ranks.launch();
  bool equal = false;
  {
    const JoinedRanks joined = args.ranks.join();
    run_rank(*joined.communicator, [&] { equal = verify_on_ranks(args, joined); });
  }
  if (!equal) throw Exit{1};
}

}  // namespace

void add_verify_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand("verify", "compare networks with reference figures, or ranks with one rank");
  const auto args = std::make_shared<VerifyArguments>(*command);
  command->callback([args] { run(*args); });
}

}  // namespace convoy
