#include "apps/model_state.h"

#include <cstring>
#include <map>

#include "apps/load_weights.h"
#include "apps/recipe.h"
#include "io/augment.h"
#include "io/json_text.h"
#include "io/tensor_values.h"

namespace convoy {
namespace fs = std::filesystem;
namespace {

/// "optimizer.momentum.conv.weight"
std::string state_tensor_name(const OptimizerState& state, const Parameter& parameter) {
  return "optimizer." + state.name + "." + parameter.name;
}

/// Looks tensors up and copies them; remembers what does not fit.
class Restorer {
 public:
  Restorer(const CheckpointState& checkpoint, const std::string& source) : source_(source) {
    for (const NamedTensor& tensor : checkpoint.tensors) by_name_[tensor.name] = &tensor;
  }
  void copy(const std::string& name, const Shape& shape, ElementType dtype, void* to) {
    const auto found = by_name_.find(name);
    if (found == by_name_.end()) {
      faults_.push_back(name + " is missing");
      return;
    }
    const NamedTensor& tensor = *found->second;
    require_usable_values(tensor, source_);
    if (tensor.shape != shape.to_vector() || tensor.dtype != dtype)
      faults_.push_back(fmt::format("{} is {} {}, the network has {} {}", name, element_name(tensor.dtype),
                                    Shape(tensor.shape).str(), element_name(dtype), shape.str()));
    else
      std::memcpy(to, tensor.values(), tensor.bytes());
  }
  const std::vector<std::string>& faults() const { return faults_; }
  bool has_any(const std::string& prefix) const {
    const auto first = by_name_.lower_bound(prefix);
    return first != by_name_.end() && first->first.starts_with(prefix);
  }

