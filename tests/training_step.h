// One training step of a network as a graph: image and labels to loss, gradients and update.
#pragma once
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/optimizer.h"
#include "engine/session.h"
#include "layers/losses.h"
#include "nets/network.h"
#include "tests/golden_ops.h"

namespace convoy::test {

/// Fills the memory in which the session will run with NaN.
inline void poison_arena(Context& context, const Session& session) {
  const size_t bytes = session.plan().arena_bytes;
  std::fill_n(static_cast<float*>(context.claim_arena(bytes, nullptr)), bytes / sizeof(float), NAN);
}

struct TrainingStep {
  Context context;
  ParamStore store;
  std::unique_ptr<Network> network;
  Graph graph{context, store};
  Value loss;
  std::vector<float> image;
  std::vector<int32_t> target;

  TrainingStep(const std::string& name, const Shape& shape, const ContextOptions& options) : context(options) {
    network = make_network(light_options(name), store);
    store.initialize(3);
    const Shape labels{shape[0], shape[2], shape[3]};
    Builder b{graph, Mode::kTrain};
    const Value x = graph.input("image", DType::kF32, shape), t = graph.input("target", DType::kI32, labels);
    loss = mixed_softmax_cross_entropy(network->forward(b, x), t, {.aux = true});
    graph.differentiate(loss);
    const golden::Stream u("image"), v("target");
    for (uint64_t i = 0; i < static_cast<uint64_t>(shape.count()); ++i)
      image.push_back(static_cast<float>(4 * u[i] - 2));
    for (uint64_t i = 0; i < static_cast<uint64_t>(labels.count()); ++i)
      target.push_back(static_cast<int32_t>(v[i] * 20) - 1);
  }

  /// Runs so many steps and returns their losses.
  std::vector<float> run(int steps, bool poisoned = false) {
    Session session(graph, {loss});
    session.bind("image", image.data());
    session.bind("target", target.data());
    Optimizer optimizer(store, {{.name = "all", .weight_decay = 1e-4}}, {});
    std::vector<float> losses;
    for (int step = 0; step < steps; ++step) {
      if (poisoned) poison_arena(context, session);
      session.run({.seed = 1, .global_step = step});
      losses.push_back(session.fetch(0).item());
      optimizer.step(0.01);
    }
    return losses;
  }

  /// Every parameter and buffer.
  std::vector<float> state() {
    std::vector<float> all = store.values().to_floats();
    for (const Buffer& b : store.buffers())
      for (const float x : b.value.to_floats()) all.push_back(x);
    return all;
  }
};

}  // namespace convoy::test
