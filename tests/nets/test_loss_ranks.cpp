// Losses on several ranks (threads of this process), in lanes, and with exact sums, against one rank.
#include <catch2/catch.hpp>
#include <cmath>
#include <numeric>

#include "engine/param_store.h"
#include "engine/session.h"
#include "layers/losses.h"
#include "tests/golden_ops.h"
#include "tests/thread_ranks.h"

namespace convoy {

namespace {

constexpr int64_t kClasses = 5, kHeight = 6, kWidth = 8, kLabelHeight = 11, kLabelWidth = 13;
constexpr int64_t kAnchors = kHeight * kWidth;

/// The data of a global batch. Images repeat, so that equal values lie on different ranks; the last one has no labels.
struct Data {
  std::vector<float> images, boxes;
  std::vector<int32_t> labels, classes;
};

Data data_of(int64_t images, bool labelled = true) {
  Data d;
  for (int64_t image = 0; image < images; ++image) {
    const golden::Stream u(fmt::format("image {}", image % 2)), v(fmt::format("labels {}", image)),
        w(fmt::format("boxes {}", image));
    for (uint64_t i = 0; i < 3 * kHeight * kWidth; ++i) d.images.push_back(static_cast<float>(4 * u[i] - 2));
    for (uint64_t i = 0; i < kLabelHeight * kLabelWidth; ++i)
      d.labels.push_back(image + 1 < images && labelled ? static_cast<int32_t>(v[i] * (kClasses + 1)) - 1 : -1);
    for (uint64_t i = 0; i < kAnchors; ++i)
      d.classes.push_back(w[i] < 0.1 && labelled ? 1 + static_cast<int32_t>(v[i] * (kClasses - 1)) : 0);
    for (uint64_t i = 0; i < 4 * kAnchors; ++i) d.boxes.push_back(static_cast<float>(2 * w[i] - 1));
  }
  return d;
}

struct LossCase {
  std::string name;
  LossOptions options;
  bool boxes = false, presence = false;
};

std::vector<LossCase> loss_cases() {
  const std::vector<float> weights{0.5f, 1.5f, 0.75f, 1.25f, 1.0f};
  return {
      {"cross entropy, class weights", {.aux = true, .class_weights = weights}},
      {"ohem, fixed threshold",
       {.aux = true, .kind = LossKind::kOhem, .class_weights = weights, .ohem_thresh = 0.3, .ohem_min_kept = 20}},
      {"ohem, mined", {.aux = true, .kind = LossKind::kOhem, .ohem_thresh = 0.01, .ohem_min_kept = 150}},
      {"ohem, all kept", {.kind = LossKind::kOhem}},
      {"focal", {.aux = true, .kind = LossKind::kFocal}},
      {"focal of the mean", {.kind = LossKind::kFocal, .legacy = true}},
      {"dice", {.aux = true, .kind = LossKind::kDice}},
      {"dice of labelled classes", {.kind = LossKind::kDice, .legacy = true}},
      {"lovasz", {.aux = true, .kind = LossKind::kLovasz}},
      {"presence of classes", {.aux = true}, false, true},
      {"boxes", {}, true},
  };
}

Value loss_of(const LossCase& c, Graph& graph, int64_t images) {
  const Value x = graph.input("image", DType::kF32, {images, 3, kHeight, kWidth});
  const auto logits = [&](const std::string& name) { return conv2d(x, graph.parameter(name), {}); };
  if (c.boxes) {
    const Value boxes = graph.input("boxes", DType::kF32, {images, kAnchors, 4}),
                classes = graph.input("classes", DType::kI32, {images, kAnchors});
    return multibox_loss(reshape(logits("loc"), {images, kAnchors, 4}),
                         reshape(logits("head"), {images, kAnchors, kClasses}), boxes, classes);
  }
  const Value target = graph.input("target", DType::kI32, {images, kLabelHeight, kLabelWidth});
  std::vector<NamedValue> outputs{{"out0", resize_bilinear(logits("head"), kLabelHeight, kLabelWidth)}};
  if (c.presence)
    outputs.push_back({"se", reshape(global_avg_pool(logits("aux")), {images, kClasses})});
  else
    outputs.push_back({"out1", resize_bilinear(logits("aux"), kLabelHeight, kLabelWidth)});
  return segmentation_loss(outputs, target, c.options).loss;
}

struct Outcome {
  float loss = NAN;
  std::vector<float> gradients;
};

struct Division {
  int ranks = 1;
  bool exact = false;
  int64_t lane_images = 0;  ///< lanes one after the other
};

/// Loss and summed gradients of rank 0; the other ranks' are checked to be the same.
Outcome run(const LossCase& c, const Data& data, int64_t images, const Division& division) {
  std::vector<Outcome> outcomes(static_cast<size_t>(division.ranks));
  test::on_ranks(division.ranks, [&](int rank, const std::shared_ptr<Communicator>& communicator) {
    Context context({.threads = 1, .exact_ranks = division.exact}, communicator);
    ParamStore store;
    for (const auto& [name, channels] : {std::pair("head", kClasses), {"aux", kClasses}, {"loc", int64_t{4}}}) {
      store.add_parameter(name, {channels, 3, 1, 1});
    }
    store.allocate();
    const golden::Stream u("weights");
    for (int64_t p = 0; p < 3; ++p)
      for (int64_t i = 0; i < store.parameters()[static_cast<size_t>(p)].shape.count(); ++i)
        store.value(p)[i] = static_cast<float>(2 * u[static_cast<uint64_t>(100 * p + i)] - 1);
    const BatchShard shard = shard_of(images, rank, division.ranks);
    const int64_t lane = division.exact             ? 1
                         : division.lane_images > 0 ? division.lane_images
                                                    : std::max<int64_t>(shard.count, 1);
    Graph graph(context, store);
    if (division.ranks > 1 || division.exact || division.lane_images > 0)
      graph.set_global_batch(
          {.images = images,
           .statistics = division.lane_images > 0 ? GlobalBatch::Statistics::kLane : GlobalBatch::Statistics::kAll});
    const Value loss = loss_of(c, graph, lane);
    graph.differentiate(loss);
    Session session(graph, {sum_over_lanes({loss})[0]},
                    {.count = static_cast<int>(shard.count / lane), .images = lane});
    if (shard.count > 0) {
      session.bind("image", data.images.data() + shard.first * 3 * kHeight * kWidth);
      if (c.boxes) {
        session.bind("boxes", data.boxes.data() + shard.first * 4 * kAnchors);
        session.bind("classes", data.classes.data() + shard.first * kAnchors);
      } else {
        session.bind("target", data.labels.data() + shard.first * kLabelHeight * kLabelWidth);
      }
    }
    session.run({.seed = 1, .first_slot = shard.first});
    outcomes[static_cast<size_t>(rank)] = {session.fetch(0).item(), store.gradients().to_floats()};
  });
  for (const Outcome& o : outcomes) {
    CHECK(o.loss == outcomes[0].loss);
    CHECK(o.gradients == outcomes[0].gradients);
  }
  return outcomes[0];
}

double length(const std::vector<float>& v) {
  double sum = 0;
  for (const float x : v) sum += static_cast<double>(x) * static_cast<double>(x);
  return std::sqrt(sum);
}

void check_close(const Outcome& got, const Outcome& want) {
  CHECK(got.loss == Approx(want.loss).epsilon(1e-6));
  REQUIRE(got.gradients.size() == want.gradients.size());
  std::vector<float> difference(want.gradients);
  for (size_t i = 0; i < difference.size(); ++i) difference[i] -= got.gradients[i];
  CHECK(length(want.gradients) > 0);
  CHECK(length(difference) < 2e-6 * length(want.gradients));
}

}  // namespace

TEST_CASE("losses and their gradients do not depend on ranks and lanes", "[ranks]") {
  constexpr int64_t kImages = 6;
  const Data data = data_of(kImages);
  for (const LossCase& c : loss_cases()) {
    INFO(c.name);
    const Outcome one = run(c, data, kImages, {});
    for (const int ranks : {2, 3, 4, 7}) {
      INFO(ranks << " ranks");
      check_close(run(c, data, kImages, {.ranks = ranks}), one);
    }
    INFO("lanes one after the other");
    check_close(run(c, data, kImages, {.lane_images = 2}), one);
    check_close(run(c, data, kImages, {.ranks = 3, .lane_images = 1}), one);
  }
}

TEST_CASE("losses with exact sums have the same bits on any number of ranks", "[ranks]") {
  constexpr int64_t kImages = 5;
  const Data data = data_of(kImages);
  for (const LossCase& c : loss_cases()) {
    INFO(c.name);
    const Outcome one = run(c, data, kImages, {.exact = true});
    check_close(one, run(c, data, kImages, {}));
    for (const int ranks : {2, 3, 6}) {
      INFO(ranks << " ranks");
      const Outcome several = run(c, data, kImages, {.ranks = ranks, .exact = true});
      CHECK(several.loss == one.loss);
      CHECK(several.gradients == one.gradients);
    }
  }
}

TEST_CASE("a batch without labels has loss and gradient zero", "[ranks]") {
  constexpr int64_t kImages = 3;
  const Data data = data_of(kImages, false);
  for (LossCase c : loss_cases()) {
    if (c.boxes) continue;  // negatives are examples
    c.options.presence_weight = 0;
    INFO(c.name);
    for (const int ranks : {1, 2}) {
      const Outcome o = run(c, data, kImages, {.ranks = ranks});
      CHECK(o.loss == 0);
      CHECK(length(o.gradients) == 0);
    }
  }
}

TEST_CASE("the Lovasz loss of a whole batch is refused where the batch is divided", "[ranks]") {
  const LossCase c{"lovasz of the batch", {.kind = LossKind::kLovasz, .legacy = true}};
  const Data data = data_of(2);
  CHECK(run(c, data, 2, {}).loss > 0);
  Context context({.threads = 1});
  ParamStore store;
  Graph graph(context, store);
  graph.set_global_batch({.images = 4});
  const Value logits = graph.input("logits", DType::kF32, {2, 3, 4, 4}),
              target = graph.input("target", DType::kI32, {2, 4, 4});
  CHECK_THROWS_WITH(segmentation_loss({{"out0", logits}}, target, c.options), Catch::Contains("per image"));
}

}  // namespace convoy
