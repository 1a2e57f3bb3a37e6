// convoy synth: a generated data set.
#include <filesystem>
#include <nlohmann/json.hpp>

#include "apps/commands.h"
#include "engine/error.h"
#include "io/file.h"
#include "io/json_text.h"
#include "io/synth.h"

namespace convoy {
namespace {

struct SynthArguments {
  explicit SynthArguments(CLI::App& command) {
    command.add_option("folder", folder, "where to write")->required()->type_name("DIR");
    command.add_option("--images", options.images, "scenes; every fifth is for validation")
        ->capture_default_str()
        ->check(CLI::Range(int64_t{1}, kLargestCount));
    command.add_option("--size", size, "HEIGHTxWIDTH")->capture_default_str();
    command.add_option("--seed", options.seed, "same seed, same bytes")->capture_default_str();
    command.add_option("--threads", options.threads, "0: all cores")
        ->capture_default_str()
        ->check(CLI::Range(int64_t{0}, kLargestCount));
    command.add_flag("--json", json, "print what was written as JSON");
  }
  SynthOptions options;
  std::string folder, size = "128x256";
  bool json = false;
};

/// Scenes of other options in the same folder would be one data set with these. The record is written first, so that a
/// run that was broken off can be repeated.
void refuse_to_mix(const std::string& folder, const SynthOptions& options) {
  namespace fs = std::filesystem;
  const fs::path record = fs::path(folder) / "synth.json";
  const std::string made = nlohmann::json{
      {"images", options.images},
      {"height", options.height},
      {"width", options.width},
      {"seed", options.seed}}.dump();
  if (fs::exists(fs::path(folder) / "leftImg8bit")) {
    const std::string found = fs::exists(record) ? read_text_file(record) : "scenes of unknown origin";
    CONVOY_CHECK(found == made, "{}: holds {}; these would be {}. Remove it, or choose another folder", folder, found,
                 made);
  }
  make_directories(folder);
  write_text_file(record, made);
}

void synth(SynthArguments& args) {
  const SizeHW size = parse_size(args.size);
  args.options.height = size.height;
  args.options.width = size.width;
  refuse_to_mix(args.folder, args.options);
  const SynthSummary summary = synthesize(args.folder, args.options);
  if (args.json)
    fmt::print("{}\n", json_text(nlohmann::json{{"folder", args.folder},
                                                {"train", summary.train},
                                                {"val", summary.val},
                                                {"boxes", summary.boxes},
                                                {"void_share", summary.void_share}}));
  else
    fmt::print("{}: {} training and {} validation scenes of {}, {} boxes, {:.1f} % of the pixels without class\n",
               args.folder, summary.train, summary.val, args.size, summary.boxes, summary.void_share * 100);
}

}  // namespace

void add_synth_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand("synth", "write a generated data set of street scenes");
  const auto args = std::make_shared<SynthArguments>(*command);
  command->callback([args] { synth(*args); });
}

}  // namespace convoy
