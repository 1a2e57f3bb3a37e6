// convoy weights: what is in a weight file, how two differ, one format into another.
#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "apps/commands.h"
#include "apps/model_state.h"
#include "io/checkpoint_files.h"
#include "io/json_text.h"
#include "io/pth.h"
#include "io/tensor_values.h"
#include "io/weights_file.h"

namespace convoy {
namespace fs = std::filesystem;
namespace {

using nlohmann::ordered_json;

std::string shape_text(const std::vector<int64_t>& shape) {
  return fmt::format("({})", fmt::join(shape, ", "));
}

// list

ordered_json summary_json(const TensorSummary& summary) {
  auto first = ordered_json::array();
  const auto parts = static_cast<size_t>(element_parts(summary.dtype));
  for (size_t i = 0; i < summary.first.size(); i += parts) {
    if (parts == 1)
      first.push_back(summary.first[i]);
    else
      first.push_back({summary.first[i], summary.first[i + 1]});
  }
  return {{"name", summary.name},
          {"dtype", element_name(summary.dtype)},
          {"shape", summary.shape},
          {"l2", summary.l2},
          {"first", first}};
}

void list(const std::string& path, bool json) {
  const WeightsFile file(path);
  auto tensors = ordered_json::array();
  uint64_t bytes = 0;
  for (size_t i = 0; i < file.tensors().size(); ++i) {
    const TensorSummary summary = summarize(file.tensor(i));
    if (json) {
      tensors.push_back(summary_json(summary));
      continue;
    }
    bytes += file.tensor(i).bytes();
    fmt::print("{:<14} {:<20} l2 {:<12.6g} first {:<44} {}\n", element_name(summary.dtype), shape_text(summary.shape),
               summary.l2, fmt::format("{:.6g}", fmt::join(summary.first, " ")), summary.name);
  }
  if (json) {
    ordered_json others = ordered_json::object();
    for (const WeightLeaf& leaf : file.others()) others[leaf.name] = leaf.value;
    fmt::print("{}\n", json_text(ordered_json{{"file", file.path().string()},
                                              {"format", file.format()},
                                              {"tensors", tensors},
                                              {"other", others},
                                              {"metadata", file.metadata()}}));
    return;
  }
  constexpr size_t kShown = 20;
  for (size_t i = 0; i < std::min(kShown, file.others().size()); ++i)
    fmt::print("{} = {}\n", file.others()[i].name, json_text(file.others()[i].value));
  if (file.others().size() > kShown) fmt::print("... and {} more values\n", file.others().size() - kShown);
  for (const auto& [key, value] : file.metadata()) fmt::print("metadata {}: {}\n", key, value.substr(0, 100));
  fmt::print("{}: {}, {} tensors with {} bytes, {} other values\n", file.path().string(), file.format(),
             file.tensors().size(), bytes, file.others().size());
}

// diff

/// Greatest absolute difference; NaN only where both or neither are NaN counts as equal.
double max_difference(const NamedTensor& a, const NamedTensor& b) {
  double most = 0;
  const int64_t count = a.count() * element_parts(a.dtype);
  for (int64_t i = 0; i < count; ++i) {
    const double x = value_at(a.dtype, a.values(), i), y = value_at(b.dtype, b.values(), i);
    if (x == y || (std::isnan(x) && std::isnan(y))) continue;
    const double difference = std::abs(x - y);
    most = std::isnan(difference) ? INFINITY : std::max(most, difference);
  }
  return most;
}

struct DiffOptions {
  std::string a, b;
  std::string select_a, select_b, strip_a, strip_b;
  double tolerance = 0;
  bool json = false;
};

/// A file's tensors by the names under which they are compared.
std::map<std::string, size_t> names_of(const WeightsFile& file, const std::string& select, const std::string& strip) {
  const std::string container = select.empty() || select.ends_with('/') ? select : select + "/";
  std::map<std::string, size_t> names;
  for (size_t i = 0; i < file.tensors().size(); ++i) {
    std::string name = file.tensors()[i].name;
    if (!name.starts_with(container)) continue;
    name.erase(0, container.size());
    if (name.starts_with(strip)) name.erase(0, strip.size());
    CONVOY_CHECK(names.emplace(name, i).second, "{}: two tensors are named \"{}\" without the prefix \"{}\"",
                 file.path().string(), name, strip);
  }
  CONVOY_CHECK(!names.empty(), "{}: no tensor lies in \"{}\"", file.path().string(), select);
  return names;
}

void diff(const DiffOptions& options) {
  const WeightsFile a(options.a), b(options.b);
  const auto names_a = names_of(a, options.select_a, options.strip_a);
  const auto names_b = names_of(b, options.select_b, options.strip_b);
  auto only_a = ordered_json::array(), only_b = ordered_json::array(), shapes = ordered_json::array(),
       values = ordered_json::array();
  int64_t equal = 0;
  double most = 0;
  for (const auto& [name, i] : names_a) {
    const auto found = names_b.find(name);
    if (found == names_b.end()) {
      only_a.push_back(name);
      continue;
    }
    const NamedTensor left = a.tensor(i), right = b.tensor(found->second);
    if (left.shape != right.shape || element_parts(left.dtype) != element_parts(right.dtype)) {
      shapes.push_back({{"name", name}, {"a", left.shape}, {"b", right.shape}});
      continue;
    }
    const double difference = max_difference(left, right);
    most = std::max(most, difference);
    if (difference > options.tolerance || left.dtype != right.dtype)
      values.push_back({{"name", name},
                        {"max_abs_difference", difference},
                        {"dtypes", {element_name(left.dtype), element_name(right.dtype)}}});
    else
      ++equal;
  }
  for (const auto& [name, i] : names_b)
    if (!names_a.contains(name)) only_b.push_back(name);
  const bool same = only_a.empty() && only_b.empty() && shapes.empty() && values.empty();
  if (options.json) {
    fmt::print("{}\n", json_text(ordered_json{{"equal", equal},
                                              {"only_a", only_a},
                                              {"only_b", only_b},
                                              {"shapes", shapes},
                                              {"values", values},
                                              {"max_abs_difference", most},
                                              {"same", same}}));
  } else {
    for (const auto& name : only_a) fmt::print("only in {}: {}\n", options.a, name.get<std::string>());
    for (const auto& name : only_b) fmt::print("only in {}: {}\n", options.b, name.get<std::string>());
    for (const auto& row : shapes)
      fmt::print("shape: {} is {} and {}\n", row["name"].get<std::string>(), row["a"].dump(), row["b"].dump());
    for (const auto& row : values)
      fmt::print("values: {} differs by up to {:.6g} ({} and {})\n", row["name"].get<std::string>(),
                 row["max_abs_difference"].get<double>(), row["dtypes"][0].get<std::string>(),
                 row["dtypes"][1].get<std::string>());
    fmt::print("{} equal, {} differ, {} of other shape, {} only in the first, {} only in the second\n", equal,
               values.size(), shapes.size(), only_a.size(), only_b.size());
  }
  if (!same) throw Exit{1};
}

// convert and export

void write(const fs::path& out, const std::vector<NamedTensor>& tensors, const SafetensorsMetadata& metadata) {
  const std::string ending = out.extension().string();
  if (ending == ".safetensors")
    write_safetensors(out, tensors, metadata);
  else if (ending == ".pth" || ending == ".pt")
    write_pth(out, tensors);
  else
    fail("{}: the ending says what to write: .safetensors, .pth or .pt", out.string());
  uint64_t bytes = 0;
  for (const NamedTensor& tensor : tensors) bytes += tensor.bytes();
  fmt::print("{}: {} tensors, {} bytes of values\n", out.string(), tensors.size(), bytes);
}

struct ConvertOptions {
  std::string in, out, strip, add, select;
};

/// Says on standard error in what the new file differs from the old one as a whole: what it lacks, how nesting went
/// into names, and what is more than weights.
void report_conversion(const ConvertOptions& options, const WeightsFile& file,
                       const std::vector<NamedTensor>& tensors) {
  const std::string in = file.path().string();
  const bool into_pth = fs::path(options.out).extension() != ".safetensors";
  const auto count = [&](auto is_one) { return std::count_if(tensors.begin(), tensors.end(), is_one); };
  if (in != options.in) fmt::print(stderr, "{}: taken from {}\n", options.in, in);
  if (const size_t others = file.others().size(); others > 0)
    fmt::print(stderr, "{}: {} other values (numbers, texts) are left out; `convoy weights list` shows them\n", in,
               others);
  if (const auto texts = file.metadata().size() - file.metadata().count("format"); into_pth && texts > 0)
    fmt::print(stderr, "{}: {} texts of its metadata are left out: a .pth has no place for them\n", in, texts);
  const auto is_nested = [](const NamedTensor& tensor) { return tensor.name.find('/') != std::string::npos; };
  if (const auto nested = count(is_nested); nested > 0)
    fmt::print(stderr, "{}: {} tensors of nested containers have names joined by '/': \"{}\"\n", options.out, nested,
               std::find_if(tensors.begin(), tensors.end(), is_nested)->name);
  const auto begins = [&](std::string_view prefix) {
    return count([&](const NamedTensor& tensor) { return tensor.name.starts_with(options.add + std::string(prefix)); });
  };
  if (const auto momentum = begins("optimizer."); momentum > 0)
    fmt::print(stderr, "{}: {} tensors are the optimizer's; `convoy weights export {} {}` writes weights alone\n",
               options.out, momentum, options.in, options.out);
  if (const auto momentum = begins("optimizer/"); momentum > 0)
    fmt::print(stderr, "{}: {} tensors are the optimizer's; --select NAME takes the container NAME alone\n",
               options.out, momentum);
}

void convert(const ConvertOptions& options) {
  const WeightsFile file(options.in);
  std::error_code ignored;
  for (const fs::path& read : {fs::path(options.in), file.path(), file.path() / kTensorsFile})
    CONVOY_CHECK(!fs::equivalent(read, options.out, ignored), "{} is the file that is read; write another one",
                 options.out);
  std::map<size_t, std::string> in_order;
  for (const auto& [name, i] : names_of(file, options.select, options.strip)) in_order[i] = name;
  std::vector<NamedTensor> tensors;
  for (const auto& [i, name] : in_order) {
    NamedTensor tensor = file.tensor(i);
    tensor.name = options.add + name;
    tensors.push_back(std::move(tensor));
  }
  SafetensorsMetadata metadata = file.metadata();
  metadata["format"] = "pt";
  write(options.out, tensors, metadata);
  report_conversion(options, file, tensors);
}

/// Which checkpoint of a run `taken` is; "" where `named` was the checkpoint itself.
std::string role_of(const fs::path& named, const fs::path& taken) {
  std::error_code ignored;
  if (fs::equivalent(named, taken, ignored)) return "";
  const bool is_run = fs::is_directory(named / "checkpoints", ignored);
  if (is_run && find_best(named / "checkpoints")) return ", the run's best checkpoint";
  return ", the newest checkpoint (none is marked as best)";
}

void export_run(const std::string& run, const std::string& out) {
  const auto model = load_model(run);
  fmt::print("{}: step {}{}\n", model->path.string(), model->step, role_of(run, model->path));
  std::vector<NamedTensor> tensors = weight_tensors(model->store);
  write(out, tensors, weights_metadata(*model));
}

void add_list(CLI::App& weights) {
  CLI::App* command = weights.add_subcommand("list", "names, types, shapes and first values of a file's tensors");
  const auto path = std::make_shared<std::string>();
  const auto json = std::make_shared<bool>(false);
  command->add_option("FILE", *path, ".pth, .pt, .pkl, .safetensors, a directory step-N or a run")->required();
  command->add_flag("--json", *json, R"({"tensors": [{"name", "dtype", "shape", "l2", "first"}], "other": {...}})");
  command->callback([path, json] { list(*path, *json); });
}

void add_diff(CLI::App& weights) {
  CLI::App* command =
      weights.add_subcommand("diff", "how two files differ: missing tensors, shapes, values; exit code 1 when they do");
  const auto options = std::make_shared<DiffOptions>();
  command->add_option("A", options->a, "a weight file")->required();
  command->add_option("B", options->b, "another")->required();
  command->add_option("--select-a", options->select_a, "compare only what lies in this container of A (state_dict)");
  command->add_option("--select-b", options->select_b, "the same for B");
  command->add_option("--strip-a", options->strip_a, "prefix taken from the names in A (module.)");
  command->add_option("--strip-b", options->strip_b, "the same for B");
  command->add_option("--tolerance", options->tolerance, "greatest absolute difference that counts as equal")
      ->check(number_between(0, 1e30));
  command->add_flag("--json", options->json, "print the differences as JSON");
  command->callback([options] { diff(*options); });
}

void add_convert(CLI::App& weights) {
  CLI::App* command = weights.add_subcommand(
      "convert",
      "write the tensors of IN as OUT (.safetensors, .pth, .pt), one flat list of them: their types and values stay as "
      "they are, names of nested ones are joined by '/', numbers and texts are left out; a checkpoint's momentum is "
      "written too (`weights export` leaves it out)");
  const auto options = std::make_shared<ConvertOptions>();
  command->add_option("IN", options->in, ".pth, .pt, .pkl, .safetensors, a directory step-N or a run")->required();
  command->add_option("OUT", options->out, "the file to write")->required();
  command->add_option("--select", options->select, "take only what lies in this container (state_dict)");
  command->add_option("--strip-prefix", options->strip, "take this from the beginning of names (module.)");
  command->add_option("--add-prefix", options->add, "put this before names");
  command->callback([options] { convert(*options); });
}

void add_export(CLI::App& weights) {
  CLI::App* command = weights.add_subcommand("export",
                                             "write a run's weights alone (no optimizer) as OUT; a .safetensors "
                                             "carries the recipe, classes, normalisation and "
                                             "BN eps with it, so that eval and predict need nothing else");
  const auto run = std::make_shared<std::string>(), out = std::make_shared<std::string>();
  command->add_option("RUN", *run, "a run (its best checkpoint, else its newest) or a directory step-N")->required();
  command->add_option("OUT", *out, "the file to write: .safetensors, .pth or .pt")->required();
  command->callback([run, out] { export_run(*run, *out); });
}

}  // namespace

void add_weights_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand("weights", "look into weight files, compare and convert them");
  command->require_subcommand(1);
  add_list(*command);
  add_diff(*command);
  add_convert(*command);
  add_export(*command);
}

}  // namespace convoy
