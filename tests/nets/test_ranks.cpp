// Whole training steps on several ranks (threads of this process) against one rank.
#include <catch2/catch.hpp>
#include <cmath>

#include "apps/training_step.h"
#include "engine/optimizer.h"
#include "engine/param_store.h"
#include "tests/golden_ops.h"
#include "tests/thread_ranks.h"

namespace convoy {

namespace {

constexpr int64_t kHeight = 64, kWidth = 96, kClasses = 19;

Config recipe(const std::string& network) {
  Config config;
  config.seed = 5;
  config.model.model_name = network;
  config.train.crop_size = {kHeight, kWidth};
  config.solver.aux = true;
  return config;
}

/// Images [first, first + count) of the global batch of a step.
Batch batch_of(int64_t step, int64_t first, int64_t count) {
  Batch batch{.count = count, .height = kHeight, .width = kWidth, .step = step};
  for (int64_t image = first; image < first + count; ++image) {
    const golden::Stream u(fmt::format("image {} {}", step, image)), v(fmt::format("target {} {}", step, image));
    for (uint64_t i = 0; i < 3 * kHeight * kWidth; ++i) batch.images.push_back(static_cast<float>(4 * u[i] - 2));
    for (uint64_t i = 0; i < kHeight * kWidth; ++i)
      batch.labels.push_back(static_cast<int32_t>(v[i] * (kClasses + 1)) - 1);
  }
  return batch;
}

struct RunResult {
  std::vector<float> losses, gradients, state;
  std::string exchanges;
  size_t arena_bytes = 0;
};

/// Trains on so many ranks; element r is what rank r has in the end.
std::vector<RunResult> train(const Config& config, int64_t global_batch, int steps, int ranks, bool exact = false) {
  std::vector<RunResult> results(static_cast<size_t>(ranks));
  test::on_ranks(ranks, [&](int rank, const std::shared_ptr<Communicator>& communicator) {
    Context context({.threads = 1, .exact_ranks = exact}, communicator);
    ParamStore store;
    const auto network = make_network(light_options(config.model.model_name), store);
    store.initialize(3);
    const BatchShard shard = plan_batch(config, global_batch, ranks, exact).shard(global_batch, rank, ranks);
    TrainingStep training(context, store, *network, config, shard);
    Optimizer optimizer(store, {{.name = "all", .weight_decay = 1e-4}}, {});
    RunResult& result = results[static_cast<size_t>(rank)];
    for (int step = 0; step < steps; ++step) {
      result.losses.push_back(training.run(batch_of(step, shard.first, shard.count), step).loss);
      if (step == 0) result.gradients = store.gradients().to_floats();
      optimizer.step(0.01);
    }
    result.state = store.values().to_floats();
    for (const Buffer& b : store.buffers())
      for (const float x : b.value.to_floats()) result.state.push_back(x);
    result.exchanges = training.plan().exchanges();
    result.arena_bytes = training.plan().arena_bytes;
  });
  return results;
}

/// Gradients of one step with frozen statistics, as rank 0 has them.
std::vector<float> frozen_gradients(const std::string& name, int64_t global_batch, int ranks) {
  std::vector<float> gradients;
  test::on_ranks(ranks, [&](int rank, const std::shared_ptr<Communicator>& communicator) {
    Context context({.threads = 1}, communicator);
    ParamStore store;
    const auto network = make_network(light_options(name), store);
    store.initialize(3);
    Graph graph(context, store);
    graph.set_global_batch({.images = global_batch});
    const BatchShard shard = shard_of(global_batch, rank, ranks);
    const int64_t images = std::max<int64_t>(shard.count, 1);
    Builder builder{graph, Mode::kFrozen};
    const Value image = graph.input("image", DType::kF32, {images, 3, kHeight, kWidth}),
                target = graph.input("target", DType::kI32, {images, kHeight, kWidth});
    const Value loss = mixed_softmax_cross_entropy(network->forward(builder, image), target, {.aux = true});
    graph.differentiate(loss);
    Session session(graph, {sum_over_lanes({loss})[0]},
                    {.count = static_cast<int>(shard.count / images), .images = images});
    const Batch batch = batch_of(0, shard.first, shard.count);
    if (batch.count > 0) {
      session.bind("image", batch.images.data());
      session.bind("target", batch.labels.data());
    }
    session.run({.seed = 1, .first_slot = shard.first});
    if (rank == 0) gradients = store.gradients().to_floats();
  });
  return gradients;
}

double cosine(const std::vector<float>& a, const std::vector<float>& b) {
  REQUIRE(a.size() == b.size());
  double ab = 0, aa = 0, bb = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    ab += static_cast<double>(a[i]) * static_cast<double>(b[i]);
    aa += static_cast<double>(a[i]) * static_cast<double>(a[i]);
    bb += static_cast<double>(b[i]) * static_cast<double>(b[i]);
  }
  return ab / std::sqrt(aa * bb);
}

}  // namespace

