#include "apps/recipe.h"

#include <algorithm>

#include "engine/param_store.h"
#include "io/config_schema.h"
#include "io/dataset.h"

namespace convoy {

void require_supported(const Config& config) {
  std::vector<std::string> missing;
  const auto need = [&](bool available, const std::string& setting) {
    if (!available) missing.push_back(setting);
  };
  const std::string& bn = config.model.bn_type;
  need(bn == "BN" || bn == "SyncBN" || bn == "nnSyncBN", "MODEL.BN_TYPE " + bn);
  CONVOY_CHECK(missing.empty(), "not available yet: {}; remove it from the configuration", fmt::join(missing, ", "));
}

int64_t class_count(const Config& config) {
  if (config.dataset.num_classes > 0) return config.dataset.num_classes;
  static const std::vector<std::pair<std::string, int64_t>> known = {
      {"cityscape", 19}, {"pascal_voc", 21}, {"pascal_aug", 21}, {"coco", 21},
      {"ade20k", 150},   {"sbu", 2},         {"camvid", 11},     {"lip", 20}};
  for (const auto& [name, classes] : known)
    if (name == config.dataset.name) return classes;
  fail("the number of classes is not known: set DATASET.NAME (found '{}') or DATASET.NUM_CLASSES", config.dataset.name);
}

NetworkOptions network_options(const Config& config, int64_t classes) {
  CONVOY_CHECK(!config.model.model_name.empty(), "MODEL.MODEL_NAME is not set; networks: {}",
               fmt::join(network_names(), ", "));
  NetworkOptions options;
  options.name = config.model.model_name;
  options.backbone = config.model.backbone;
  options.classes = classes;
  options.aux = config.solver.aux;
  options.output_stride = config.model.output_stride;
  options.backbone_scale = config.model.backbone_scale;
  options.bn_eps_encoder = config.model.bn_eps_for_encoder.value_or(options.bn_eps_encoder);
  options.bn_eps_decoder = config.model.bn_eps_for_decoder.value_or(options.bn_eps_decoder);
  options.bn_momentum = config.model.bn_momentum.value_or(options.bn_momentum);
  if (options.name == "DANet" && config.model.danet.multi_grid) {
    const auto& dilations = config.model.danet.multi_dilation;
    CONVOY_CHECK(dilations && !dilations->empty(), "MODEL.DANET.MULTI_GRID needs MODEL.DANET.MULTI_DILATION");
    options.multi_grid = *dilations;
  }
  options.use_aspp = config.model.deeplabv3_plus.use_aspp;
  options.enable_decoder = config.model.deeplabv3_plus.enable_decoder;
  return options;
}

LossOptions loss_options(const Config& config) {
  const SolverConfig& solver = config.solver;
  CONVOY_CHECK(!solver.ohem || solver.ohem_thresh > 0 || solver.ohem_min_kept > 0,
               "SOLVER.OHEM keeps no pixel with SOLVER.OHEM_THRESH 0 and SOLVER.OHEM_MIN_KEPT 0: nothing would be "
               "learned; set one of them above 0 (the defaults are {} and {})",
               SolverConfig{}.ohem_thresh, SolverConfig{}.ohem_min_kept);
  LossOptions options{.aux = solver.aux,
                      .aux_weight = solver.aux_weight,
                      .ignore = kIgnoreLabel,
                      .class_weights = {solver.class_weights.values.begin(), solver.class_weights.values.end()},
                      .ohem_thresh = solver.ohem_thresh,
                      .ohem_min_kept = solver.ohem_min_kept,
                      .focal = {.alpha = solver.focal_alpha, .gamma = solver.focal_gamma},
                      .presence_weight = config.model.encnet.se_weight,
                      .legacy = solver.legacy_loss};
  options.kind = solver.ohem                    ? LossKind::kOhem
                 : solver.loss_name == "lovasz" ? LossKind::kLovasz
                 : solver.loss_name == "focal"  ? LossKind::kFocal
                 : solver.loss_name == "dice"   ? LossKind::kDice
                                                : LossKind::kCrossEntropy;
  const bool always_weighted = solver.legacy_loss && solver.ohem && solver.class_weights.none();
  if (solver.class_weights.cityscapes || always_weighted) options.class_weights = cityscapes_class_weights();
  CONVOY_CHECK(options.class_weights.empty() || (options.kind != LossKind::kLovasz && options.kind != LossKind::kDice),
               "SOLVER.CLASS_WEIGHTS weight pixels; SOLVER.LOSS_NAME {} has none", solver.loss_name);
  return options;
}

void require_fitting(const Network& network, const std::string& name, SizeHW size) {
  if (network.accepts_extent(size.height) && network.accepts_extent(size.width)) return;
  const SizeHW above = fitting_size(network, size);
  const SizeHW below{fitting_extent_below(network, size.height), fitting_extent_below(network, size.width)};
  std::string others;
  if (below.height > 0 && below.width > 0)
    others = fmt::format(", the nearest smaller one ({}, {})", below.height, below.width);
  if (const int64_t multiple = fitting_multiple(network); multiple > 0) {
    others += fmt::format("; multiples of {} always fit", multiple);
    const int64_t height = size.height / multiple * multiple, width = size.width / multiple * multiple;
    if (height > 0 && width > 0) others += fmt::format(", as ({}, {}) does", height, width);
  }
  fail(
      "the size ({}, {}) does not fit {}, which takes only sizes whose reduced maps meet again; the next size that "
      "does "
      "is ({}, {}){} (TRAIN.CROP_SIZE or --size). eval and predict pad images of any size by themselves",
      size.height, size.width, name, above.height, above.width, others);
}

SizeHW fitting_size(const Network& network, SizeHW size) {
  return {fitting_extent(network, size.height), fitting_extent(network, size.width)};
}

int64_t global_batch(const Config& config, int64_t ranks) {
  return config.train.global_batch > 0 ? config.train.global_batch : config.train.batch_size * ranks;
}

int64_t total_steps(const Config& config, int64_t steps_per_epoch) {
  return config.train.max_iters > 0 ? config.train.max_iters : config.train.epochs * steps_per_epoch;
}

LrSchedule lr_schedule(const Config& config, int64_t steps_per_epoch) {
  const SolverConfig& solver = config.solver;
  const auto steps = [&](double epochs) { return static_cast<int64_t>(epochs * static_cast<double>(steps_per_epoch)); };
  LrSchedule schedule;
  schedule.kind = solver.lr_scheduler == "cosine" ? LrSchedule::Kind::kCosine
                  : solver.lr_scheduler == "step" ? LrSchedule::Kind::kStep
                                                  : LrSchedule::Kind::kPoly;
  schedule.base = solver.lr;
  schedule.total_steps = total_steps(config, steps_per_epoch);
  schedule.warmup_steps = steps(solver.warmup.epochs);
  schedule.warmup_factor = solver.warmup.factor;
  schedule.linear_warmup = solver.warmup.method == "linear";
  schedule.power = solver.poly.power;
  schedule.gamma = solver.step.gamma;
  for (const int64_t epoch : solver.step.decay_epoch) schedule.milestones.push_back(epoch * steps_per_epoch);
  return schedule;
}

Optimizer::Options optimizer_options(const Config& config) {
  const SolverConfig& solver = config.solver;
  return {.kind = update_kind(solver.optimizer),
          .momentum = solver.momentum,
          .eps = solver.epsilon,
          .max_norm = solver.max_grad_norm};
}

std::vector<OptimizerGroup> parameter_groups(const Config& config, const Network& network, ParamStore& store) {
  const double decay = config.solver.weight_decay;
  const std::vector<std::string> prefixes = network.decoder_prefixes();
  if (prefixes.empty()) return {{.name = "all", .weight_decay = decay}};
  for (Parameter& p : store.parameters())
    p.group = std::any_of(prefixes.begin(), prefixes.end(),
                          [&](const std::string& prefix) { return p.name.starts_with(prefix); })
                  ? 1
                  : 0;
  return {{.name = "encoder", .weight_decay = decay},
          {.name = "decoder", .lr_factor = config.solver.decoder_lr_factor, .weight_decay = decay}};
}

std::vector<std::string> config_changes(const Config& before, const Config& after) {
  std::vector<std::string> changes;
  for (const ConfigField& field : config_schema()) {
    const std::string was = field.dump(before), is = field.dump(after);
    if (was != is) changes.push_back(fmt::format("{}: {} -> {}", field.key, was, is));
  }
  return changes;
}

}  // namespace convoy
