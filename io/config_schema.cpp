#include "io/config_schema.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace convoy {
namespace {

// Above these a value is a slip of the pen, and products of them would leave 64 bits.
constexpr int64_t kMaxSide = 32768;  ///< of a crop, in pixels
constexpr int64_t kMaxBatch = 1'000'000;
constexpr int64_t kMaxEpochs = 1'000'000'000;
constexpr int64_t kMaxSteps = 1'000'000'000'000;
constexpr int64_t kMaxThreads = 4096;
constexpr double kMaxWeight = 1e6;  ///< of a class in the loss

// --- one read/write pair per field type ---

bool read(const ConfigValue& value, bool& out) {
  if (!value.get_if<bool>()) return false;
  out = *value.get_if<bool>();
  return true;
}
bool read(const ConfigValue& value, int64_t& out) {
  if (!value.get_if<int64_t>()) return false;
  out = *value.get_if<int64_t>();
  return true;
}
bool read(const ConfigValue& value, double& out) {
  if (const int64_t* integer = value.get_if<int64_t>()) {
    out = static_cast<double>(*integer);
  } else if (const double* real = value.get_if<double>()) {
    out = *real;
  } else {
    return false;
  }
  return std::isfinite(out);
}
bool read(const ConfigValue& value, std::string& out) {
  if (value.get_if<ConfigValue::List>() || value.get_if<bool>()) return false;
  if (value.is_none()) {
    out.clear();
  } else if (const std::string* text = value.get_if<std::string>()) {
    out = *text;
  } else {
    out = value.source;  // a folder named 2024 is text
  }
  return true;
}
bool read(const ConfigValue& value, SizeHW& out) {
  if (const int64_t* side = value.get_if<int64_t>()) {
    out = {*side, *side};
  } else if (const auto* list = value.get_if<ConfigValue::List>();
             !list || list->size() != 2 || !read((*list)[0], out.height) || !read((*list)[1], out.width)) {
    return false;
  }
  return out.height > 0 && out.width > 0 && out.height <= kMaxSide && out.width <= kMaxSide;
}
template <class T>
bool read(const ConfigValue& value, std::vector<T>& out) {
  const auto* list = value.get_if<ConfigValue::List>();
  if (!list) return false;
  out.clear();
  for (const ConfigValue& item : *list) {
    T element{};
    if (!read(item, element)) return false;
    out.push_back(element);
  }
  return true;
}
template <class T>
bool read(const ConfigValue& value, std::optional<T>& out) {
  const auto* list = value.get_if<ConfigValue::List>();
  if (value.is_none() || (list && list->empty())) {
    out.reset();
    return true;
  }
  T element{};
  if (!read(value, element)) return false;
  out = element;
  return true;
}
bool read(const ConfigValue& value, ColorJitter& out) {
  out = {};
  if (value.is_none()) return true;
  double scalar = 0;
  if (read(value, scalar)) {
    out = {scalar, scalar, scalar, 0};
  } else {
    std::vector<double> parts;
    if (!read(value, parts) || parts.size() < 3 || parts.size() > 4) return false;
    out = {parts[0], parts[1], parts[2], parts.size() == 4 ? parts[3] : 0};
  }
  return out.brightness >= 0 && out.contrast >= 0 && out.saturation >= 0 && out.hue >= 0 && out.hue <= .5;
}

bool read(const ConfigValue& value, ClassWeights& out) {
  out = {};
  if (value.is_none()) return true;
  if (const std::string* name = value.get_if<std::string>()) {
    out.cityscapes = *name == "cityscapes";
    return out.cityscapes || *name == "none" || name->empty();
  }
  if (!read(value, out.values)) return false;
  const auto sane = [](double w) { return w >= 0 && w <= kMaxWeight; };
  return std::all_of(out.values.begin(), out.values.end(), sane) &&
         (out.values.empty() || std::any_of(out.values.begin(), out.values.end(), [](double w) { return w > 0; }));
}

std::string write(bool value) {
  return value ? "True" : "False";
}
std::string write(int64_t value) {
  return fmt::format("{}", value);
}
std::string write(double value) {
  return fmt::format("{}", value);
}
std::string write(const std::string& value) {
  std::string quoted = "'";
  for (const char c : value) quoted += c == '\'' ? std::string("''") : std::string(1, c);
  return quoted + "'";
}
std::string write(const SizeHW& value) {
  return fmt::format("[{}, {}]", value.height, value.width);
}
template <class T>
std::string write(const std::vector<T>& value) {
  std::string text = "[";
  for (size_t i = 0; i < value.size(); ++i) text += (i ? ", " : "") + write(value[i]);
  return text + "]";
}
template <class T>
std::string write(const std::optional<T>& value) {
  return value ? write(*value) : "None";
}
std::string write(const ColorJitter& value) {
  if (!value.enabled()) return "None";
  return write(std::vector<double>{value.brightness, value.contrast, value.saturation, value.hue});
}

std::string write(const ClassWeights& value) {
  if (value.cityscapes) return "cityscapes";
  return value.none() ? "None" : write(value.values);
}

std::string kind(const bool&) {
  return "True or False";
}
std::string kind(const int64_t&) {
  return "an integer";
}
std::string kind(const double&) {
  return "a number";
}
std::string kind(const std::string&) {
  return "text";
}
std::string kind(const SizeHW&) {
  return fmt::format("an integer from 1 to {} or (height, width)", kMaxSide);
}
std::string kind(const std::vector<double>&) {
  return "a list of numbers";
}
std::string kind(const std::vector<int64_t>&) {
  return "a list of integers";
}
std::string kind(const std::vector<std::string>&) {
  return "a list of texts";
}
std::string kind(const ClassWeights&) {
  return "none, cityscapes or a list of numbers from 0 to 1e6, one per class and not all 0";
}
std::string kind(const ColorJitter&) {
  return "None, a number >= 0, or (brightness, contrast, saturation[, hue <= 0.5])";
}
template <class T>
std::string kind(const std::optional<T>&) {
  return "None or " + kind(T{});
}

// --- the table ---

/// Collects fields; the calls after add() refine the field just added.
class SchemaBuilder {
 public:
  std::vector<ConfigField> fields;

