#include "apps/training_step.h"

#include "layers/losses.h"

namespace convoy {

Value build_training_step(Graph& graph, const Network& network, const Config& config, int64_t batch, SizeHW size) {
  const Value image = graph.input("image", DType::kF32, {batch, 3, size.height, size.width});
  const Value target = graph.input("target", DType::kI32, {batch, size.height, size.width});
  Builder builder{graph, Mode::kTrain};
  const std::vector<NamedValue> outputs = network.forward(builder, image);
  const Value loss = mixed_softmax_cross_entropy(
      outputs, target, {.aux = config.solver.aux, .aux_weight = config.solver.aux_weight, .ignore = kIgnoreLabel});
  graph.differentiate(loss);
  return loss;
}

TrainingStep::TrainingStep(Context& context, ParamStore& store, const Network& network, const Config& config,
                           const BatchShard& shard)
    : shard_(shard), seed_(static_cast<uint64_t>(config.seed)), graph_(context, store) {
  loss_ = build_training_step(graph_, network, config, shard.count, config.train.crop_size);
  session_ = std::make_unique<Session>(graph_, std::vector<Value>{loss_});
}

TrainingStep::Result TrainingStep::run(const Batch& batch, int64_t step, uint32_t stop_flags) {
  session_->bind("image", batch.images.data());
  session_->bind("target", batch.labels.data());
  session_->run({.seed = seed_, .global_step = step, .first_slot = shard_.first});
  return {.loss = session_->fetch(0).item(), .stop_flags = stop_flags};
}

}  // namespace convoy
