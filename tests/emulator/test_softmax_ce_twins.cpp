// kernels/softmax_ce.cu in the emulator against the CPU twins.
#include <climits>

#include "kernels/softmax_ce.h"
#include "tests/emulator/twins.h"

namespace convoy::test {
namespace {

struct Problem {
  Shape logits;
  int64_t H, W;
  bool align_corners;
};

/// No resize; factors below, at and above a tile's; one source pixel; fewer output than source pixels; more classes
/// than one chunk; pixels of several tiles in both directions.
const std::vector<Problem>& problems() {
  static const std::vector<Problem> all = {
      {{1, 1, 1, 1}, 1, 1, true},    {{2, 19, 5, 7}, 5, 7, false},   {{1, 33, 9, 40}, 9, 40, true},
      {{2, 19, 3, 6}, 24, 48, true}, {{1, 19, 4, 9}, 32, 72, false}, {{2, 3, 5, 7}, 9, 40, false},
      {{1, 33, 1, 1}, 17, 35, true}, {{1, 64, 2, 3}, 7, 11, false},  {{3, 8, 9, 41}, 4, 10, false},
      {{1, 2, 20, 300}, 3, 5, true}, {{1, 19, 5, 2}, 5, 9, true},    {{1, 70, 3, 2}, 3, 4, false}};
  return all;
}

/// Calls f(problem, dtype, placement) with every dtype for every problem and placements in turn.
template <class F>
void for_all_problems(F f) {
  size_t turn = 0;
  for (const Problem& p : problems())
    for (const DType t : kFloatTypes) {
      const Placement placement = kPlacements[turn++ % 4];
      INFO(describe(p.logits, t, placement) << " to " << p.H << "x" << p.W << " align_corners " << p.align_corners);
      f(p, t, placement);
    }
}

std::vector<int32_t> labels(int64_t count, int64_t classes, int32_t ignore) {
  const golden::Stream u("labels");
  std::vector<int32_t> t(static_cast<size_t>(count));
  for (size_t i = 0; i < t.size(); ++i) {
    t[i] = static_cast<int32_t>(u[i] * static_cast<double>(classes));
    if (i % 5 == 2) t[i] = ignore;
  }
  return t;
}

struct Options {
  bool weighted = false, focal = false, gradient = true;
  float gamma = 2, normalizer = 37.5f;
  int32_t ignore = 255;
};
struct Outcome {
  std::vector<float> loss, gradient;
  int64_t fault = 0;  // INT64_MAX: none
};

Outcome on_device(const Problem& p, DType t, Placement placement, const std::vector<float>& logits,
                  const std::vector<int32_t>& target, const std::vector<float>& weights, const Options& o) {
  Outcome outcome;
  const Results r = over_orders([&] {
    const DeviceImage x(p.logits, t, placement, logits), dx(p.logits, t, placement);
    const DeviceBuffer<int32_t> labels_of(target);
    const DeviceBuffer<float> class_weight(weights), normalizer(std::vector<float>{o.normalizer}), loss(1);
    const DeviceBuffer<int64_t> fault(std::vector<int64_t>{INT64_MAX});
    const DeviceBuffer<unsigned char> workspace(softmax_ce_cuda_workspace_bytes(x.view(), p.H, p.W, p.align_corners));
    View d_logits = dx.view();
    if (!o.gradient) d_logits.data = nullptr;
    const float* w = o.weighted ? class_weight.data() : nullptr;
    if (o.focal)
      device::upsample_focal_ce(nullptr, x.view(), labels_of.data(), p.H, p.W, p.align_corners, o.ignore, w,
                                normalizer.data(), 0.5f, o.gamma, loss.data(), d_logits, fault.data(),
                                workspace.data());
    else
      device::upsample_softmax_ce(nullptr, x.view(), labels_of.data(), p.H, p.W, p.align_corners, o.ignore, w,
                                  normalizer.data(), loss.data(), d_logits, fault.data(), workspace.data());
    outcome.fault = fault.host()[0];
    Results results{loss.host()};
    if (o.gradient) results.push_back(dx.values());
    return results;
  });
  outcome.loss = r[0];
  if (o.gradient) outcome.gradient = r[1];
  return outcome;
}

Outcome on_cpu(const Problem& p, const std::vector<float>& logits, const std::vector<int32_t>& target,
               const std::vector<float>& weights, const Options& o) {
  const TestTensor x = cpu_tensor(p.logits, logits), dx = cpu_tensor(p.logits);
  std::vector<float> workspace(softmax_ce_workspace_bytes(x.view()) / sizeof(float));
  Outcome r;
  r.loss.resize(1);
  const float* w = o.weighted ? weights.data() : nullptr;
  int64_t bad = -1;
  if (o.focal)
    CONVOY_CPU(upsample_focal_ce, x.view(), target.data(), p.H, p.W, p.align_corners, o.ignore, w, &o.normalizer, 0.5f,
               o.gamma, r.loss.data(), dx.view(), &bad, workspace.data());
  else
    CONVOY_CPU(upsample_softmax_ce, x.view(), target.data(), p.H, p.W, p.align_corners, o.ignore, w, &o.normalizer,
               r.loss.data(), dx.view(), &bad, workspace.data());
  r.fault = bad < 0 ? INT64_MAX : bad;
  r.gradient = dx.values();
  return r;
}

void compare(const Outcome& got, const Outcome& want, DType t) {
  CHECK(relative_error(got.loss, want.loss) <= 3e-6);
  CHECK(relative_error(got.gradient, want.gradient) <= 2 * tolerance(t));
  CHECK(got.fault == want.fault);
}

TEST_CASE("softmax cross entropy equals the CPU's", "[softmax_ce]") {
  int turn = 0;
  for_all_problems([&](const Problem& p, DType t, Placement placement) {
    const auto logits = typed_values("logits", p.logits.count(), t, 6, 1);
    const auto target = labels(p.logits.n * p.H * p.W, p.logits.c, 255);
    const auto weights = random_values("weights", p.logits.c, 0.5, 1);
    const Options o{.weighted = turn++ % 2 == 0};
    compare(on_device(p, t, placement, logits, target, weights, o), on_cpu(p, logits, target, weights, o), t);
  });
}

TEST_CASE("focal cross entropy equals the CPU's", "[softmax_ce]") {
  int turn = 0;
  for (const Problem& p : {problems()[1], problems()[4], problems()[7]})
    for (const float gamma : {0.f, 2.f, 0.7f}) {
      const DType t = kFloatTypes[turn % 3];
      INFO(describe(p.logits, t, Placement::kPadded) << " gamma " << gamma);
      // Some pixels are certain of their class: (1 - p) vanishes there.
      auto logits = typed_values("logits", p.logits.count(), t, 6, 1);
      for (size_t i = 0; i < logits.size(); i += 7) logits[i] *= 8;
      const auto target = labels(p.logits.n * p.H * p.W, p.logits.c, -1);
      const auto weights = random_values("weights", p.logits.c, 0.5, 1);
      const Options o{.weighted = turn++ % 2 == 0, .focal = true, .gamma = gamma, .ignore = -1};
      compare(on_device(p, t, Placement::kPadded, logits, target, weights, o), on_cpu(p, logits, target, weights, o),
              t);
    }
}

TEST_CASE("cross entropy without a gradient, without labels, and divided by 0", "[softmax_ce]") {
  const Problem p{{2, 19, 3, 5}, 12, 20, true};
  const auto logits = random_values("logits", p.logits.count(), 5);
  const std::vector<float> none{0}, zeros(logits.size()), weights(19, 1.f);
  auto target = labels(2 * 12 * 20, 19, 255);
  Options o;
  const Outcome want = on_cpu(p, logits, target, weights, o);
  o.gradient = false;
  CHECK(relative_error(on_device(p, DType::kF32, Placement::kDense, logits, target, weights, o).loss, want.loss) <=
        3e-6);
  o.gradient = true;
  o.normalizer = 0;
  Outcome got = on_device(p, DType::kF32, Placement::kDense, logits, target, weights, o);
  CHECK(got.loss == none);
  CHECK(relative_error(got.gradient, zeros) == 0);
  target.assign(target.size(), 255);
  o.normalizer = 1;
  got = on_device(p, DType::kF32, Placement::kDense, std::vector<float>(logits.size(), NAN), target, weights, o);
  CHECK(got.loss == none);
  CHECK(relative_error(got.gradient, zeros) == 0);
  CHECK(got.fault == INT64_MAX);
}

TEST_CASE("the first label that is no class is reported and skipped", "[softmax_ce]") {
  for (const Problem& p : {Problem{{2, 19, 5, 7}, 5, 7, true}, Problem{{2, 19, 3, 5}, 12, 40, false}}) {
    const auto logits = random_values("logits", p.logits.count(), 5);
    const std::vector<float> weights(19, 1.f);
    auto target = labels(2 * p.H * p.W, 19, 255);
    target[target.size() - 1] = 19;
    target[target.size() - 20] = -7;
    const Outcome want = on_cpu(p, logits, target, weights, {});
    CHECK(want.fault == static_cast<int64_t>(target.size()) - 20);
    compare(on_device(p, DType::kF32, Placement::kDense, logits, target, weights, {}), want, DType::kF32);
  }
}

TEST_CASE("NaN logits show in the loss and in the gradients around them alone", "[softmax_ce]") {
  const Problem p{{1, 3, 4, 6}, 16, 24, false};
  auto logits = random_values("logits", p.logits.count(), 5);
  logits[6 + 4] = NAN;  // row 1, column 4
  const std::vector<float> weights(3, 1.f);
  const auto target = labels(16 * 24, 3, 255);
  const Outcome got = on_device(p, DType::kF32, Placement::kDense, logits, target, weights, {});
  CHECK(std::isnan(got.loss[0]));
  for (int64_t i = 0; i < 24; ++i) {
    const int64_t row = i / 6, column = i % 6;
    CHECK(std::isnan(got.gradient[static_cast<size_t>(i)]) == (row <= 2 && column >= 3));
  }
}

TEST_CASE("probabilities of the labels equal the CPU's", "[softmax_ce]") {
  for_all_problems([&](const Problem& p, DType t, Placement placement) {
    const auto logits = typed_values("logits", p.logits.count(), t, 6, 1);
    auto target = labels(p.logits.n * p.H * p.W, p.logits.c, 255);
    target[target.size() / 2] = -3;  // for the loss to report
    const Results got = over_orders([&] {
      const DeviceImage x(p.logits, t, placement, logits);
      const DeviceBuffer<int32_t> labels_of(target);
      const DeviceBuffer<float> probability(target.size());
      device::upsample_label_probability(nullptr, x.view(), labels_of.data(), p.H, p.W, p.align_corners, 255,
                                         probability.data());
      return Results{probability.host()};
    });
    const TestTensor x = cpu_tensor(p.logits, logits);
    std::vector<float> workspace(softmax_ce_workspace_bytes(x.view()) / sizeof(float)), want(target.size());
    CONVOY_CPU(upsample_label_probability, x.view(), target.data(), p.H, p.W, p.align_corners, 255, want.data(),
               workspace.data());
    CHECK(relative_error(got[0], want) <= 2e-6);
    for (size_t i = 0; i < want.size(); ++i) CHECK((got[0][i] == kNoProbability) == (want[i] == kNoProbability));
  });
}

TEST_CASE("sums of class weights equal the CPU's", "[softmax_ce]") {
  const auto weights = random_values("weights", 19, 0.5, 1);
  for (const int64_t count : {1, 255, 1000, 20001})
    for (const bool weighted : {false, true}) {
      auto target = labels(count, 19, 255);
      for (size_t i = 0; i < target.size(); i += 11) target[i] = i % 2 ? -1 : 19;
      const Results got = over_orders([&] {
        const DeviceBuffer<int32_t> labels_of(target);
        const DeviceBuffer<float> class_weight(weights), sum(1);
        const DeviceBuffer<double> workspace(static_cast<size_t>(label_weight_sum_parts(count)));
        device::label_weight_sum(nullptr, labels_of.data(), count, 19, 255, weighted ? class_weight.data() : nullptr,
                                 sum.data(), workspace.data());
        return Results{sum.host()};
      });
      std::vector<float> want(1);
      CONVOY_CPU(label_weight_sum, target.data(), count, 19, 255, weighted ? weights.data() : nullptr, want.data());
      CHECK(relative_error(got[0], want) <= (weighted ? 1e-7 : 0));
    }
}

TEST_CASE("cross entropy refuses layouts that it has no kernel for", "[softmax_ce]") {
  const TestTensor x = cpu_tensor({1, 2, 3, 4});
  CHECK_THROWS_WITH(device::upsample_label_probability(nullptr, x.view(), nullptr, 3, 4, true, 255, nullptr),
                    Catch::Contains("upsample_label_probability") && Catch::Contains("blocked, expected nhwc"));
}

}  // namespace
}  // namespace convoy::test
