#include "apps/training_step.h"

#include "apps/recipe.h"
#include "engine/param_store.h"

namespace convoy {

SegmentationLoss build_training_step(Graph& graph, const Network& network, const Config& config, int64_t batch,
                                     SizeHW size) {
  const Value image = graph.input("image", DType::kF32, {batch, 3, size.height, size.width});
  const Value target = graph.input("target", DType::kI32, {batch, size.height, size.width});
  Builder builder{graph, Mode::kTrain};
  const std::vector<NamedValue> outputs = network.forward(builder, image);
  const SegmentationLoss loss = segmentation_loss(outputs, target, loss_options(config));
  graph.differentiate(loss.loss);
  return loss;
}

BatchShard BatchPlan::shard(int64_t global_batch, int rank, int ranks) const {
  const BatchShard units = shard_of(global_batch / unit, rank, ranks);
  return {.global = global_batch, .first = units.first * unit, .count = units.count * unit};
}

std::string BatchPlan::describe() const {
  switch (statistics) {
    case GlobalBatch::Statistics::kAll:
      return "over the global batch (sync-BN)";
    case GlobalBatch::Statistics::kLane:
      return fmt::format("over groups of {} images", unit);
    case GlobalBatch::Statistics::kRank:
      break;
  }
  return "over the images of each rank: the result depends on the number of ranks, and rank 0's statistics are kept";
}

BatchPlan plan_batch(const Config& config, int64_t global_batch, int ranks, bool exact_ranks) {
  BatchPlan plan;
  const bool sync = config.train.sync_batch_norm || config.model.bn_type != "BN";
  const std::string group = config.model.bn_group.empty() ? (sync ? "all" : "rank") : config.model.bn_group;
  if (group == "rank") {
    if (ranks > 1) plan.statistics = GlobalBatch::Statistics::kRank;
  } else if (group != "all") {
    plan.statistics = GlobalBatch::Statistics::kLane;
    plan.unit = plan.lane_images = std::stoll(group);
  }
  const int64_t micro = config.train.micro_batch, most = (global_batch + ranks - 1) / ranks;
  CONVOY_CHECK(micro == 0 || micro >= most || plan.lane_images > 0,
               "TRAIN.MICRO_BATCH {} would split the {} images of a rank, but batch norm takes statistics {}; set "
               "MODEL.BN_GROUP {} to take them over micro-batches, or leave MICRO_BATCH away",
               micro, most, plan.describe(), micro);
  CONVOY_CHECK(micro == 0 || plan.lane_images == 0 || micro % plan.lane_images == 0,
               "TRAIN.MICRO_BATCH {} is no multiple of MODEL.BN_GROUP {}: it would split a group's statistics", micro,
               plan.lane_images);
  CONVOY_CHECK(!exact_ranks || plan.statistics != GlobalBatch::Statistics::kRank,
               "--exact-ranks makes results the same on any number of ranks, batch statistics of each rank alone "
               "(MODEL.BN_GROUP rank, or TRAIN.SYNC_BATCH_NORM False) are not: switch one of them off");
  CONVOY_CHECK(global_batch % plan.unit == 0, "the global batch of {} is no multiple of the statistics group of {}",
               global_batch, plan.unit);
  if (exact_ranks && plan.lane_images == 0) plan.lane_images = 1;
  return plan;
}

ShardedStep build_sharded_step(Graph& graph, const Network& network, const Config& config, const BatchShard& shard,
                               SizeHW size) {
  const int ranks = graph.context().communicator().size();
  const bool exact = graph.context().options().exact_ranks;
  const BatchPlan plan = plan_batch(config, shard.global, ranks, exact);
  const int64_t images = plan.lane_images > 0 ? plan.lane_images : std::max<int64_t>(shard.count, 1);
  ShardedStep step{.targets = {}, .lanes = {.count = static_cast<int>(shard.count / images), .images = images}};
  const bool shared = ranks > 1 || exact || step.lanes.count != 1;
  if (shared) graph.set_global_batch({.images = shard.global, .statistics = plan.statistics});
  const SegmentationLoss loss = build_training_step(graph, network, config, images, size);
  step.targets = sum_over_lanes({loss.loss});
  if (shared) step.targets.push_back(sum_over_lanes({graph.input("stop_flags", DType::kF32, {kStopFlags}, true)})[0]);
  if (loss.keeps_all) {
    step.keeps_all = step.targets.size();
    step.targets.push_back(loss.keeps_all);
  }
  return step;
}

TrainingStep::TrainingStep(Context& context, ParamStore& store, const Network& network, const Config& config,
                           const BatchShard& shard)
    : shard_(shard), seed_(static_cast<uint64_t>(config.seed)), graph_(context, store) {
  const ShardedStep step = build_sharded_step(graph_, network, config, shard, config.train.crop_size);
  keeps_all_ = step.keeps_all;
  if (graph_.global_batch().shared()) flags_ = Tensor::zeros(DType::kF32, {kStopFlags});
  session_ = std::make_unique<Session>(graph_, step.targets, step.lanes);
}

TrainingStep::Result TrainingStep::run(const Batch& batch, int64_t step, uint32_t stop_flags) {
  CONVOY_CHECK(batch.count == shard_.count, "the batch has {} images, this rank's part of the global batch is {}",
               batch.count, shard_.count);
  if (batch.count > 0) {
    session_->bind("image", batch.images.data());
    session_->bind("target", batch.labels.data());
  }
  if (flags_.defined()) {
    for (int bit = 0; bit < kStopFlags; ++bit) flags_.f32()[bit] = static_cast<float>(stop_flags >> bit & 1);
    session_->bind("stop_flags", flags_.f32());
  }
  session_->run({.seed = seed_, .global_step = step, .first_slot = shard_.first});
  Result result{
      .loss = session_->fetch(0).item(), .stop_flags = stop_flags, .comm_seconds = session_->exchange_seconds()};
  result.keeps_all = keeps_all_ > 0 && session_->fetch(keeps_all_).item() > 0;
  if (flags_.defined()) {
    const Tensor flags = session_->fetch(1);
    for (int bit = 0; bit < kStopFlags; ++bit)
      if (flags.f32()[bit] > 0) result.stop_flags |= 1u << bit;
  }
  return result;
}

}  // namespace convoy
