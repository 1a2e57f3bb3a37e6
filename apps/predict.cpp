// convoy predict: class maps of image files.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "apps/commands.h"
#include "apps/model_state.h"
#include "apps/pictures.h"
#include "apps/predictor.h"
#include "io/file.h"

namespace convoy {
namespace fs = std::filesystem;
namespace {

struct PredictArguments {
  explicit PredictArguments(CLI::App& command) : config(command), context(command) {
    command.add_option("--run-dir", run_directory, "a run: its best checkpoint, else its newest")->type_name("DIR");
    command.add_option("--checkpoint", checkpoint, "a directory step-N")->type_name("DIR");
    command.add_option("--input-img", input, "an image, or a folder of images")->required()->type_name("PATH");
    command.add_option("--output-dir", output, "receives <image>_{label,prediction,overlay}.png")
        ->capture_default_str()
        ->type_name("DIR");
    command.add_flag("--json", json, "print what was written as JSON");
  }
  ConfigArguments config;
  ContextArguments context;
  std::string run_directory, checkpoint, input, output = "predictions";
  bool json = false;
};

std::vector<fs::path> files_of(const fs::path& input) {
  std::error_code error;
  if (!fs::is_directory(input, error)) {
    CONVOY_CHECK(fs::exists(input, error), "{}: there is no such file or folder", input.string());
    return {input};
  }
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(input))
    if (!entry.is_directory(error)) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  CONVOY_CHECK(!files.empty(), "{}: the folder holds no files", input.string());
  return files;
}

void predict(const PredictArguments& args) {
  CONVOY_CHECK(args.run_directory.empty() != args.checkpoint.empty(),
               "predict needs the weights: --run-dir DIR or --checkpoint DIR");
  CONVOY_CHECK(args.config.file().empty(),
               "predict takes its configuration from the checkpoint; override single keys by KEY VALUE");
  const std::vector<fs::path> files = files_of(args.input);
  std::error_code ignored;
  const bool one_file = !fs::is_directory(args.input, ignored);
  const auto model =
      load_model(args.run_directory.empty() ? args.checkpoint : args.run_directory, args.config.overrides());
  Context context(args.context.options());
  Predictor predictor(context, model->store, *model->network, normalization(model->config));
  make_directories(args.output);

  auto written = nlohmann::ordered_json::array(), skipped = nlohmann::ordered_json::array();
  std::set<std::string> used;
  for (const fs::path& file : files) {
    Image image;
    try {
      image = read_image_rgb(file.string());
    } catch (const Error& error) {
      if (one_file) throw;
      std::fprintf(stderr, "skipped: %s\n", error.what());
      skipped.push_back(file.string());
      continue;
    }
    const LabelMap labels = predictor.predict(image);
    // a.png and a.jpg of one folder keep their endings
    const std::string name = used.insert(file.stem().string()).second ? file.stem().string() : file.filename().string();
    const std::string base = (fs::path(args.output) / name).string();
    write_png_gray(base + "_label.png", labels, model->classes.names.size() > 256 ? 16 : 8);
    if (model->classes.colors.size() <= 256)
      write_png_palette(base + "_prediction.png", labels, model->classes.colors);
    else
      write_png(base + "_prediction.png", color_picture(labels, model->classes.colors));
    write_png(base + "_overlay.png", overlay_picture(image, labels, model->classes.colors));
    if (!args.json)
      fmt::print("{} ({}x{}) -> {}_{{label,prediction,overlay}}.png\n", file.string(), image.height, image.width, base);
    written.push_back({{"image", file.string()},
                       {"height", image.height},
                       {"width", image.width},
                       {"label", base + "_label.png"},
                       {"prediction", base + "_prediction.png"},
                       {"overlay", base + "_overlay.png"}});
  }
  CONVOY_CHECK(!written.empty(), "{}: none of its {} files is a PNG or JPEG image that can be read", args.input,
               files.size());
  if (args.json)
    fmt::print(
        "{}\n",
        nlohmann::ordered_json{{"checkpoint", model->path.string()}, {"written", written}, {"skipped", skipped}}.dump(
            1));
}

}  // namespace

void add_predict_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand("predict", "class maps of images");
  const auto args = std::make_shared<PredictArguments>(*command);
  command->callback([args] { predict(*args); });
}

}  // namespace convoy
