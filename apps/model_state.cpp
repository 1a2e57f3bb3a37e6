#include "apps/model_state.h"

#include <cstring>
#include <map>

#include "apps/recipe.h"

namespace convoy {
namespace fs = std::filesystem;
namespace {

const std::string kVelocityPrefix = "optimizer.momentum.";

/// Looks tensors up and copies them; remembers what does not fit.
class Restorer {
 public:
  explicit Restorer(const CheckpointState& checkpoint) {
    for (const NamedTensor& tensor : checkpoint.tensors) by_name_[tensor.name] = &tensor;
  }
  void copy(const std::string& name, const Shape& shape, ElementType dtype, void* to) {
    const auto found = by_name_.find(name);
    if (found == by_name_.end()) {
      faults_.push_back(name + " is missing");
      return;
    }
    const NamedTensor& tensor = *found->second;
    if (tensor.shape != shape.to_vector() || tensor.dtype != dtype)
      faults_.push_back(fmt::format("{} is {} {}, the network has {} {}", name, element_name(tensor.dtype),
                                    Shape(tensor.shape).str(), element_name(dtype), shape.str()));
    else
      std::memcpy(to, tensor.values(), tensor.bytes());
  }
  const std::vector<std::string>& faults() const { return faults_; }

 private:
  std::map<std::string, const NamedTensor*> by_name_;
  std::vector<std::string> faults_;
};

}  // namespace

std::vector<NamedTensor> state_tensors(ParamStore& store) {
  store.require_velocities();
  std::vector<NamedTensor> tensors;
  for (size_t i = 0; i < store.parameters().size(); ++i) {
    const Parameter& p = store.parameters()[i];
    const auto index = static_cast<int64_t>(i);
    tensors.push_back(
        {.name = p.name, .dtype = ElementType::kF32, .shape = p.shape.to_vector(), .data = store.value(index)});
    tensors.push_back({.name = kVelocityPrefix + p.name,
                       .dtype = ElementType::kF32,
                       .shape = p.shape.to_vector(),
                       .data = store.velocity(index)});
  }
  for (const Buffer& b : store.buffers())
    tensors.push_back({.name = b.name,
                       .dtype = element_type(b.value.dtype()),
                       .shape = b.value.shape().to_vector(),
                       .data = b.value.view().data});
  return tensors;
}

void restore_tensors(const CheckpointState& checkpoint, const std::string& source, ParamStore& store, bool optimizer) {
  Restorer restorer(checkpoint);
  if (optimizer) store.require_velocities();
  for (size_t i = 0; i < store.parameters().size(); ++i) {
    const Parameter& p = store.parameters()[i];
    const auto index = static_cast<int64_t>(i);
    restorer.copy(p.name, p.shape, ElementType::kF32, store.value(index));
    if (optimizer) restorer.copy(kVelocityPrefix + p.name, p.shape, ElementType::kF32, store.velocity(index));
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

}  // namespace convoy
