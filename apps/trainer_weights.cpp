// How a Trainer starts from weights that others have trained: pretrained backbones, whole networks to go on from, and
// checkpoints of the reference.
#include <charconv>
#include <map>
#include <set>

#include "apps/load_weights.h"
#include "apps/model_state.h"
#include "apps/recipe.h"
#include "apps/trainer.h"
#include "io/tensor_values.h"
#include "nets/backbones/backbone.h"

namespace convoy {
namespace fs = std::filesystem;
namespace {

/// "optimizer/state/12/momentum_buffer" between the two fixed parts: 12.
std::optional<size_t> number_between_parts(const std::string& name, std::string_view before, std::string_view behind) {
  if (!name.starts_with(before) || !name.ends_with(behind) || name.size() <= before.size() + behind.size())
    return std::nullopt;
  size_t number = 0;
  const char* end = name.data() + name.size() - behind.size();
  const auto [stop, error] = std::from_chars(name.data() + before.size(), end, number);
  if (error != std::errc() || stop != end) return std::nullopt;
  return number;
}

const nlohmann::json* find_leaf(const WeightsFile& file, const std::string& name) {
  for (const WeightLeaf& leaf : file.others())
    if (leaf.name == name) return &leaf.value;
  return nullptr;
}

/// How many parameters each group of the file's optimizer has.
std::vector<size_t> group_sizes(const WeightsFile& file) {
  std::vector<size_t> sizes;
  constexpr std::string_view kGroups = "optimizer/param_groups/";
  for (const WeightLeaf& leaf : file.others()) {
    const size_t params = leaf.name.find("/params/");
    if (params == std::string::npos) continue;
    const auto group = number_between_parts(leaf.name.substr(0, params), kGroups, "");
    if (!group || *group > file.others().size()) continue;
    if (*group >= sizes.size()) sizes.resize(*group + 1, 0);
    ++sizes[*group];
  }
  return sizes;
}

/// The parameters in the order in which the reference hands them to its optimizer, group by group: all of them; or the
/// encoder's, then those of each part of the decoder.
std::vector<std::vector<size_t>> reference_groups(const ParamStore& store, const Network& network, size_t groups) {
  std::vector<std::string> prefixes = {""};
  if (groups > 1) {
    prefixes = network.decoder_prefixes();
    prefixes.insert(prefixes.begin(), "encoder.");
  }
  std::vector<std::vector<size_t>> order(prefixes.size());
  for (size_t g = 0; g < prefixes.size(); ++g)
    for (size_t i = 0; i < store.parameters().size(); ++i)
      if (store.parameters()[i].name.starts_with(prefixes[g])) order[g].push_back(i);
  return order;
}

/// PyTorch's name of an optimizer state.
std::string reference_state_name(const OptimizerState& state) {
  return state.name == "momentum" ? "momentum_buffer" : state.name;
}

/// Copies the optimizer states of a reference checkpoint. Throws Error where it cannot be known whose they are. Returns
/// the trained parameters of which the file has none; theirs stay zero.
std::vector<std::string> restore_states(const WeightsFile& file, ParamStore& store, const Network& network) {
  const std::string path = file.path().string();
  const std::vector<size_t> sizes = group_sizes(file);
  const auto order = reference_groups(store, network, sizes.size());
  std::vector<size_t> wanted_sizes, parameters;
  for (const auto& group : order) {
    wanted_sizes.push_back(group.size());
    parameters.insert(parameters.end(), group.begin(), group.end());
  }
  CONVOY_CHECK(!sizes.empty() && sizes == wanted_sizes,
               "{}: its optimizer has groups of {} parameters, this network's would have {}: its states cannot be "
               "assigned. Start from its weights by TRAIN.PRETRAINED_MODEL_PATH instead of --resume",
               path, sizes.empty() ? "no" : fmt::format("{}", fmt::join(sizes, ", ")), fmt::join(wanted_sizes, ", "));
  std::map<std::string, std::set<size_t>> restored;
  for (size_t t = 0; t < file.tensors().size() * store.optimizer_states().size(); ++t) {
    const size_t i = t / store.optimizer_states().size(), k = t % store.optimizer_states().size();
    const WeightInfo& info = file.tensors()[i];
    const std::string state = reference_state_name(store.optimizer_states()[k]);
    const auto number = number_between_parts(info.name, "optimizer/state/", "/" + state);
    if (!number) continue;
    CONVOY_CHECK(*number < parameters.size(), "{}: {} of parameter {}, the network has {}", path, state, *number,
                 parameters.size());
    const Parameter& parameter = store.parameters()[parameters[*number]];
    CONVOY_CHECK(info.shape == parameter.shape.to_vector(),
                 "{}: the {} of parameter {} has shape ({}), {} has ({}): the order of parameters is another one. "
                 "Start from its weights by TRAIN.PRETRAINED_MODEL_PATH instead of --resume",
                 path, state, *number, fmt::join(info.shape, ", "), parameter.name,
                 fmt::join(parameter.shape.to_vector(), ", "));
    const NamedTensor tensor = file.tensor(i);
    require_usable_values(tensor, path);
    const std::vector<float> values = to_floats(tensor);
    std::copy(values.begin(), values.end(), store.optimizer_state(k, static_cast<int64_t>(parameters[*number])));
    restored[state].insert(parameters[*number]);
  }
  std::vector<std::string> missing;
  for (const OptimizerState& kept : store.optimizer_states()) {
    const std::string state = reference_state_name(kept);
    CONVOY_CHECK(
        !restored[state].empty(),
        "{}: its optimizer holds no {}: SOLVER.OPTIMIZER is another one, or it has not taken a step. Start from "
        "its weights by TRAIN.PRETRAINED_MODEL_PATH instead of --resume",
        path, kept.name);
    for (size_t p : parameters)
      if (store.parameters()[p].has_gradient && !restored[state].contains(p))
        missing.push_back(kept.name + " of " + store.parameters()[p].name);
  }
  return missing;
}

/// Of a classification network: all but its classifier, which no segmentation network uses.
LoadOptions backbone_options() {
  return {.within = "encoder.", .spare = "encoder.fc.", .least_share = 0.9};
}

/// Names the backbone that the file is of: among those of which it has enough, the one that leaves the fewest tensors
/// without a partner.
std::string fitting_backbone(const WeightsFile& file, double width) {
  std::string best;
  size_t fewest = 0;
  const LoadOptions options = backbone_options();
  for (const std::string& name : backbone_names()) {
    ParamStore store;
    const bool has_widths = name != "xception65";
    make_backbone(name, {.width = has_widths ? width : 1}, Scope{.store = store, .path = "encoder"});
    const std::vector<WantedTensor> wanted = wanted_tensors(store, options);
    const WeightMatch match = match_weights(file, wanted);
    const MatchCount count = count_matched(match, wanted);
    if (static_cast<double>(count.found) < options.least_share * static_cast<double>(count.all)) continue;
    const size_t left = count.all - count.found + match.unexpected.size();
    if (!best.empty() && left >= fewest) continue;
    best = name;
    fewest = left;
  }
  return best.empty() ? "No backbone fits the file" : fmt::format("The file fits MODEL.BACKBONE {}", best);
}

}  // namespace

// Every rank reads the file; check_same_state compares them afterwards.
void Trainer::load_initial_weights() {
  const TrainConfig& train = config_.train;
  communicator_->set_activity("reading pretrained weights");
  const auto load = [&](const std::string& path, const LoadOptions& options) {
    const WeightsFile file(path);
    const std::string table = load_weights(file, store_, options);
    if (!is_main()) return;
    log().info("weights of {}", table);
    for (const std::string& difference : metadata_differences(file.metadata(), config_, train_data_.num_classes()))
      log().warning("{}: {}", path, difference);
  };
  if (!train.pretrained_model_path.empty()) {
    load(train.pretrained_model_path, {});
    if (is_main() && !train.backbone_pretrained_path.empty())
      log().warning("TRAIN.BACKBONE_PRETRAINED_PATH is not read: TRAIN.PRETRAINED_MODEL_PATH holds the whole network");
    return;
  }
  if (config_.model.backbone.empty()) {
    CONVOY_CHECK(train.backbone_pretrained_path.empty(),
                 "TRAIN.BACKBONE_PRETRAINED_PATH is set, and {} has no backbone; whole networks are named by "
                 "TRAIN.PRETRAINED_MODEL_PATH",
                 config_.model.model_name);
    return;
  }
  if (train.backbone_pretrained && !train.backbone_pretrained_path.empty()) {
    LoadOptions options = backbone_options();
    options.advice = [&](const WeightMatch&) {
      return fitting_backbone(WeightsFile(train.backbone_pretrained_path), config_.model.backbone_scale);
    };
    load(train.backbone_pretrained_path, options);
  } else if (is_main() && train.backbone_pretrained) {
    log().warning(
        "{} starts from random weights: nothing is downloaded; name a file of pretrained weights by "
        "TRAIN.BACKBONE_PRETRAINED_PATH",
        config_.model.backbone);
  } else if (is_main() && !train.backbone_pretrained_path.empty()) {
    log().warning("TRAIN.BACKBONE_PRETRAINED_PATH is not read: TRAIN.BACKBONE_PRETRAINED is False");
  }
}

// {epoch}.pth of the reference: weights, running statistics, optimizer states and the number of epochs that are done.
void Trainer::resume_from_file(const fs::path& path) {
  const WeightsFile file(path);
  const nlohmann::json* epoch = find_leaf(file, "epoch");
  CONVOY_CHECK(epoch && epoch->is_number_integer() && epoch->get<int64_t>() >= 0,
               "{}: --resume goes on from a directory step-N, a run, or an {{epoch}}.pth with epoch, state_dict and "
               "optimizer; this file has weights alone: start from them by TRAIN.PRETRAINED_MODEL_PATH",
               path.string());
  const auto advice = [](const WeightMatch& match) -> std::string {
    if (match.other_shape.empty()) return "";
    return "--resume goes on with the same network and classes; to start from the tensors that fit, name the file by "
           "TRAIN.PRETRAINED_MODEL_PATH instead";
  };
  const std::string table = load_weights(file, store_, {.least_share = 1, .whole = true, .advice = advice});
  const std::vector<std::string> absent = restore_states(file, store_, *network_);
  const int64_t epochs = epoch->get<int64_t>();
  CONVOY_CHECK(epochs <= total_steps_ / steps_per_epoch_,
               "{}: {} epochs are done, the run has only {} steps ({} per epoch); raise TRAIN.EPOCHS", path.string(),
               epochs, total_steps_, steps_per_epoch_);
  step_ = epochs * steps_per_epoch_;
  samples_seen_ = step_ * shard_.global;
  optimizer_->resume(step_);
  loader_->seek(step_);
  if (!is_main()) return;
  log().info("weights of {}", table);
  if (!absent.empty())
    log().warning("{}: its optimizer lacks {} states of the {} parameters, the first is {}: they start at zero",
                  path.string(), absent.size(), store_.parameters().size(), absent.front());
  const nlohmann::json* iteration = find_leaf(file, "lr_scheduler/last_epoch");
  if (iteration && *iteration != step_)
    log().warning("{}: its schedule stands at step {}, this run's at {} ({} epochs of {} steps)", path.string(),
                  iteration->dump(), step_, epochs, steps_per_epoch_);
}

}  // namespace convoy
