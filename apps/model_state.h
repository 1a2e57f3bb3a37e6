// Between the parameter store and checkpoints: what is stored, under which names, and how it comes back.
#pragma once
#include <filesystem>
#include <memory>
#include <string>

#include "engine/param_store.h"
#include "io/checkpoint.h"
#include "io/dataset.h"
#include "nets/network.h"

namespace convoy {

/// Parameters and buffers under their own names, optimizer states as "optimizer.<state>.<name>". The tensors borrow the
/// store's memory.
std::vector<NamedTensor> state_tensors(ParamStore& store);

/// Copies a checkpoint's tensors into the store. Throws Error listing the tensors that are missing or have another
/// shape. `optimizer`: the store's optimizer states too.
void restore_tensors(const CheckpointState& checkpoint, const std::string& source, ParamStore& store, bool optimizer);

/// Names, colours and file values of the classes as JSON and back.
nlohmann::json class_table_json(const ClassTable& classes);
ClassTable class_table_of(const nlohmann::json& json);

/// A trained network read from a checkpoint, with the configuration that it was trained by.
struct TrainedModel {
  Config config;
  ClassTable classes;
  ParamStore store;
  std::unique_ptr<Network> network;
  std::filesystem::path path;  ///< the step-N directory, or the weight file
  int64_t step = 0;
};

/// Parameters and buffers in the order of the state_dict, second names of shared parameters included. The tensors
/// borrow the store's memory.
std::vector<NamedTensor> weight_tensors(ParamStore& store);

/// What travels with exported weights: the recipe, classes, normalisation and eps of batch norms, all as texts.
SafetensorsMetadata weights_metadata(const TrainedModel& model);

/// What in a file's metadata differs from what a configuration says (eps of batch norms, normalisation), one line each.
/// Empty for files without such metadata.
std::vector<std::string> metadata_differences(const SafetensorsMetadata& metadata, const Config& config,
                                              int64_t classes);

/// Where a trained network is to come from: one of run directory, checkpoint (a directory step-N, or a weight file) and
/// TEST.TEST_MODEL_PATH of the configuration.
struct ModelSource {
  std::filesystem::path run_directory, checkpoint;
  std::string config_file;             ///< for weight files that do not carry their recipe; else empty
  std::vector<std::string> overrides;  ///< KEY VALUE ... on top of the configuration
};

/// Throws Error where the source is not given in one way, where a weight file needs a configuration, and where the
/// weights do not fit the network. Prints the match table of a weight file on standard error when `report`.
std::unique_ptr<TrainedModel> load_model(const ModelSource& source, bool report = true);

/// Reads a step-N directory, or of a run directory the best checkpoint, else the newest. `overrides`: KEY VALUE ... on
/// top of the stored configuration.
std::unique_ptr<TrainedModel> load_model(const std::filesystem::path& checkpoint_or_run,
                                         const std::vector<std::string>& overrides = {});

}  // namespace convoy
