// Ranks whose exchanges stay on their devices: sync-BN, sums of losses and gradients in device memory.
#include <catch2/catch.hpp>

#include "engine/ops.h"
#include "engine/param_store.h"
#include "engine/session.h"
#include "kernels/emulator/emulator.h"
#include "tests/golden_ops.h"
#include "tests/op_runner.h"
#include "tests/thread_ranks.h"

namespace convoy::test {
namespace {

using emulator::StreamOrder;

struct RankResult {
  float loss = 0;
  std::vector<float> gradients, state, chosen;
};

std::vector<float> image(int64_t first, int64_t count) {
  const golden::Stream u("x");
  std::vector<float> values;
  for (int64_t i = 0; i < count * 105; ++i) values.push_back(static_cast<float>(4 * u[first * 105 + i] - 2));
  return values;
}

/// Two steps of batch norm and a loss on five images, two or three of which are this rank's, in lanes of one or all at
/// once.
RankResult step(DeviceKind device, const std::shared_ptr<Communicator>& communicator, int64_t global,
                int64_t lane_images) {
  Context context({.device = device, .threads = 1}, communicator);
  ParamStore store;
  store.add_parameter("weight", {3}, {.a = 1.5});
  store.add_parameter("bias", {3}, {.kind = Initializer::Kind::kUniform, .a = 1});
  store.add_buffer("mean", Tensor::zeros(DType::kF32, {3}));
  store.add_buffer("var", Tensor::zeros(DType::kF32, {3}));
  store.add_buffer("count", Tensor::zeros(DType::kI64, {}));
  store.allocate();
  store.initialize(1);
  const BatchShard shard = shard_of(global, communicator->rank(), communicator->size());
  Graph graph(context, store);
  graph.set_global_batch({.images = global, .statistics = GlobalBatch::Statistics::kAll});
  const Value x = graph.input("x", DType::kF32, {lane_images, 3, 5, 7});
  const auto [lane_mean, lane_var] = bn_stats(x);
  const auto [mean, var] = sync_bn_stats(x, lane_mean, lane_var);
  bn_update_running(x, mean, var, graph.buffer("mean"), graph.buffer("var"), graph.buffer("count"), 0.1);
  const Value y = relu(bn_apply(x, mean, var, graph.parameter("weight"), graph.parameter("bias"), 1e-5, true));
  const Value loss = dot(y, y);
  graph.differentiate(loss);
  const auto [chosen, chosen_var] = of_first_rank(lane_mean, lane_var);
  Session session(graph, {sum_over_lanes({loss})[0], chosen, chosen_var},
                  {.count = static_cast<int>(shard.count / lane_images), .images = lane_images});
  const std::vector<float> data = image(shard.first, shard.count);
  session.bind("x", data.empty() ? &store : static_cast<const void*>(data.data()));
  for (int s = 0; s < 2; ++s) session.run({.global_step = s});
  RankResult result{.loss = session.fetch(0).item(),
                    .gradients = store.gradients().to_floats(),
                    .state = {},
                    .chosen = session.fetch(1).to_floats()};
  for (const Buffer& b : store.buffers())
    for (const float value : b.value.to_floats()) result.state.push_back(value);
  return result;
}

std::vector<RankResult> on_device(DeviceKind device, int ranks, int64_t global, int64_t lane_images) {
  std::vector<RankResult> results(static_cast<size_t>(ranks));
  on_ranks(ranks, [&](int rank, const std::shared_ptr<Communicator>& communicator) {
    results[static_cast<size_t>(rank)] = step(device, communicator, global, lane_images);
  });
  return results;
}

TEST_CASE("ranks exchange in device memory what they exchange on the host", "[device][device_ranks]") {
  const auto [ranks, global] = GENERATE(std::pair<int, int64_t>{2, 4}, std::pair<int, int64_t>{3, 5},
                                        std::pair<int, int64_t>{3, 2});  // even, uneven, a rank without images
  const std::vector<RankResult> expected = on_device(DeviceKind::kCpu, ranks, global, 1);
  on_device(DeviceKind::kEmulated, ranks, global, 1);  // what chooses the order by the environment has done so
  const StreamOrder before = emulator::options.stream_order;
  std::vector<RankResult> first;
  for (const StreamOrder order :
       {StreamOrder::kImmediate, StreamOrder::kLazy, StreamOrder::kOthersFirst, StreamOrder::kRandom}) {
    emulator::options.stream_order = order;
    const std::vector<RankResult> found = on_device(DeviceKind::kEmulated, ranks, global, 1);
    INFO("order " << static_cast<int>(order) << ", " << global << " images on " << ranks << " ranks");
    if (first.empty()) first = found;
    for (size_t rank = 0; rank < found.size(); ++rank) {
      CHECK(found[rank].loss == Approx(expected[rank].loss).epsilon(1e-6));
      CHECK(relative_l2(found[rank].gradients, expected[rank].gradients) < 1e-5);
      CHECK(relative_l2(found[rank].state, expected[rank].state) < 1e-6);
      CHECK(relative_l2(found[rank].chosen, expected[rank].chosen) < 1e-6);
      // The same bits in every order and, of what is shared, on every rank.
      CHECK(found[rank].gradients == first[0].gradients);
      CHECK(found[rank].state == first[0].state);
      CHECK(found[rank].chosen == first[0].chosen);
    }
  }
  emulator::options.stream_order = before;
}

}  // namespace
}  // namespace convoy::test
