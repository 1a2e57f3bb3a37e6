// convoy report: a run's report.html.
#include "io/report.h"

#include "apps/commands.h"
#include "engine/error.h"

namespace convoy {

void add_report_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand("report", "write a run's report.html");
  const auto directory = std::make_shared<std::string>();
  command->add_option("run", *directory, "run directory")->required()->type_name("RUN_DIR");
  command->callback([directory] { fmt::print("{}\n", write_report(*directory).string()); });
}

}  // namespace convoy
