// Lanes: a batch run as several runs of one plan, with exchanges between them, is the batch run at once.
#include <catch2/catch.hpp>

#include "tests/training_step.h"

namespace convoy {

namespace {

constexpr int64_t kImages = 4;
const Shape kShape{kImages, 3, 64, 128};

// Batch statistics of maps of a few pixels amplify rounding; a cosine of 0.9998.
constexpr double kTrainGradients = 2e-2;

struct StepResult {
  float loss = 0;
  std::vector<float> gradients, state;
};

/// One step of a network over kImages images in lanes of `lane_images`.
StepResult step_in_lanes(const std::string& name, int64_t lane_images, const ContextOptions& options,
                         GlobalBatch::Statistics statistics = GlobalBatch::Statistics::kAll, Mode mode = Mode::kTrain) {
  const test::TrainingStep data(name, kShape, {});
  Context context(options);
  ParamStore store;
  const auto network = make_network(light_options(name), store);
  store.initialize(3);
  Graph graph(context, store);
  graph.set_global_batch({.images = kImages, .statistics = statistics});
  Builder b{graph, mode};
  const Value x = graph.input("image", DType::kF32, {lane_images, 3, kShape[2], kShape[3]}),
              t = graph.input("target", DType::kI32, {lane_images, kShape[2], kShape[3]});
  const Value loss = mixed_softmax_cross_entropy(network->forward(b, x), t, {.aux = true});
  graph.differentiate(loss);
  Session session(graph, {sum_over_lanes({loss})[0]},
                  {.count = static_cast<int>(kImages / lane_images), .images = lane_images});
  session.bind("image", data.image.data());
  session.bind("target", data.target.data());
  session.run({.seed = 1});
  StepResult result{.loss = session.fetch(0).item(), .gradients = store.gradients().to_floats(), .state = {}};
  for (const Buffer& buffer : store.buffers())
    for (const float value : buffer.value.to_floats()) result.state.push_back(value);
  return result;
}

double relative_distance(const std::vector<float>& a, const std::vector<float>& b) {
  REQUIRE(a.size() == b.size());
  double difference = 0, size = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
    size += static_cast<double>(b[i]) * static_cast<double>(b[i]);
  }
  return std::sqrt(difference / size);
}

}  // namespace

TEST_CASE("a batch in lanes is the batch at once", "[lanes]") {
  const std::string name = GENERATE("FastSCNN", "BiSeNet");
  const StepResult whole = step_in_lanes(name, kImages, {});
  for (const int64_t lane_images : {1, 2}) {
    const StepResult lanes = step_in_lanes(name, lane_images, {});
    INFO(name << " in lanes of " << lane_images);
    CHECK(lanes.loss == Approx(whole.loss).epsilon(1e-6));
    CHECK(relative_distance(lanes.gradients, whole.gradients) < kTrainGradients);
    CHECK(relative_distance(lanes.state, whole.state) < 1e-5);
  }
}

TEST_CASE("gradients with frozen statistics do not depend on lanes", "[lanes]") {
  const std::string name = GENERATE("FastSCNN", "BiSeNet");
  const auto step = [&](int64_t lane_images, const ContextOptions& options) {
    return step_in_lanes(name, lane_images, options, GlobalBatch::Statistics::kAll, Mode::kFrozen);
  };
  const StepResult whole = step(kImages, {});
  for (const bool exact : {false, true}) {
    const StepResult lanes = step(1, {.exact_ranks = exact});
    INFO(name << (exact ? ", exact" : ""));
    CHECK(lanes.loss == Approx(whole.loss).epsilon(1e-6));
    CHECK(relative_distance(lanes.gradients, whole.gradients) < 1e-5);
  }
}

TEST_CASE("exact sums give the same step as float sums, near enough", "[lanes]") {
  const std::string name = GENERATE("FastSCNN", "BiSeNet");
  const StepResult whole = step_in_lanes(name, kImages, {});
  const StepResult exact = step_in_lanes(name, 1, {.exact_ranks = true});
  CHECK(exact.loss == Approx(whole.loss).epsilon(1e-6));
  CHECK(relative_distance(exact.gradients, whole.gradients) < kTrainGradients);
  CHECK(relative_distance(exact.state, whole.state) < 1e-5);
}

TEST_CASE("statistics of each lane differ from those of the batch", "[lanes]") {
  const StepResult all = step_in_lanes("FastSCNN", 2, {});
  const StepResult lane = step_in_lanes("FastSCNN", 2, {}, GlobalBatch::Statistics::kLane);
  CHECK(lane.loss != Approx(all.loss).epsilon(1e-6));
  CHECK(relative_distance(lane.state, all.state) > 1e-5);
  CHECK(relative_distance(lane.state, all.state) < 0.2);
}

}  // namespace convoy
