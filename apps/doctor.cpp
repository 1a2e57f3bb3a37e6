// convoy doctor: faults of a data set, before they cost a run.
#include <nlohmann/json.hpp>

#include "apps/commands.h"
#include "engine/error.h"
#include "io/doctor.h"

namespace convoy {
namespace {

struct DoctorArguments {
  explicit DoctorArguments(CLI::App& command) : config(command) {
    command.add_option("--limit", limit, "samples per split to decode whole; -1: all")->capture_default_str();
    command.add_flag("--json", json, "print the findings as JSON");
  }
  ConfigArguments config;
  int64_t limit = -1;
  bool json = false;
};

void doctor(const DoctorArguments& args) {
  const Config config = args.config.load();
  auto splits = nlohmann::ordered_json::object();
  int64_t errors = 0;
  const auto show = [&](const std::vector<Finding>& findings, nlohmann::ordered_json& out) {
    for (const Finding& f : findings) {
      errors += f.severity == Severity::error;
      if (!args.json) fmt::print("{} ({}): {}\n", severity_name(f.severity), f.kind, f.message);
      out.push_back({{"severity", severity_name(f.severity)}, {"kind", f.kind}, {"message", f.message}});
    }
  };
  const SegmentationDataset train = open_dataset(config, "train", MissingLabels::keep),
                            val = open_dataset(config, "val", MissingLabels::keep);
  for (const SegmentationDataset* data : {&train, &val}) {
    const DatasetReport report = check_dataset(*data, args.limit);
    auto findings = nlohmann::ordered_json::array();
    show(report.findings, findings);
    auto histogram = nlohmann::ordered_json::object();
    for (int64_t c = 0; c < data->num_classes(); ++c)
      histogram[data->class_names()[static_cast<size_t>(c)]] = report.histogram[static_cast<size_t>(c)];
    if (!args.json)
      fmt::print("{}: {} samples, {} decoded, {} findings\n", data->split(), report.headers, report.decoded,
                 report.findings.size());
    splits[data->split()] = {{"samples", report.headers},
                             {"decoded", report.decoded},
                             {"ignored_pixels", report.ignored_pixels},
                             {"histogram", histogram},
                             {"findings", findings}};
  }
  auto leaks = nlohmann::ordered_json::array();
  show(check_leak(train, val), leaks);
  splits["leaks"] = leaks;
  if (args.json) fmt::print("{}\n", splits.dump(1));
  CONVOY_CHECK(errors == 0, "{}: {} faults", train.root(), errors);
}

}  // namespace

void add_doctor_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand("doctor", "look for faults in a data set");
  const auto args = std::make_shared<DoctorArguments>(*command);
  command->callback([args] { doctor(*args); });
}

}  // namespace convoy
