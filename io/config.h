// Configuration in the reference's YAML schema: the same groups, keys, defaults and Python-literal rules, so that its
// recipes run unchanged, plus Convoy's own keys (marked "own"). A Config is plain data; load_config is the only parser.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace convoy {

/// Height and width in pixels. Written as one integer (a square) or as (height, width).
struct SizeHW {
  int64_t height = 0, width = 0;
};

/// Largest relative change per property, hue as a share of the colour circle; all zero = off. Written as None, as one
/// number (brightness, contrast and saturation) or as three or four numbers.
struct ColorJitter {
  double brightness = 0, contrast = 0, saturation = 0, hue = 0;
  bool enabled() const { return brightness > 0 || contrast > 0 || saturation > 0 || hue > 0; }
};

struct DatasetConfig {
  std::string name;                            ///< resolved: cityscape, folder, ... (resolve_dataset_name)
  std::vector<double> mean = {.5, .5, .5};     ///< per channel, of pixels in [0,1]
  std::vector<double> std_dev = {.5, .5, .5};  ///< key DATASET.STD
  int64_t ignore_index = -1;
  int64_t workers = 4;                  ///< loader threads
  std::string mode = "testval";         ///< validation at native size (testval) or resized and cropped (val)
  std::string root;                     ///< own: folder of the data set
  int64_t num_classes = 0;              ///< own: classes of a `folder` data set
  std::optional<int64_t> ignore_label;  ///< own: value in the mask files that means "ignore"
  std::string image_dir, mask_dir;      ///< own: for `folder`, with {split}; empty = found by itself
  std::string mask_colors;              ///< own: colour masks: "classes" (their own colours) or a file of colours
  std::string train_split = "train";    ///< own: what train reads
  std::string val_split = "val";        ///< own: what validation reads
};

struct AugmentConfig {
  bool mirror = true;
  double blur_prob = 0, blur_radius = 0;
  ColorJitter color_jitter;
};

struct TrainConfig {
  int64_t epochs = 30;
  int64_t batch_size = 1;  ///< per rank, as in the reference; global_batch overrides
  SizeHW crop_size{769, 769};
  int64_t base_size = 1024;
  std::string model_save_dir = "../runs/checkpoints/", log_save_dir = "../runs/logs/";
  std::string pretrained_model_path;
  bool backbone_pretrained = true;
  std::string backbone_pretrained_path, resume_model_path;
  bool sync_batch_norm = true;
  int64_t snapshot_epoch = 10;
  int64_t global_batch = 0;            ///< own: samples per step over all ranks; 0 = batch_size x ranks
  int64_t micro_batch = 0;             ///< own: images of a rank that run at once, gradients summed; 0 = all
  int64_t max_iters = 0;               ///< own: steps of the run; 0 = epochs decide
  int64_t checkpoint_iters = 0;        ///< own: steps between checkpoints; 0 = once per epoch
  int64_t threads = 0;                 ///< own: compute threads per rank; 0 = the cores given to the rank
  bool drop_last = true;               ///< own: false = batches run across the end of an epoch
  std::string on_bad_sample = "fail";  ///< own: an unreadable sample ends the run (fail) or is replaced (skip)
};

/// Weights of the classes in cross entropies: none, those of Cityscapes, or a list.
struct ClassWeights {
  bool cityscapes = false;
  std::vector<double> values;  ///< of a list

  bool none() const { return !cityscapes && values.empty(); }
};

struct SolverConfig {
  struct Poly {
    double power = .9;
  };
  struct Step {
    double gamma = .1;
    std::vector<int64_t> decay_epoch = {10, 20};
  };
  struct Warmup {
    double epochs = 0;
    double factor = 1.0 / 3;
    std::string method = "linear";
  };
  double lr = 1e-4;
  std::string optimizer = "sgd";
  double epsilon = 1e-8, momentum = .9, weight_decay = 1e-4, decoder_lr_factor = 10;
  double max_grad_norm = 0;
  std::string lr_scheduler = "poly";
  Poly poly;
  Step step;
  Warmup warmup;
  bool ohem = false, aux = false;
  double aux_weight = .4;
  std::string loss_name;
  double ohem_thresh = .7;
  int64_t ohem_min_kept = 100000;  ///< pixels of the global batch
  ClassWeights class_weights;
  double focal_alpha = .5, focal_gamma = 2;
  bool legacy_loss = false;  ///< the reference's definitions where they give other numbers (layers/losses.h)
};