TEST_CASE("the first step on several ranks is that of one", "[ranks]") {
  const std::string network = GENERATE(from_range(network_names()));
  const auto [global_batch, ranks] =
      GENERATE(std::pair(int64_t{4}, 2), std::pair(int64_t{5}, 3), std::pair(int64_t{2}, 4));
  const Config config = recipe(network);
  const RunResult one = train(config, global_batch, 1, 1)[0];
  const std::vector<RunResult> several = train(config, global_batch, 1, ranks);
  for (const RunResult& rank : several) {
    INFO(network << ", batch " << global_batch << " on " << ranks << " ranks");
    CHECK(rank.losses[0] == Approx(one.losses[0]).epsilon(1e-6));
    CHECK(rank.losses == several[0].losses);
    CHECK(rank.gradients == several[0].gradients);
    CHECK(rank.state == several[0].state);
    CHECK(cosine(rank.gradients, one.gradients) > 0.999);
  }
}

TEST_CASE("gradients with frozen statistics agree to rounding on any number of ranks", "[ranks]") {
  const std::string network = GENERATE(from_range(network_names()));
  const std::vector<float> one = frozen_gradients(network, 3, 1);
  double size = 0;
  for (const float g : one) size += static_cast<double>(g) * static_cast<double>(g);
  for (const int ranks : {2, 4}) {
    const std::vector<float> several = frozen_gradients(network, 3, ranks);
    double difference = 0;
    for (size_t i = 0; i < one.size(); ++i)
      difference += std::pow(static_cast<double>(several[i]) - static_cast<double>(one[i]), 2);
    INFO(network << " on " << ranks << " ranks");
    CHECK(std::sqrt(difference / size) < 1e-5);
  }
}

TEST_CASE("a rank without images makes the same exchanges", "[ranks]") {
  const std::string network = GENERATE(from_range(network_names()));
  const std::vector<RunResult> ranks = train(recipe(network), 2, 1, 3);
  REQUIRE(!ranks[0].exchanges.empty());
  CHECK(ranks[2].exchanges == ranks[0].exchanges);
  CHECK(ranks[1].exchanges == ranks[0].exchanges);
}

TEST_CASE("exact sums: every step is the same on any number of ranks", "[ranks]") {
  const Config config = recipe("FastSCNN");
  constexpr int kSteps = 4;
  const RunResult one = train(config, 4, kSteps, 1, true)[0];
  for (const int ranks : {2, 3, 5})
    for (const RunResult& rank : train(config, 4, kSteps, ranks, true)) {
      INFO(ranks << " ranks");
      CHECK(rank.losses == one.losses);
      CHECK(rank.gradients == one.gradients);
      CHECK(rank.state == one.state);
    }
}

TEST_CASE("statistics of groups of images do not depend on ranks, and need the memory of one group", "[ranks]") {
  Config config = recipe("FastSCNN");
  config.model.bn_group = "2";
  const RunResult one = train(config, 6, 1, 1)[0];
  for (const int ranks : {2, 3, 4})
    for (const RunResult& rank : train(config, 6, 1, ranks)) {
      CHECK(rank.losses[0] == Approx(one.losses[0]).epsilon(1e-6));
      CHECK(cosine(rank.gradients, one.gradients) > 0.999);
      CHECK(rank.arena_bytes <= one.arena_bytes * 11 / 10);
    }
  const RunResult whole = train(recipe("FastSCNN"), 6, 1, 1)[0];
  CHECK(whole.losses[0] != Approx(one.losses[0]).epsilon(1e-6));
  CHECK(one.arena_bytes * 2 < whole.arena_bytes);
}

TEST_CASE("batch norm of each rank keeps rank 0's statistics on all ranks", "[ranks]") {
  Config config = recipe("FastSCNN");
  config.model.bn_group = "rank";
  const std::vector<RunResult> ranks = train(config, 4, 1, 2);
  CHECK(ranks[0].losses == ranks[1].losses);
  CHECK(ranks[0].state == ranks[1].state);
  const RunResult one = train(config, 4, 1, 1)[0];
  CHECK(ranks[0].losses[0] != Approx(one.losses[0]).epsilon(1e-6));
}

TEST_CASE("a micro-batch that would split the statistics is refused", "[ranks]") {
  Config config = recipe("FastSCNN");
  config.train.micro_batch = 1;
  CHECK_THROWS_WITH(plan_batch(config, 4, 2, false), Catch::Contains("MICRO_BATCH 1 would split"));
  config.model.bn_group = "2";
  CHECK_THROWS_WITH(plan_batch(config, 4, 2, false), Catch::Contains("no multiple"));
  config.train.micro_batch = 0;
  CHECK_THROWS_WITH(plan_batch(config, 5, 2, false), Catch::Contains("no multiple of the statistics group"));
  config.model.bn_group = "rank";
  CHECK_THROWS_WITH(plan_batch(config, 4, 2, true), Catch::Contains("--exact-ranks"));
}

}  // namespace convoy
