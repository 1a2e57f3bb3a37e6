// What a configuration asks for, in the engine's terms.
#pragma once
#include <string>
#include <vector>

#include "engine/lr_schedule.h"
#include "engine/optimizer.h"
#include "io/config.h"
#include "layers/losses.h"
#include "nets/network.h"

namespace convoy {

/// SOLVER.OPTIMIZER and what belongs to it.
Optimizer::Options optimizer_options(const Config& config);

/// Throws Error ("not available yet: ...") naming every setting that this version cannot honour. Nothing that is set
/// is silently ignored.
void require_supported(const Config& config);

/// Classes of the configured data set, without reading it. Throws Error when that is not known.
int64_t class_count(const Config& config);

NetworkOptions network_options(const Config& config, int64_t classes);

/// The configured loss: OHEM where SOLVER.OHEM is set, else SOLVER.LOSS_NAME, else cross entropy. Under
/// SOLVER.LEGACY_LOSS the reference's definitions, OHEM with the class weights of Cityscapes unless others are set.
/// Throws Error where SOLVER.CLASS_WEIGHTS are set for a loss that has none, and where OHEM would keep no pixel.
LossOptions loss_options(const Config& config);

/// Throws Error naming the next sizes that fit where the network does not take images of this one.
void require_fitting(const Network& network, const std::string& name, SizeHW size);
/// The size that images of this one are padded to for a prediction.
SizeHW fitting_size(const Network& network, SizeHW size);

/// Samples per step over all ranks: TRAIN.GLOBAL_BATCH, or BATCH_SIZE for each rank.
int64_t global_batch(const Config& config, int64_t ranks);

/// Steps of the run: TRAIN.MAX_ITERS, else EPOCHS * steps_per_epoch.
int64_t total_steps(const Config& config, int64_t steps_per_epoch);

/// SOLVER's schedule over the run; epochs in it count steps_per_epoch steps, rounded down.
LrSchedule lr_schedule(const Config& config, int64_t steps_per_epoch);

/// Puts each parameter into a group and returns the groups: "encoder" at LR and "decoder" at LR * DECODER_LR_FACTOR
/// where the network has decoder prefixes, else "all". Weight decay is on every parameter, as in the reference.
std::vector<OptimizerGroup> parameter_groups(const Config& config, const Network& network, ParamStore& store);

/// One line per setting in which two configurations differ: "SOLVER.LR: 0.01 -> 0.02".
std::vector<std::string> config_changes(const Config& before, const Config& after);

}  // namespace convoy