 private:
  const std::string& source_;
  std::map<std::string, const NamedTensor*> by_name_;
  std::vector<std::string> faults_;
};

}  // namespace

std::vector<NamedTensor> state_tensors(ParamStore& store) {
  std::vector<NamedTensor> tensors;
  for (size_t i = 0; i < store.parameters().size(); ++i) {
    const Parameter& p = store.parameters()[i];
    const auto index = static_cast<int64_t>(i);
    tensors.push_back(
        {.name = p.name, .dtype = ElementType::kF32, .shape = p.shape.to_vector(), .data = store.value(index)});
    for (size_t k = 0; k < store.optimizer_states().size(); ++k)
      tensors.push_back({.name = state_tensor_name(store.optimizer_states()[k], p),
                         .dtype = ElementType::kF32,
                         .shape = p.shape.to_vector(),
                         .data = store.optimizer_state(k, index)});
  }
  for (const Buffer& b : store.buffers())
    tensors.push_back({.name = b.name,
                       .dtype = element_type(b.value.dtype()),
                       .shape = b.value.shape().to_vector(),
                       .data = b.value.view().data});
  return tensors;
}

void restore_tensors(const CheckpointState& checkpoint, const std::string& source, ParamStore& store, bool optimizer) {
  Restorer restorer(checkpoint, source);
  for (const OptimizerState& state : store.optimizer_states())
    CONVOY_CHECK(
        !optimizer || restorer.has_any("optimizer." + state.name + "."),
        "{}: it holds no optimizer.{}, so SOLVER.OPTIMIZER was another one. Go on with that, or begin a new run "
        "with these weights by TRAIN.PRETRAINED_MODEL_PATH",
        source, state.name);
  for (size_t i = 0; i < store.parameters().size(); ++i) {
    const Parameter& p = store.parameters()[i];
    const auto index = static_cast<int64_t>(i);
    restorer.copy(p.name, p.shape, ElementType::kF32, store.value(index));
    for (size_t k = 0; optimizer && k < store.optimizer_states().size(); ++k)
      restorer.copy(state_tensor_name(store.optimizer_states()[k], p), p.shape, ElementType::kF32,
                    store.optimizer_state(k, index));
  }
  for (Buffer& b : store.buffers())
    restorer.copy(b.name, b.value.shape(), element_type(b.value.dtype()), b.value.view().data);
  const auto& faults = restorer.faults();
  if (faults.empty()) return;
  constexpr size_t kShown = 5;
  const std::vector<std::string> shown(faults.begin(),
                                       faults.begin() + static_cast<ptrdiff_t>(std::min(kShown, faults.size())));
  fail("{}: its weights do not fit the configured network: {}{}", source, fmt::join(shown, "; "),
       faults.size() > kShown ? fmt::format("; and {} more", faults.size() - kShown) : "");
}

nlohmann::json class_table_json(const ClassTable& classes) {
  auto json = nlohmann::json::array();
  for (size_t c = 0; c < classes.names.size(); ++c)
    json.push_back({{"name", classes.names[c]},
                    {"color", classes.colors[c]},
                    {"file_value", classes.file_values.empty() ? static_cast<int32_t>(c) : classes.file_values[c]}});
  return json;
}

ClassTable class_table_of(const nlohmann::json& json) {
  ClassTable classes;
  for (const auto& item : json) {
    classes.names.push_back(item.at("name").get<std::string>());
    classes.colors.push_back(item.at("color").get<Color>());
    classes.file_values.push_back(item.value("file_value", static_cast<int32_t>(classes.file_values.size())));
  }
  return classes;
}

std::vector<NamedTensor> weight_tensors(ParamStore& store) {
  std::vector<NamedTensor> tensors;
  for (const std::string& name : store.state_order()) {
    const auto alias = store.aliases().find(name);
    const std::string& stored = alias == store.aliases().end() ? name : alias->second;
    if (const int64_t p = store.find_parameter(stored); p >= 0) {
      const Parameter& parameter = store.parameters()[static_cast<size_t>(p)];
      tensors.push_back({name, ElementType::kF32, parameter.shape.to_vector(), store.value(p), {}});
      continue;
    }
    const Tensor& value = store.buffers()[static_cast<size_t>(store.find_buffer(stored))].value;
    tensors.push_back({name, element_type(value.dtype()), value.shape().to_vector(), value.view().data, {}});
  }
  return tensors;
}

namespace {

/// What a network expects of its input, and eps of its batch norms.
SafetensorsMetadata preprocessing_metadata(const Config& config, int64_t classes) {
  const NetworkOptions options = network_options(config, classes);
  const Normalization normalized = normalization(config);
  return {{"bn_eps_encoder", fmt::format("{}", options.bn_eps_encoder)},
          {"bn_eps_decoder", fmt::format("{}", options.bn_eps_decoder)},
          {"mean", fmt::format("{}", fmt::join(normalized.mean, " "))},
          {"std", fmt::format("{}", fmt::join(normalized.std_dev, " "))},
          {"channel_order", "RGB"}};
}

}  // namespace

SafetensorsMetadata weights_metadata(const TrainedModel& model) {
  SafetensorsMetadata metadata = preprocessing_metadata(model.config, static_cast<int64_t>(model.classes.names.size()));
  metadata["format"] = "pt";
  metadata["convoy.config"] = dump_yaml(model.config);
  metadata["convoy.classes"] = json_text(class_table_json(model.classes));
  metadata["convoy.step"] = std::to_string(model.step);
  return metadata;
}

std::unique_ptr<TrainedModel> load_model(const fs::path& checkpoint_or_run, const std::vector<std::string>& overrides) {
  fs::path path = checkpoint_or_run;
  std::error_code ignored;
  if (fs::is_directory(path / "checkpoints", ignored))
    if (const auto best = find_best(path / "checkpoints")) path = path / "checkpoints" / checkpoint_name(*best);
  const LoadedCheckpoint checkpoint = load_checkpoint(path);
  auto model = std::make_unique<TrainedModel>();
  model->path = checkpoint.path;
  model->step = checkpoint.step;
  try {
    model->classes = class_table_of(checkpoint.meta.at("classes"));
    model->config = parse_config(checkpoint.meta.at("config").get<std::string>(), checkpoint.path.string(), overrides);
  } catch (const nlohmann::json::exception& error) {
    fail("{}: the checkpoint's state lacks its classes or configuration: {}", checkpoint.path.string(), error.what());
  }
  require_supported(model->config);
  model->network =
      make_network(network_options(model->config, static_cast<int64_t>(model->classes.names.size())), model->store);
  restore_tensors(checkpoint, checkpoint.path.string(), model->store, false);
  return model;
}

std::vector<std::string> metadata_differences(const SafetensorsMetadata& metadata, const Config& config,
                                              int64_t classes) {
  std::vector<std::string> differences;
  for (const auto& [key, here] : preprocessing_metadata(config, classes))
    if (const auto there = metadata.find(key); there != metadata.end() && there->second != here)
      differences.push_back(
          fmt::format("{} is {} in the file's training, {} in the configuration", key, there->second, here));
  return differences;
}

namespace {

/// Names and colours of the configured data set's classes; made-up ones where the data set is not there.
ClassTable classes_of(const Config& config) {
  try {
    return open_dataset(config, "val").classes();
  } catch (const Error&) {
    ClassTable table;
    for (int64_t c = 0; c < class_count(config); ++c) {
      table.names.push_back(fmt::format("class {}", c));
      const auto shade = [&](int64_t factor) { return static_cast<uint8_t>(c * factor % 256); };
      table.colors.push_back({shade(67), shade(151), shade(211)});
    }
    return table;
  }
}

std::unique_ptr<TrainedModel> load_weight_file(const fs::path& path, const ModelSource& source, bool report) {
  const WeightsFile file(path);
  const auto recipe = file.metadata().find("convoy.config");
  const bool carries_recipe = source.config_file.empty() && recipe != file.metadata().end();
  CONVOY_CHECK(carries_recipe || !source.config_file.empty(),
               "{}: a weight file that does not say what network it is of: give the recipe by --config-file",
               path.string());
  auto model = std::make_unique<TrainedModel>();
  model->path = path;
  model->config = carries_recipe ? parse_config(recipe->second, path.string(), source.overrides)
                                 : load_config(source.config_file, source.overrides);
  require_supported(model->config);
  const auto classes = file.metadata().find("convoy.classes");
  try {
    model->classes = carries_recipe && classes != file.metadata().end()
                         ? class_table_of(nlohmann::json::parse(classes->second))
                         : classes_of(model->config);
  } catch (const nlohmann::json::exception& error) {
    fail("{}: its table of classes is malformed: {}", path.string(), error.what());
  }
  const auto class_number = static_cast<int64_t>(model->classes.names.size());
  const auto differences = metadata_differences(file.metadata(), model->config, class_number);
  CONVOY_CHECK(differences.empty(), "{}: {}", path.string(), fmt::join(differences, "; "));
  model->network = make_network(network_options(model->config, class_number), model->store);
  const std::string table = load_weights(file, model->store, {.whole = true});
  if (report) fmt::print(stderr, "weights of {}\n", table);
  return model;
}

}  // namespace

std::unique_ptr<TrainedModel> load_model(const ModelSource& source, bool report) {
  fs::path path = source.run_directory.empty() ? source.checkpoint : source.run_directory;
  CONVOY_CHECK(source.run_directory.empty() || source.checkpoint.empty(),
               "the weights are named twice: by --run-dir and by --checkpoint");
  if (path.empty()) path = load_config(source.config_file, source.overrides).test.test_model_path;
  CONVOY_CHECK(!path.empty(),
               "the weights are missing: --run-dir DIR, --checkpoint DIR or FILE, or --config-file with "
               "TEST.TEST_MODEL_PATH");
  std::error_code ignored;
  if (!fs::is_directory(path, ignored)) {
    CONVOY_CHECK(fs::exists(path, ignored), "{}: there is no such file or directory", path.string());
    return load_weight_file(path, source, report);
  }
  CONVOY_CHECK(source.config_file.empty(),
               "{}: a checkpoint brings its configuration along; leave --config-file out, and override single keys by "
               "KEY VALUE",
               path.string());
  return load_model(path, source.overrides);
}

}  // namespace convoy