struct TestConfig {
  std::string test_model_path;
  int64_t batch_size = 1;
  std::optional<SizeHW> crop_size;  ///< pad-to size; larger images are cut into tiles of it
  std::vector<double> scales = {1.0};
  bool flip = false;
  double tile_overlap = .25;  ///< own: least part of a tile that it shares with its neighbour
  bool legacy = false;        ///< own: the reference's sum of logits and its padding
};

struct VisualConfig {
  std::string output_dir = "../runs/visual/";
};

struct HrnetStage {
  int64_t num_modules = 1, num_branches = 1;
  std::vector<int64_t> num_blocks, num_channels;
  std::string block = "BASIC", fuse_method = "SUM";
};

struct ModelConfig {
  struct Danet {
    std::optional<std::vector<int64_t>> multi_dilation;
    bool multi_grid = false;
  };
  struct DeepLabV3Plus {
    bool use_aspp = true, enable_decoder = true, aspp_with_sep_conv = true, decoder_use_sep_conv = true;
  };
  struct OcNet {
    std::string oc_arch = "base";
  };
  struct EncNet {
    bool se_loss = true;
    double se_weight = .2;
    bool lateral = true;
  };
  struct CcNet {
    int64_t recurrence = 2;
  };
  struct CgNet {
    int64_t stage2_block_num = 3, stage3_block_num = 21;
  };
  struct PointRend {
    std::string base_model = "DeepLabV3_Plus";
  };
  struct Hrnet {
    std::vector<std::string> pretrained_layers = {"*"};
    int64_t stem_inplanes = 64, final_conv_kernel = 1;
    bool with_head = true;
    HrnetStage stage1{1, 1, {1}, {32}, "BOTTLENECK", "SUM"};
    HrnetStage stage2{1, 2, {4, 4}, {32, 64}, "BASIC", "SUM"};
    HrnetStage stage3{1, 3, {4, 4, 4}, {32, 64, 128}, "BASIC", "SUM"};
    HrnetStage stage4{1, 4, {4, 4, 4, 4}, {32, 64, 128, 256}, "BASIC", "SUM"};
  };
  std::string model_name;  ///< resolved spelling (resolve_model_name)
  std::string backbone;
  double backbone_scale = 1;  ///< width
  std::string resnet_variant = "b";
  std::vector<double> multi_loss_weight = {1.0};
  int64_t default_group_number = 32;
  double default_epsilon = 1e-5;
  std::string bn_type = "BN";
  std::string bn_group;  ///< own: images that share batch statistics: all, rank, or a number; "": by sync_batch_norm
                         ///< and bn_type
  std::optional<double> bn_eps_for_encoder, bn_eps_for_decoder, bn_momentum;
  int64_t output_stride = 16;
  Danet danet;
  DeepLabV3Plus deeplabv3_plus;
  OcNet ocnet;
  EncNet encnet;
  CcNet ccnet;
  CgNet cgnet;
  PointRend pointrend;
  Hrnet hrnet;
};

struct Config {
  int64_t seed = 1024;
  std::string time_stamp, root_path, phase = "train";
  DatasetConfig dataset;
  AugmentConfig aug;
  TrainConfig train;
  SolverConfig solver;
  TestConfig test;
  VisualConfig visual;
  ModelConfig model;

  std::vector<std::string> notes;  ///< one line per setting that is accepted but has no effect; not dumped
};

/// Defaults, then the file (path "" = none), then overrides KEY VALUE KEY VALUE ... (keys with dots).
/// Throws Error naming file and line (or "command line"), the key, what was expected and what was found; for an
/// unknown key the nearest known one.
Config load_config(const std::string& path, const std::vector<std::string>& overrides = {});

/// The same from text; `name` stands for the file in messages.
Config parse_config(const std::string& text, const std::string& name, const std::vector<std::string>& overrides = {});

/// Every key with its value, in schema order; load_config of this text gives an equal Config.
std::string dump_yaml(const Config& config);

/// Every key of the schema, in order ("TRAIN.CROP_SIZE").
std::vector<std::string> config_keys();

/// The schema's spelling of a model or data set written in any case, with or without underscores ("fast_scnn" ->
/// "FastSCNN"); an unknown name comes back unchanged, for the registry to refuse.
std::string resolve_model_name(const std::string& name);
std::string resolve_dataset_name(const std::string& name);

/// The candidate with the smallest edit distance (Levenshtein, case ignored), of those that need at most half as many
/// edits as `name` has letters: farther ones are no slip of the pen. "" where there is none.
std::string nearest_name(const std::string& name, const std::vector<std::string>& candidates);
/// "; the nearest is 'NAME'" for the end of a message, or "" where no candidate is near.
std::string nearest_hint(const std::string& name, const std::vector<std::string>& candidates);

}  // namespace convoy
