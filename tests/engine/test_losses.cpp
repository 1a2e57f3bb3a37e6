// Losses against plain loops in double: the default definitions, which the reference's figures do not show; selections
// with equal values; refusals.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <numeric>

#include "layers/losses.h"
#include "tests/op_runner.h"

namespace convoy::test {

namespace {

constexpr int64_t kImages = 3, kClasses = 7, kHeight = 5, kWidth = 6, kPixels = kHeight * kWidth;
const Shape kLogits{kImages, kClasses, kHeight, kWidth}, kTarget{kImages, kHeight, kWidth};

struct Example {
  std::vector<float> logits;
  std::vector<int32_t> target;
  std::vector<double> p;  ///< softmax, as logits

  Example() {
    logits = sym("losses", kLogits, 3).values;
    for (const float t : labels(kTarget, kClasses, -1).values) target.push_back(static_cast<int32_t>(t));
    for (int64_t i = 2 * kPixels; i < 3 * kPixels; ++i)  // the last image lacks classes
      if (target[static_cast<size_t>(i)] > 2) target[static_cast<size_t>(i)] = 0;
    p.resize(logits.size());
    for (int64_t n = 0; n < kImages; ++n)
      for (int64_t i = 0; i < kPixels; ++i) {
        double sum = 0;
        for (int64_t c = 0; c < kClasses; ++c) sum += std::exp(static_cast<double>(logits[at(n, c, i)]));
        for (int64_t c = 0; c < kClasses; ++c)
          p[at(n, c, i)] = std::exp(static_cast<double>(logits[at(n, c, i)])) / sum;
      }
  }
  static size_t at(int64_t n, int64_t c, int64_t i) { return static_cast<size_t>((n * kClasses + c) * kPixels + i); }
  int32_t label(int64_t n, int64_t i) const { return target[static_cast<size_t>(n * kPixels + i)]; }
  /// Calls f(probability of the pixel's class) for labelled pixels.
  template <class F>
  void each_labelled(F f) const {
    for (int64_t n = 0; n < kImages; ++n)
      for (int64_t i = 0; i < kPixels; ++i)
        if (label(n, i) >= 0) f(p[at(n, label(n, i), i)]);
  }
  int64_t labelled() const {
    return std::count_if(target.begin(), target.end(), [](int32_t t) { return t >= 0; });
  }
};

/// Loss and keeps_all of one output.
std::pair<float, float> run(const Example& e, const LossOptions& options) {
  Context context(on_test_device());
  ParamStore store;
  Graph graph(context, store);
  const Value logits = graph.constant(Tensor::of(kLogits, e.logits)),
              target = graph.constant(Tensor::of(kTarget, e.target));
  const SegmentationLoss loss = segmentation_loss({{"out0", logits}}, target, options);
  const float keeps_all = loss.keeps_all ? evaluate(loss.keeps_all).item() : NAN;
  return {evaluate(loss.loss).item(), keeps_all};
}

void check_loss(const Example& e, const LossOptions& options, double wanted) {
  CHECK(static_cast<double>(run(e, options).first) == Approx(wanted).epsilon(2e-6));
}

}  // namespace

TEST_CASE("the focal loss is that of each pixel", "[device]") {
  const Example e;
  for (const double gamma : {0.0, 0.5, 1.0, 2.0, 5.0}) {
    double sum = 0;
    e.each_labelled([&](double p) { sum += -0.25 * std::pow(1 - p, gamma) * std::log(p); });
    check_loss(e, {.kind = LossKind::kFocal, .focal = {.alpha = 0.25, .gamma = gamma}},
               sum / static_cast<double>(e.labelled()));
  }
}

TEST_CASE("the Dice loss counts every class of every image", "[device]") {
  const Example e;
  double sum = 0;
  for (int64_t n = 0; n < kImages; ++n)
    for (int64_t c = 0; c < kClasses; ++c) {
      double product = 0, squares = 0, positives = 0;
      for (int64_t i = 0; i < kPixels; ++i) {
        if (e.label(n, i) < 0) continue;
        const double p = e.p[Example::at(n, c, i)], t = e.label(n, i) == c;
        product += p * t;
        squares += p * p;
        positives += t;
      }
      sum += 1 - (2 * product + 1) / (squares + positives + 1);
    }
  check_loss(e, {.kind = LossKind::kDice}, sum / static_cast<double>(kImages * kClasses));
}

TEST_CASE("the Lovasz loss is the mean over images of that of the classes they have", "[device]") {
  const Example e;
  double sum = 0;
  for (int64_t n = 0; n < kImages; ++n) {
    double image = 0;
    int present = 0;
    for (int64_t c = 0; c < kClasses; ++c) {
      std::vector<std::pair<double, bool>> errors;
      for (int64_t i = 0; i < kPixels; ++i) {
        if (e.label(n, i) < 0) continue;
        const bool positive = e.label(n, i) == c;
        errors.emplace_back(std::abs((positive ? 1.0 : 0.0) - e.p[Example::at(n, c, i)]), positive);
      }
      std::sort(errors.rbegin(), errors.rend());
      const auto positives = std::count_if(errors.begin(), errors.end(), [](const auto& x) { return x.second; });
      if (positives == 0) continue;
      ++present;
      // The Lovasz extension by its definition: sum of e_k (J({1..k}) - J({1..k-1})), J = 1 - intersection / union.
      double before = 0;
      int64_t hit = 0, missed = 0;
      for (const auto& [error, positive] : errors) {
        (positive ? hit : missed) += 1;
        const double jaccard = 1 - static_cast<double>(positives - hit) / static_cast<double>(positives + missed);
        image += error * (jaccard - before);
        before = jaccard;
      }
    }
    sum += image / present;
  }
  check_loss(e, {.kind = LossKind::kLovasz}, sum / kImages);
}

TEST_CASE("OHEM keeps the pixels at or below its threshold", "[device]") {
  const Example e;
  std::vector<double> hardest;
  e.each_labelled([&](double p) { hardest.push_back(p); });
  std::sort(hardest.begin(), hardest.end());
  const auto count = static_cast<int64_t>(hardest.size());
  const auto mean_of = [&](int64_t kept) {
    return std::accumulate(hardest.begin(), hardest.begin() + kept, 0.0,
                           [](double sum, double p) { return sum - std::log(p); }) /
           static_cast<double>(kept);
  };
  const auto ohem = [](double thresh, int64_t min_kept) {
    return LossOptions{.kind = LossKind::kOhem, .ohem_thresh = thresh, .ohem_min_kept = min_kept};
  };
  for (const int64_t k : {int64_t{1}, int64_t{2}, count / 3, count - 1, count}) check_loss(e, ohem(0, k), mean_of(k));
  const auto below = std::count_if(hardest.begin(), hardest.end(), [](double p) { return p <= 0.3; });
  REQUIRE(below > 3);
  check_loss(e, ohem(0.3, 3), mean_of(below));
  check_loss(e, ohem(0.3, 0), mean_of(below));
  CHECK(run(e, ohem(0.3, 3)).second == 0);
  check_loss(e, ohem(0.3, count + 1), mean_of(count));
  CHECK(run(e, ohem(0.3, count + 1)).second == 1);

  // Pixels as hard as the last one that is kept are kept, too.
  Example equal;
  std::fill(equal.logits.begin(), equal.logits.end(), 0.0f);
  check_loss(equal, ohem(0, 1), std::log(static_cast<double>(kClasses)));
}

TEST_CASE("hard pixels behind a resize: no full-size logits are made", "[device]") {
  Context context(on_test_device());
  ParamStore store;
  Graph graph(context, store);
  const Value small = graph.input("logits", DType::kF32, {2, 19, 4, 5}),
              target = graph.input("target", DType::kI32, {2, 16, 20});
  const Value loss =
      segmentation_loss({{"out0", resize_bilinear(small, 16, 20)}}, target, {.kind = LossKind::kOhem}).loss;
  const std::vector<Value> inputs{small};
  const Value gradient = graph.differentiate(loss, inputs)[0];
  const std::string plan = Session(graph, {loss, gradient}).plan().dump();
  CHECK_THAT(plan, Catch::Contains("upsample_label_probability") && Catch::Contains("upsample_softmax_ce"));
  CHECK_THAT(plan, !Catch::Contains("resize_bilinear"));
}

TEST_CASE("losses name a label that is no class, and show what is not finite", "[device]") {
  for (const LossKind kind :
       {LossKind::kCrossEntropy, LossKind::kOhem, LossKind::kFocal, LossKind::kDice, LossKind::kLovasz}) {
    const LossOptions options{.kind = kind, .ohem_thresh = 0, .ohem_min_kept = 5};
    Example e;
    e.target[static_cast<size_t>(kPixels + 2 * kWidth + 3)] = kClasses;
    CHECK_THROWS_WITH(run(e, options), Catch::Contains("label 7 of image 1 at row 2, column 3"));
    Example nan;
    for (int64_t i = 0; i < kPixels; ++i) nan.logits[Example::at(1, 2, i)] = NAN;
    INFO("loss " << static_cast<int>(kind));
    CHECK(std::isnan(run(nan, options).first));
  }
}

TEST_CASE("class weights that do not fit are refused", "[device]") {
  const Example e;
  CHECK_THROWS_WITH(run(e, {.class_weights = {1, 2}}), Catch::Contains("2 class weights for 7 classes"));
  const std::vector<float> weights(kClasses, 1.0f);
  CHECK_THROWS_WITH(run(e, {.kind = LossKind::kDice, .class_weights = weights}), Catch::Contains("class weights"));
}

TEST_CASE("equally hard negatives are taken in the order of images and anchors", "[device]") {
  Context context(on_test_device());
  ParamStore store;
  Graph graph(context, store);
  constexpr int64_t kAnchors = 10, kKinds = 3;
  const Value loc = graph.input("loc", DType::kF32, {2, kAnchors, 4}),
              conf = graph.input("conf", DType::kF32, {2, kAnchors, kKinds});
  std::vector<int32_t> classes(2 * kAnchors, 0);
  classes[3] = 1;   // three negatives
  classes[15] = 2;  // three more
  const Value loss = multibox_loss(loc, conf, graph.constant(Tensor::zeros(DType::kF32, {2, kAnchors, 4})),
                                   graph.constant(Tensor::of({2, kAnchors}, classes)));
  const std::vector<Value> inputs{conf};
  const Value gradient = graph.differentiate(loss, inputs)[0];
  const std::vector<float> zero(2 * kAnchors * 4, 0.0f), equal(2 * kAnchors * kKinds, 0.5f);
  Session session(graph, {loss, gradient});
  session.bind("loc", zero.data());
  session.bind("conf", equal.data());
  session.run({});
  CHECK(session.fetch(0).item() == Approx(8 * std::log(3.0) / 2));
  std::vector<int> taken;
  const std::vector<float> d = session.fetch(1).to_floats();
  for (int i = 0; i < 2 * kAnchors; ++i)
    if (d[static_cast<size_t>(i * kKinds)] != 0) taken.push_back(i);
  CHECK(taken == std::vector<int>{0, 1, 2, 3, 4, 5, 6, 15});
}

}  // namespace convoy::test