  /// `access` maps Config& to the field.
  template <class Access>
  SchemaBuilder& add(const std::string& key, Access access) {
    Config sample;
    fields.push_back({key,
                      kind(access(sample)),
                      [access](Config& config, const ConfigValue& value) { return read(value, access(config)); },
                      [access](const Config& config) { return write(access(const_cast<Config&>(config))); },
                      {},
                      {}});
    return *this;
  }

  /// Restricts the field just added to values for which `valid(field)` holds.
  template <class Access, class Valid>
  SchemaBuilder& add(const std::string& key, Access access, const std::string& expected, Valid valid) {
    add(key, access);
    ConfigField& field = fields.back();
    field.expected = expected;
    field.set = [access, valid](Config& config, const ConfigValue& value) {
      return read(value, access(config)) && valid(access(config));
    };
    return *this;
  }

  template <class Access>
  SchemaBuilder& choice(const std::string& key, Access access, const std::vector<std::string>& choices) {
    std::string expected = "one of";
    for (const std::string& name : choices) expected += name.empty() ? " ''" : " " + name;
    add(key, access, expected, [choices](const std::string& value) {
      return std::find(choices.begin(), choices.end(), value) != choices.end();
    });
    fields.back().choices = choices;
    return *this;
  }

  void no_effect(const std::string& note) { fields.back().note = note; }
};

#define FIELD(path)         \
  [](Config & c) -> auto& { \
    return c.path;          \
  }

const auto kPositive = [](auto value) { return value > 0; };
const auto kNotNegative = [](auto value) { return value >= 0; };
const auto kNoneOrPositive = [](const std::optional<double>& value) { return !value || *value > 0; };
/// For whole numbers and fractions alike: low <= value <= high.
auto between(int64_t low, int64_t high) {
  return [low, high](auto value) {
    return value >= static_cast<decltype(value)>(low) && value <= static_cast<decltype(value)>(high);
  };
}
std::string between_text(const std::string& kind, int64_t low, int64_t high) {
  return fmt::format("{} from {} to {}", kind, low, high);
}
/// For MODEL.BN_GROUP: whose images share their statistics.
bool is_group_size(const std::string& value) {
  if (value.empty() || value == "all" || value == "rank") return true;
  const bool digits =
      value.size() <= 7 && std::all_of(value.begin(), value.end(), [](char c) { return c >= '0' && c <= '9'; });
  return digits && between(1, kMaxBatch)(std::stoll(value));
}
const auto kShare = [](double value) { return value >= 0 && value <= 1; };

void add_dataset(SchemaBuilder& s) {
  const auto three = [](const std::vector<double>& v) { return v.size() == 3; };
  const auto three_positive = [](const std::vector<double>& v) {
    return v.size() == 3 && v[0] > 0 && v[1] > 0 && v[2] > 0;
  };
  s.add("DATASET.NAME", FIELD(dataset.name));
  s.add("DATASET.ROOT", FIELD(dataset.root));
  s.add("DATASET.MEAN", FIELD(dataset.mean), "a list of three numbers", three);
  s.add("DATASET.STD", FIELD(dataset.std_dev), "a list of three numbers > 0", three_positive);
  s.add("DATASET.IGNORE_INDEX", FIELD(dataset.ignore_index), "-1 (other ignore values in files: DATASET.IGNORE_LABEL)",
        [](int64_t v) { return v == -1; });
  s.add("DATASET.WORKERS", FIELD(dataset.workers), "an integer from 0 to 1024",
        [](int64_t v) { return v >= 0 && v <= 1024; });
  s.choice("DATASET.MODE", FIELD(dataset.mode), {"testval", "val"});
  s.add("DATASET.NUM_CLASSES", FIELD(dataset.num_classes), "an integer from 0 to 65535",
        [](int64_t v) { return v >= 0 && v <= 65535; });
  s.add("DATASET.IGNORE_LABEL", FIELD(dataset.ignore_label), "None or an integer from 0 to 65535",
        [](const std::optional<int64_t>& v) { return !v || (*v >= 0 && *v <= 65535); });
  s.add("DATASET.IMAGE_DIR", FIELD(dataset.image_dir));
  s.add("DATASET.MASK_DIR", FIELD(dataset.mask_dir));
  s.add("DATASET.MASK_COLORS", FIELD(dataset.mask_colors));
  const auto named = [](const std::string& name) { return !name.empty(); };
  s.add("DATASET.TRAIN_SPLIT", FIELD(dataset.train_split), "the name of a split", named);
  s.add("DATASET.VAL_SPLIT", FIELD(dataset.val_split), "the name of a split", named);
}

void add_augment(SchemaBuilder& s) {
  s.add("AUG.MIRROR", FIELD(aug.mirror));
  s.add("AUG.BLUR_PROB", FIELD(aug.blur_prob), "a number from 0 to 1", kShare);
  s.add("AUG.BLUR_RADIUS", FIELD(aug.blur_radius), "a number from 0 to 100",
        [](double v) { return v >= 0 && v <= 100; });
  s.add("AUG.COLOR_JITTER", FIELD(aug.color_jitter));
}

void add_train(SchemaBuilder& s) {
  s.add("TRAIN.EPOCHS", FIELD(train.epochs), between_text("an integer", 1, kMaxEpochs), between(1, kMaxEpochs));
  s.add("TRAIN.MAX_ITERS", FIELD(train.max_iters), between_text("an integer", 0, kMaxSteps) + " (0: EPOCHS decides)",
        between(0, kMaxSteps));
  s.add("TRAIN.BATCH_SIZE", FIELD(train.batch_size), between_text("an integer", 1, kMaxBatch), between(1, kMaxBatch));
  s.add("TRAIN.GLOBAL_BATCH", FIELD(train.global_batch),
        between_text("an integer", 0, kMaxBatch) + " (0: BATCH_SIZE x ranks)", between(0, kMaxBatch));
  s.add("TRAIN.MICRO_BATCH", FIELD(train.micro_batch),
        between_text("an integer", 0, kMaxBatch) + " (0: a rank's images run at once)", between(0, kMaxBatch));
  s.add("TRAIN.CROP_SIZE", FIELD(train.crop_size));
  s.add("TRAIN.BASE_SIZE", FIELD(train.base_size), between_text("an integer", 2, kMaxSide), between(2, kMaxSide));
  s.add("TRAIN.MODEL_SAVE_DIR", FIELD(train.model_save_dir));
  s.add("TRAIN.LOG_SAVE_DIR", FIELD(train.log_save_dir));
  s.add("TRAIN.PRETRAINED_MODEL_PATH", FIELD(train.pretrained_model_path));
  s.add("TRAIN.BACKBONE_PRETRAINED", FIELD(train.backbone_pretrained));
  s.add("TRAIN.BACKBONE_PRETRAINED_PATH", FIELD(train.backbone_pretrained_path));
  s.add("TRAIN.RESUME_MODEL_PATH", FIELD(train.resume_model_path)).no_effect("resume with --resume");
  s.add("TRAIN.SYNC_BATCH_NORM", FIELD(train.sync_batch_norm));
  s.add("TRAIN.SNAPSHOT_EPOCH", FIELD(train.snapshot_epoch)).no_effect("set TRAIN.CHECKPOINT_ITERS");
  s.add("TRAIN.CHECKPOINT_ITERS", FIELD(train.checkpoint_iters), "an integer >= 0 (0: once per epoch)", kNotNegative);
  s.add("TRAIN.THREADS", FIELD(train.threads),
        between_text("an integer", 0, kMaxThreads) + " (0: the cores given to the rank)", between(0, kMaxThreads));
  s.add("TRAIN.DROP_LAST", FIELD(train.drop_last));
  s.choice("TRAIN.ON_BAD_SAMPLE", FIELD(train.on_bad_sample), {"skip", "fail"});
}

void add_solver(SchemaBuilder& s) {
  s.add("SOLVER.LR", FIELD(solver.lr), "a number >= 0", kNotNegative);
  s.choice("SOLVER.OPTIMIZER", FIELD(solver.optimizer), {"sgd", "adam", "adamw", "adadelta", "rmsprop"});
  s.add("SOLVER.EPSILON", FIELD(solver.epsilon), "a number > 0", kPositive);
  s.add("SOLVER.MOMENTUM", FIELD(solver.momentum), "a number from 0 to 1", kShare);
  s.add("SOLVER.WEIGHT_DECAY", FIELD(solver.weight_decay), "a number >= 0", kNotNegative);
  s.add("SOLVER.MAX_GRAD_NORM", FIELD(solver.max_grad_norm), "a number >= 0", kNotNegative);
  s.add("SOLVER.DECODER_LR_FACTOR", FIELD(solver.decoder_lr_factor), "a number >= 0", kNotNegative);
  s.choice("SOLVER.LR_SCHEDULER", FIELD(solver.lr_scheduler), {"poly", "step", "cosine"});
  s.add("SOLVER.POLY.POWER", FIELD(solver.poly.power), "a number >= 0", kNotNegative);
  s.add("SOLVER.STEP.GAMMA", FIELD(solver.step.gamma), "a number >= 0", kNotNegative);
  s.add("SOLVER.STEP.DECAY_EPOCH", FIELD(solver.step.decay_epoch), between_text("a list of integers", 0, kMaxEpochs),
        [](const std::vector<int64_t>& epochs) {
          return std::all_of(epochs.begin(), epochs.end(), between(0, kMaxEpochs));
        });
  s.add("SOLVER.WARMUP.EPOCHS", FIELD(solver.warmup.epochs), between_text("a number", 0, kMaxEpochs),
        between(0, kMaxEpochs));
  s.add("SOLVER.WARMUP.FACTOR", FIELD(solver.warmup.factor), "a number from 0 to 1", kShare);
  s.choice("SOLVER.WARMUP.METHOD", FIELD(solver.warmup.method), {"linear", "constant"});
  s.add("SOLVER.OHEM", FIELD(solver.ohem));
  s.add("SOLVER.AUX", FIELD(solver.aux));
  s.add("SOLVER.AUX_WEIGHT", FIELD(solver.aux_weight), "a number >= 0", kNotNegative);
  s.choice("SOLVER.LOSS_NAME", FIELD(solver.loss_name), {"", "lovasz", "focal", "dice"});
  s.add("SOLVER.OHEM_THRESH", FIELD(solver.ohem_thresh), "a number from 0 to 1", kShare);
  s.add("SOLVER.OHEM_MIN_KEPT", FIELD(solver.ohem_min_kept), "an integer >= 0", kNotNegative);
  s.add("SOLVER.CLASS_WEIGHTS", FIELD(solver.class_weights));
  s.add("SOLVER.FOCAL_ALPHA", FIELD(solver.focal_alpha), "a number > 0", kPositive);
  s.add("SOLVER.FOCAL_GAMMA", FIELD(solver.focal_gamma), "a number >= 0", kNotNegative);
  s.add("SOLVER.LEGACY_LOSS", FIELD(solver.legacy_loss));
}

void add_test(SchemaBuilder& s) {
  s.add("TEST.TEST_MODEL_PATH", FIELD(test.test_model_path));
  s.add("TEST.BATCH_SIZE", FIELD(test.batch_size), between_text("an integer", 1, kMaxBatch), between(1, kMaxBatch));
  s.add("TEST.CROP_SIZE", FIELD(test.crop_size));
  s.add("TEST.SCALES", FIELD(test.scales), "a list of numbers > 0", [](const std::vector<double>& scales) {
    return !scales.empty() && std::all_of(scales.begin(), scales.end(), kPositive);
  });
  s.add("TEST.FLIP", FIELD(test.flip));
  s.add("TEST.TILE_OVERLAP", FIELD(test.tile_overlap), "a number from 0 to 0.9",
        [](double v) { return v >= 0 && v <= .9; });
  s.add("TEST.LEGACY", FIELD(test.legacy));
  s.add("VISUAL.OUTPUT_DIR", FIELD(visual.output_dir));
}

template <class Access>
void add_hrnet_stage(SchemaBuilder& s, const std::string& stage, Access access) {
  const std::string prefix = "MODEL.HRNET." + stage + ".";
  s.add(
      prefix + "NUM_MODULES", [access](Config & c) -> auto& { return access(c).num_modules; });
  s.add(
      prefix + "NUM_BRANCHES", [access](Config & c) -> auto& { return access(c).num_branches; });
  s.add(
      prefix + "NUM_BLOCKS", [access](Config & c) -> auto& { return access(c).num_blocks; });
  s.add(
      prefix + "NUM_CHANNELS", [access](Config & c) -> auto& { return access(c).num_channels; });
  s.choice(prefix + "BLOCK", [access](Config & c) -> auto& { return access(c).block; }, {"BASIC", "BOTTLENECK"});
  s.choice(prefix + "FUSE_METHOD", [access](Config & c) -> auto& { return access(c).fuse_method; }, {"SUM"});
}

void add_model(SchemaBuilder& s) {
  const std::string fixed = "it has no effect in the reference either";
  s.add("MODEL.MODEL_NAME", FIELD(model.model_name));
  s.add("MODEL.BACKBONE", FIELD(model.backbone));
  s.add("MODEL.BACKBONE_SCALE", FIELD(model.backbone_scale), "a number > 0", kPositive);
  s.choice("MODEL.RESNET_VARIANT", FIELD(model.resnet_variant), {"b", "c"})
      .no_effect("choose MODEL.BACKBONE resnet50c, resnet101c or resnet152c");
  s.add("MODEL.MULTI_LOSS_WEIGHT", FIELD(model.multi_loss_weight)).no_effect("set SOLVER.AUX_WEIGHT");
  s.add("MODEL.DEFAULT_GROUP_NUMBER", FIELD(model.default_group_number)).no_effect(fixed);
  s.add("MODEL.DEFAULT_EPSILON", FIELD(model.default_epsilon))
      .no_effect("set MODEL.BN_EPS_FOR_ENCODER and MODEL.BN_EPS_FOR_DECODER");
  s.choice("MODEL.BN_TYPE", FIELD(model.bn_type), {"BN", "SyncBN", "FrozenBN", "GN", "nnSyncBN"});
  s.add("MODEL.BN_GROUP", FIELD(model.bn_group),
        fmt::format("all, rank, an integer from 1 to {} or '' (TRAIN.SYNC_BATCH_NORM and MODEL.BN_TYPE decide)",
                    kMaxBatch),
        is_group_size);
  s.add("MODEL.BN_EPS_FOR_ENCODER", FIELD(model.bn_eps_for_encoder), "None or a number > 0", kNoneOrPositive);
  s.add("MODEL.BN_EPS_FOR_DECODER", FIELD(model.bn_eps_for_decoder), "None or a number > 0", kNoneOrPositive);
  s.add("MODEL.OUTPUT_STRIDE", FIELD(model.output_stride), "8, 16 or 32",
        [](int64_t v) { return v == 8 || v == 16 || v == 32; });
  s.add("MODEL.BN_MOMENTUM", FIELD(model.bn_momentum), "None or a number from 0 to 1",
        [](const std::optional<double>& v) { return !v || kShare(*v); });
  s.add("MODEL.DANET.MULTI_DILATION", FIELD(model.danet.multi_dilation));
  s.add("MODEL.DANET.MULTI_GRID", FIELD(model.danet.multi_grid));
  s.add("MODEL.DEEPLABV3_PLUS.USE_ASPP", FIELD(model.deeplabv3_plus.use_aspp));
  s.add("MODEL.DEEPLABV3_PLUS.ENABLE_DECODER", FIELD(model.deeplabv3_plus.enable_decoder));
  s.add("MODEL.DEEPLABV3_PLUS.ASPP_WITH_SEP_CONV", FIELD(model.deeplabv3_plus.aspp_with_sep_conv)).no_effect(fixed);
  s.add("MODEL.DEEPLABV3_PLUS.DECODER_USE_SEP_CONV", FIELD(model.deeplabv3_plus.decoder_use_sep_conv)).no_effect(fixed);
  s.choice("MODEL.OCNet.OC_ARCH", FIELD(model.ocnet.oc_arch), {"base", "pyramid", "asp"});
  s.add("MODEL.ENCNET.SE_LOSS", FIELD(model.encnet.se_loss));
  s.add("MODEL.ENCNET.SE_WEIGHT", FIELD(model.encnet.se_weight), "a number >= 0", kNotNegative);
  s.add("MODEL.ENCNET.LATERAL", FIELD(model.encnet.lateral));
  s.add("MODEL.CCNET.RECURRENCE", FIELD(model.ccnet.recurrence), "an integer > 0", kPositive);
  s.add("MODEL.CGNET.STAGE2_BLOCK_NUM", FIELD(model.cgnet.stage2_block_num), "an integer > 0", kPositive);
  s.add("MODEL.CGNET.STAGE3_BLOCK_NUM", FIELD(model.cgnet.stage3_block_num), "an integer > 0", kPositive);
  s.add("MODEL.POINTREND.BASEMODEL", FIELD(model.pointrend.base_model));
  s.add("MODEL.HRNET.PRETRAINED_LAYERS", FIELD(model.hrnet.pretrained_layers));
  s.add("MODEL.HRNET.STEM_INPLANES", FIELD(model.hrnet.stem_inplanes), "an integer > 0", kPositive);
  s.add("MODEL.HRNET.FINAL_CONV_KERNEL", FIELD(model.hrnet.final_conv_kernel), "1 or 3",
        [](int64_t v) { return v == 1 || v == 3; });
  s.add("MODEL.HRNET.WITH_HEAD", FIELD(model.hrnet.with_head));
  add_hrnet_stage(s, "STAGE1", FIELD(model.hrnet.stage1));
  add_hrnet_stage(s, "STAGE2", FIELD(model.hrnet.stage2));
  add_hrnet_stage(s, "STAGE3", FIELD(model.hrnet.stage3));
  add_hrnet_stage(s, "STAGE4", FIELD(model.hrnet.stage4));
}

std::vector<ConfigField> build_schema() {
  SchemaBuilder s;
  s.add("SEED", FIELD(seed));
  s.add("TIME_STAMP", FIELD(time_stamp));
  s.add("ROOT_PATH", FIELD(root_path));
  s.choice("PHASE", FIELD(phase), {"train", "test"});
  add_dataset(s);
  add_augment(s);
  add_train(s);
  add_solver(s);
  add_test(s);
  add_model(s);
  return s.fields;
}

#undef FIELD

}  // namespace

const std::vector<ConfigField>& config_schema() {
  static const std::vector<ConfigField> fields = build_schema();
  return fields;
}

const std::vector<std::pair<std::string, std::string>>& config_key_aliases() {
  static const std::vector<std::pair<std::string, std::string>> aliases = {
      {"MODEL.DEEPLABV3_PLUS.ENCODER_WITH_ASPP", "MODEL.DEEPLABV3_PLUS.USE_ASPP"}};
  return aliases;
}

}  // namespace convoy
