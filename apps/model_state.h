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

/// Parameters and buffers under their own names, velocities as "optimizer.momentum.<name>". The tensors borrow the
/// store's memory.
std::vector<NamedTensor> state_tensors(ParamStore& store);

/// Copies a checkpoint's tensors into the store. Throws Error listing the tensors that are missing or have another
/// shape. `optimizer`: velocities too.
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
  std::filesystem::path path;  ///< the step-N directory
  int64_t step = 0;
};

/// Reads a step-N directory, or of a run directory the best checkpoint, else the newest. `overrides`: KEY VALUE ... on
/// top of the stored configuration.
std::unique_ptr<TrainedModel> load_model(const std::filesystem::path& checkpoint_or_run,
                                         const std::vector<std::string>& overrides = {});

}  // namespace convoy
