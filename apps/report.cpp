// convoy report: a run's report.html.
#include "io/report.h"

#include <filesystem>

#include "apps/commands.h"
#include "engine/error.h"

namespace convoy {

void add_report_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand("report", "write a run's report.html");
  const auto directory = std::make_shared<std::string>();
  command->add_option("run", *directory, "run directory")->required()->type_name("RUN_DIR");
  command->callback([directory] {
    const std::filesystem::path run = *directory;
    std::error_code ignored;
    // write_report copes with a run of which parts are missing; a folder without any of them is a slip.
    CONVOY_CHECK(!std::filesystem::is_directory(run, ignored) ||
                     std::filesystem::exists(run / "metrics.jsonl", ignored) ||
                     std::filesystem::exists(run / "config.yaml", ignored),
                 "{}: holds no run (neither metrics.jsonl nor config.yaml)", *directory);
    fmt::print("{}\n", write_report(run).string());
  });
}

}  // namespace convoy
