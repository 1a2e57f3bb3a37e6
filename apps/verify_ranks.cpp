#include "apps/verify_ranks.h"

#include <bit>
#include <optional>

#include "apps/ranks.h"
#include "apps/training_step.h"
#include "engine/optimizer.h"
#include "engine/param_store.h"
#include "engine/rng.h"

namespace convoy {

namespace {

constexpr double kLearningRate = 0.01;

/// A named row of numbers that must be the same whatever the ranks.
struct Figures {
  std::string name;
  std::vector<float> values;
};

struct Outcome {
  std::vector<Figures> losses, gradients, state;
};

NetworkOptions network_options(const VerifyRanksOptions& o) {
  NetworkOptions options = light_options(o.network);
  if (!o.backbone.empty() && !options.backbone.empty()) options.backbone = o.backbone;
  return options;
}

Config recipe(const VerifyRanksOptions& o) {
  const NetworkOptions network = network_options(o);
  Config config;
  config.seed = o.seed;
  config.model.model_name = network.name;
  config.model.backbone = network.backbone;
  config.train.crop_size = {o.height, o.width};
  config.solver.aux = network.aux;
  return config;
}

/// The shard's images of a step: functions of seed, step and place in the global batch.
Batch random_batch(const VerifyRanksOptions& o, int64_t step, const BatchShard& shard, int64_t classes) {
  Batch batch{.count = shard.count, .height = o.height, .width = o.width, .step = step};
  for (int64_t slot = shard.first; slot < shard.first + shard.count; ++slot) {
    RandomStream random(static_cast<uint64_t>(o.seed), "verify ranks",
                        static_cast<uint64_t>(step * shard.global + slot));
    for (int64_t i = 0; i < 3 * o.height * o.width; ++i) batch.images.push_back(2 * random.uniform() - 1);
    for (int64_t i = 0; i < o.height * o.width; ++i)
      batch.labels.push_back(static_cast<int32_t>(random.integer(-1, classes - 1)));
  }
  return batch;
}

Outcome train(const std::shared_ptr<Communicator>& communicator, const VerifyRanksOptions& o, int64_t global_batch,
              const std::string& activity) {
  const Config config = recipe(o);
  const NetworkOptions options = network_options(o);
  Context context({.threads = o.threads, .exact_ranks = true}, communicator);
  ParamStore store;
  const auto network = make_network(options, store);
  store.initialize(static_cast<uint64_t>(o.seed));
  const int ranks = communicator->size();
  const BatchShard shard =
      plan_batch(config, global_batch, ranks, true).shard(global_batch, communicator->rank(), ranks);
  TrainingStep training(context, store, *network, config, shard);
  Optimizer optimizer(store, {{.name = "all", .weight_decay = 1e-4}}, {});
  Outcome outcome;
  const auto keep = [&](std::vector<Figures>& figures, const float* flat) {
    for (const Parameter& p : store.parameters())
      figures.push_back({p.name, {flat + p.offset, flat + p.offset + p.shape.count()}});
  };
  for (int step = 0; step < o.steps; ++step) {
    communicator->set_activity(fmt::format("{}, step {} of {}", activity, step + 1, o.steps));
    const float loss = training.run(random_batch(o, step, shard, options.classes), step).loss;
    outcome.losses.push_back({fmt::format("step {}", step + 1), {loss}});
    if (step == 0) keep(outcome.gradients, store.gradients().f32());
    optimizer.step(kLearningRate);
  }
  keep(outcome.state, store.values().f32());
  for (const Buffer& b : store.buffers()) outcome.state.push_back({b.name, b.value.to_floats()});
  return outcome;
}

/// Where two rows first differ in their bits.
std::optional<std::string> difference(const std::vector<Figures>& ranks, const std::vector<Figures>& alone) {
  for (size_t f = 0; f < ranks.size(); ++f)
    for (size_t i = 0; i < ranks[f].values.size(); ++i) {
      const float a = ranks[f].values[i], b = alone[f].values[i];
      if (std::bit_cast<uint32_t>(a) != std::bit_cast<uint32_t>(b))
        return fmt::format("{}, element {}: {:.9g} on the ranks, {:.9g} on one", ranks[f].name, i, a, b);
    }
  return std::nullopt;
}

}  // namespace

std::vector<VerifyLine> verify_ranks(const std::shared_ptr<Communicator>& communicator,
                                     const VerifyRanksOptions& options) {
  const int ranks = communicator->size();
  const int64_t batch = options.batch > 0 ? options.batch : 2 * ranks + 1;
  const Outcome together = train(communicator, options, batch, "training on all ranks");

  // Each rank does the same work alone, and says so: none waits long for another.
  communicator->set_activity("training alone, to compare");
  const Outcome alone = train(std::make_shared<NullCommunicator>(), options, batch, "");
  const std::string what =
      fmt::format("batch {} on {} rank{} ({}), {} steps", batch, ranks, ranks == 1 ? "" : "s",
                  division_text(plan_batch(recipe(options), batch, ranks, true), batch, ranks), options.steps);
  std::vector<VerifyLine> lines;
  const auto judge = [&](const std::string& group, const std::vector<Figures>& a, const std::vector<Figures>& b) {
    const std::optional<std::string> mine = difference(a, b);
    uint32_t worst = any_rank(*communicator, mine ? 1u : 0u, "comparison of " + group);
    // The message of the first rank that has one.
    int64_t first = mine ? -communicator->rank() : -communicator->size();
    communicator->all_reduce({&first, 1}, ReduceOp::kMax, "rank that differs in " + group);
    std::string summary = what + ": the same bits as one rank";
    if (worst) {
      std::string text = mine ? fmt::format("rank {}: {}", communicator->rank(), *mine) : "";
      uint64_t length = text.size();
      communicator->broadcast(&length, sizeof length, static_cast<int>(-first), "length of the difference");
      text.resize(length);
      communicator->broadcast(text.data(), length, static_cast<int>(-first), "difference");
      summary = what + ": " + text;
    }
    lines.push_back({options.network + " " + group, worst == 0, summary});
  };
  judge("loss", together.losses, alone.losses);
  judge("first gradients", together.gradients, alone.gradients);
  judge("final state", together.state, alone.state);
  return lines;
}

}  // namespace convoy
