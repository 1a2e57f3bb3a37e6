// convoy predict: class maps of image files.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "apps/commands.h"
#include "apps/model_state.h"
#include "apps/pictures.h"
#include "apps/predictor.h"
#include "io/json_text.h"

namespace convoy {
namespace fs = std::filesystem;
namespace {

struct PredictArguments {
  explicit PredictArguments(CLI::App& command) : config(command), context(command) {
    command.add_option("--run-dir", run_directory, "a run: its best checkpoint, else its newest")->type_name("DIR");
    command.add_option("--checkpoint", checkpoint, "a directory step-N, or a weight file (.pth, .safetensors)")
        ->type_name("PATH");
    command.add_option("--input-img", input, "an image, or a folder of images")->required()->type_name("PATH");
    command.add_flag("--recursive", recursive, "images in folders below the folder, too");
    command
        .add_option("--output-dir", output,
                    "receives <image>_<kind>.png (default: VISUAL.OUTPUT_DIR where it is set, else predictions)")
        ->type_name("DIR");
    picture_kinds.add_to(command);
    command
        .add_option("--on-bad-sample", on_bad_sample,
                    "an unreadable file is named and passed over, with exit code 1 in the end (skip), or ends the "
                    "command (fail)")
        ->capture_default_str()
        ->check(CLI::IsMember({"skip", "fail"}));
    command.add_flag("--json", json, "print what was written as JSON");
  }
  ModelSource source() const { return {run_directory, checkpoint, config.file(), config.overrides()}; }

  ConfigArguments config;
  ContextArguments context;
  PictureArguments picture_kinds;
  std::string run_directory, checkpoint, input, output, on_bad_sample = "skip";
  bool recursive = false, json = false;
};

/// Sorted by path.
std::vector<fs::path> files_of(const fs::path& input, bool recursive) {
  std::error_code error;
  if (!fs::is_directory(input, error)) {
    CONVOY_CHECK(fs::exists(input, error), "{}: there is no such file or folder", input.string());
    return {input};
  }
  std::vector<fs::path> files;
  const auto add = [&](const fs::directory_entry& entry) {
    if (!entry.is_directory(error)) files.push_back(entry.path());
  };
  try {
    if (recursive)
      for (const auto& entry : fs::recursive_directory_iterator(input)) add(entry);
    else
      for (const auto& entry : fs::directory_iterator(input)) add(entry);
  } catch (const fs::filesystem_error& fault) {
    fail("{}: the folder cannot be read: {}", input.string(), fault.code().message());
  }
  std::sort(files.begin(), files.end());
  CONVOY_CHECK(!files.empty(), "{}: the folder holds no files{}", input.string(),
               recursive ? "" : " (--recursive looks into its folders)");
  return files;
}

std::string output_directory(const PredictArguments& args, const Config& config) {
  if (!args.output.empty()) return args.output;
  return config.visual.output_dir == VisualConfig{}.output_dir ? "predictions" : config.visual.output_dir;
}

void predict(const PredictArguments& args) {
  const std::vector<fs::path> files = files_of(args.input, args.recursive);
  std::error_code ignored;
  const bool one_file = !fs::is_directory(args.input, ignored);
  const auto model = load_model(args.source());
  Context context(args.context.options());
  Predictor predictor(context, model->store, *model->network, normalization(model->config),
                      prediction_options(model->config));
  const PictureWriter::Options options = args.picture_kinds.options();
  const PictureWriter writer(output_directory(args, model->config), model->classes, options);
  std::vector<fs::path> relative;
  for (const fs::path& file : files)
    relative.push_back(one_file ? file.filename() : file.lexically_relative(args.input));
  const std::vector<std::string> names = output_names(relative);
  writer.require_apart(names, files);

  auto written = nlohmann::ordered_json::array(), skipped = nlohmann::ordered_json::array();
  for (size_t i = 0; i < files.size(); ++i) {
    const std::string file = files[i].string();
    Image image;
    LabelMap labels;
    try {
      image = read_image_rgb(file);
      writer.prepare(names[i]);
      labels = predictor.predict(image);
    } catch (const Error& error) {
      const std::string message = error.what();
      const std::string fault = message.starts_with(file) ? message : fmt::format("{}: {}", file, message);
      if (one_file || args.on_bad_sample == "fail") fail("{}", fault);
      fmt::print(stderr, "skipped: {}\n", fault);
      skipped.push_back(file);
      continue;
    }
    const auto pictures = writer.write(names[i], image, labels);
    nlohmann::ordered_json entry = {{"image", file}, {"height", image.height}, {"width", image.width}};
    std::vector<std::string> paths;
    for (const std::string& kind : options.kinds) {
      entry[kind] = pictures.at(kind);
      paths.push_back(pictures.at(kind));
    }
    written.push_back(std::move(entry));
    if (!args.json) fmt::print("{} ({}x{}) -> {}\n", file, image.height, image.width, fmt::join(paths, ", "));
  }
  if (args.json)
    fmt::print("{}\n", json_text(nlohmann::ordered_json{{"checkpoint", model->path.string()},
                                                        {"prediction", predictor.options().text()},
                                                        {"written", written},
                                                        {"skipped", skipped}},
                                 1));
  CONVOY_CHECK(skipped.empty(), "{}: {} of {} files could not be predicted (named above); the others were", args.input,
               skipped.size(), files.size());
}

}  // namespace

void add_predict_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand("predict", "class maps of images");
  const auto args = std::make_shared<PredictArguments>(*command);
  command->callback([args] { predict(*args); });
}

}  // namespace convoy
