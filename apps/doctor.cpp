// convoy doctor: faults of a data set, before they cost a run.
#include <map>
#include <nlohmann/json.hpp>

#include "apps/commands.h"
#include "engine/error.h"
#include "io/doctor.h"
#include "io/json_text.h"

namespace convoy {
namespace {

struct DoctorArguments {
  explicit DoctorArguments(CLI::App& command) : config(command) {
    command.add_option("--limit", limit, "samples per split to decode whole; -1: all")->capture_default_str();
    command.add_flag("--quick", quick, "look only at what train looks at when it starts");
    command.add_flag("--json", json, "print the findings as JSON, all of them");
  }
  ConfigArguments config;
  int64_t limit = -1;
  bool quick = false, json = false;
};

std::string size_text(SizeHW size) {
  return fmt::format("{}x{}", size.height, size.width);
}

std::string counted(int64_t count, const std::string& what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

/// At most kShown findings of each kind.
void print_findings(const std::vector<Finding>& findings) {
  constexpr int64_t kShown = 10;
  std::map<std::string, int64_t> seen;
  for (const Finding& f : findings)
    if (seen[f.kind]++ < kShown) fmt::print("{} ({}): {}\n", severity_name(f.severity), f.kind, f.message);
  for (const auto& [kind, count] : seen)
    if (count > kShown)
      fmt::print("... and {} more findings of the kind {} (--json prints all)\n", count - kShown, kind);
}

void print_summary(const SegmentationDataset& data, const DatasetReport& report) {
  fmt::print("{}: {} samples, {} looked at, {} decoded; sizes {} to {}; {} errors, {} warnings\n", data.split(),
             data.size(), report.headers, report.decoded, size_text(report.smallest), size_text(report.largest),
             report.count(Severity::error), report.count(Severity::warning));
  int64_t all = report.ignored_pixels;
  for (const int64_t pixels : report.histogram) all += pixels;
  if (all == 0) return;
  const auto line = [&](const std::string& name, int64_t pixels) {
    fmt::print("  {:<24} {:>14} pixels {:>7.3f} %\n", name, pixels,
               100 * static_cast<double>(pixels) / static_cast<double>(all));
  };
  for (size_t c = 0; c < report.histogram.size(); ++c) line(data.class_names()[c], report.histogram[c]);
  line("(ignored)", report.ignored_pixels);
}

nlohmann::ordered_json findings_json(const std::vector<Finding>& findings) {
  auto out = nlohmann::ordered_json::array();
  for (const Finding& f : findings)
    out.push_back({{"severity", severity_name(f.severity)}, {"kind", f.kind}, {"message", f.message}});
  return out;
}

nlohmann::ordered_json report_json(const SegmentationDataset& data, const DatasetReport& report) {
  auto histogram = nlohmann::ordered_json::object();
  for (int64_t c = 0; c < data.num_classes(); ++c)
    histogram[data.class_names()[static_cast<size_t>(c)]] = report.histogram[static_cast<size_t>(c)];
  return {{"samples", data.size()},
          {"looked_at", report.headers},
          {"decoded", report.decoded},
          {"smallest", {report.smallest.height, report.smallest.width}},
          {"largest", {report.largest.height, report.largest.width}},
          {"errors", report.count(Severity::error)},
          {"warnings", report.count(Severity::warning)},
          {"ignored_pixels", report.ignored_pixels},
          {"histogram", histogram},
          {"findings", findings_json(report.findings)}};
}

void doctor(const DoctorArguments& args) {
  const Config config = args.config.load();
  CheckOptions options;
  if (args.quick) options = quick_check();
  if (args.limit >= 0) options.decoded = args.limit;
  options.threads = std::max<int64_t>(1, config.dataset.workers);
  auto splits = nlohmann::ordered_json::object();
  int64_t errors = 0, warnings = 0;
  const SegmentationDataset train = open_dataset(config, config.dataset.train_split, MissingLabels::keep),
                            val = open_dataset(config, config.dataset.val_split, MissingLabels::keep);
  for (const SegmentationDataset* data : {&train, &val}) {
    const DatasetReport report = check_dataset(*data, options);
    errors += report.count(Severity::error);
    warnings += report.count(Severity::warning);
    splits[data->split()] = report_json(*data, report);
    if (args.json) continue;
    print_findings(report.findings);
    print_summary(*data, report);
  }
  const std::vector<Finding> leaks = check_leak(train, val, options.seconds);
  warnings += static_cast<int64_t>(leaks.size());
  splits["leaks"] = findings_json(leaks);
  if (args.json) {
    fmt::print("{}\n", json_text(splits, 1));
  } else {
    print_findings(leaks);
    fmt::print("{}: {}\n", train.root(),
               errors + warnings == 0 ? "no faults" : counted(errors, "error") + ", " + counted(warnings, "warning"));
  }
  CONVOY_CHECK(errors == 0, "{}: {} faults", train.root(), errors);
}

}  // namespace

void add_doctor_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand("doctor", "look for faults in a data set");
  const auto args = std::make_shared<DoctorArguments>(*command);
  command->callback([args] { doctor(*args); });
}

}  // namespace convoy
