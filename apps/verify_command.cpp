// convoy verify: networks against reference figures.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "apps/commands.h"
#include "apps/verify.h"

namespace convoy {
namespace {

struct VerifyArguments {
  explicit VerifyArguments(CLI::App& command) : context(command) {
    command.add_option("files", files, "reference files")->required()->type_name("FILE.json");
    command.add_flag("--json", json, "print every raw figure as JSON");
  }
  ContextArguments context;
  std::vector<std::string> files;
  bool json = false;
};

void run(const VerifyArguments& args) {
  const ContextOptions options = args.context.options();
  auto all = nlohmann::json::array();
  int64_t passed = 0, failed = 0;
  for (const std::string& file : args.files) {
    const VerifyResult result = verify(file, options);
    failed += result.failed();
    passed += static_cast<int64_t>(result.lines.size()) - result.failed();
    auto lines = nlohmann::json::array();
    if (!args.json) fmt::print("{}\n", file);
    for (const VerifyLine& line : result.lines) {
      if (!args.json) fmt::print("  {} {:<24} {}\n", line.passed ? "ok    " : "FAILED", line.group, line.summary);
      lines.push_back({{"group", line.group}, {"passed", line.passed}, {"summary", line.summary}});
    }
    all.push_back({{"file", file}, {"lines", lines}, {"figures", result.figures}});
  }
  if (args.json)
    fmt::print("{}\n", nlohmann::json{{"files", all}, {"passed", passed}, {"failed", failed}}.dump(1));
  else
    fmt::print("{} passed, {} failed\n", passed, failed);
  if (failed > 0) throw Exit{1};
}

}  // namespace

void add_verify_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand("verify", "compare networks with reference figures");
  const auto args = std::make_shared<VerifyArguments>(*command);
  command->callback([args] { run(*args); });
}

}  // namespace convoy
