// kernels/dice.cu and kernels/lovasz.cu in the emulator against the CPU twins.
#include <climits>

#include "kernels/region_losses.h"
#include "tests/emulator/twins.h"

namespace convoy::test {
namespace {

struct Outcome {
  std::vector<float> loss{0}, gradient;
  int64_t fault = 0;  // INT64_MAX: none
};

std::vector<int32_t> labels(int64_t count, int64_t classes) {
  const golden::Stream u("labels");
  std::vector<int32_t> t(static_cast<size_t>(count));
  for (size_t i = 0; i < t.size(); ++i)
    t[i] = i % 6 == 4 ? 255 : static_cast<int32_t>(u[i / 3] * static_cast<double>(classes));
  return t;
}

/// Logits of a few kinds of pixels, so that many errors are equal, and equal on all devices.
std::vector<float> logits_with_equals(const Shape& s, DType t) {
  constexpr int64_t kKinds = 9;
  const auto kinds = typed_values("kinds", kKinds * s.c, t, 4);
  const golden::Stream u("pixels");
  std::vector<float> x(static_cast<size_t>(s.count()));
  const int64_t pixels = s.h * s.w;
  for (int64_t n = 0; n < s.n; ++n)
    for (int64_t p = 0; p < pixels; ++p) {
      const auto kind = static_cast<int64_t>(u[static_cast<size_t>(n * pixels + p)] * kKinds);
      for (int64_t c = 0; c < s.c; ++c)
        x[static_cast<size_t>((n * s.c + c) * pixels + p)] = kinds[static_cast<size_t>(kind * s.c + c)];
    }
  return x;
}

/// Runs a loss in all orders: launch(logits, labels, loss, d_logits, fault) enqueues it.
template <class F>
Outcome on_device(const Shape& s, DType t, Placement placement, const std::vector<float>& logits,
                  const std::vector<int32_t>& target, bool gradient, F launches) {
  Outcome outcome;
  const Results r = over_orders([&] {
    const DeviceImage x(s, t, placement, logits), dx(s, t, placement);
    const DeviceBuffer<int32_t> labels_of(target);
    const DeviceBuffer<float> loss(1);
    const DeviceBuffer<int64_t> fault(std::vector<int64_t>{INT64_MAX});
    View d_logits = dx.view();
    if (!gradient) d_logits.data = nullptr;
    launches(x.view(), labels_of.data(), loss.data(), d_logits, fault.data());
    outcome.fault = fault.host()[0];
    Results results{loss.host()};
    if (gradient) results.push_back(dx.values());
    return results;
  });
  outcome.loss = r[0];
  if (gradient) outcome.gradient = r[1];
  return outcome;
}

void compare(const Outcome& got, const Outcome& want, double tolerance_of_gradient, bool gradient) {
  CHECK(relative_error(got.loss, want.loss) <= 4e-6);
  if (gradient) CHECK(relative_error(got.gradient, want.gradient) <= tolerance_of_gradient);
  CHECK(got.fault == want.fault);
}

struct DiceOptions {
  const float* counts = nullptr;
  float smooth = 1;
  bool gradient = true;
};

Outcome device_dice(const Shape& s, DType t, Placement placement, const std::vector<float>& logits,
                    const std::vector<int32_t>& target, const DiceOptions& o) {
  return on_device(s, t, placement, logits, target, o.gradient,
                   [&](const View& x, const int32_t* labels_of, float* loss, const View& d_logits, int64_t* fault) {
                     const DeviceBuffer<unsigned char> workspace(dice_cuda_workspace_bytes(x));
                     const DeviceBuffer<float> counts(std::vector<float>(o.counts ? o.counts : logits.data(),
                                                                         (o.counts ? o.counts : logits.data()) + s.c));
                     device::dice_loss(nullptr, x, labels_of, 255, o.counts ? counts.data() : nullptr, o.smooth,
                                       static_cast<double>(s.n), loss, d_logits, fault, workspace.data());
                   });
}

Outcome cpu_dice(const Shape& s, const std::vector<float>& logits, const std::vector<int32_t>& target,
                 const DiceOptions& o) {
  const TestTensor x = cpu_tensor(s, logits), dx = cpu_tensor(s);
  std::vector<double> workspace(dice_workspace_bytes(x.view()) / sizeof(double));
  int64_t classes = s.c, bad = -2;
  while (o.counts && classes > 1 && o.counts[classes - 1] == 0) --classes;
  Outcome r;
  CONVOY_CPU(dice_loss, x.view(), target.data(), 255, classes, o.smooth,
             static_cast<float>(1.0 / static_cast<double>(s.n * classes)), r.loss.data(), dx.view(), &bad,
             workspace.data());
  r.fault = bad < 0 ? INT64_MAX : bad;
  r.gradient = dx.values();
  return r;
}

TEST_CASE("dice loss equals the CPU's", "[region_losses]") {
  size_t turn = 0;
  for (const Shape s : {Shape{1, 1, 1, 1}, Shape{2, 19, 9, 5}, Shape{1, 33, 17, 16}, Shape{2, 3, 37, 61},
                        Shape{1, 70, 5, 7}, Shape{3, 8, 1, 3}})
    for (const DType t : kFloatTypes) {
      const Placement placement = kPlacements[turn % 4];
      INFO(describe(s, t, placement));
      const auto logits = typed_values("logits", s.count(), t, 5);
      const auto target = labels(s.n * s.h * s.w, s.c);
      std::vector<float> counts(static_cast<size_t>(s.c), 0);
      counts[static_cast<size_t>(s.c / 2)] = 3;
      const DiceOptions o{
          .counts = turn % 2 ? counts.data() : nullptr, .smooth = turn % 3 ? 1.f : 0.f, .gradient = turn % 5 != 4};
      ++turn;
      compare(device_dice(s, t, placement, logits, target, o), cpu_dice(s, logits, target, o), 2 * tolerance(t),
              o.gradient);
    }
}

TEST_CASE("dice loss reports the first wrong label and skips it", "[region_losses]") {
  const Shape s{2, 5, 7, 9};
  const auto logits = random_values("logits", s.count(), 5);
  auto target = labels(s.n * s.h * s.w, s.c);
  target[100] = -1;
  target[70] = 5;
  const Outcome want = cpu_dice(s, logits, target, {});
  CHECK(want.fault == 70);
  compare(device_dice(s, DType::kF32, Placement::kDense, logits, target, {}), want, tolerance(DType::kF32), true);
}

Outcome device_lovasz(const Shape& s, DType t, Placement placement, const std::vector<float>& logits,
                      const std::vector<int32_t>& target, bool per_image, bool gradient = true) {
  return on_device(s, t, placement, logits, target, gradient,
                   [&](const View& x, const int32_t* labels_of, float* loss, const View& d_logits, int64_t* fault) {
                     const DeviceBuffer<unsigned char> workspace(lovasz_cuda_workspace_bytes(x, per_image));
                     device::lovasz_loss(nullptr, x, labels_of, 255, per_image, 0.5f, loss, d_logits, fault,
                                         workspace.data());
                   });
}

Outcome cpu_lovasz(const Shape& s, const std::vector<float>& logits, const std::vector<int32_t>& target,
                   bool per_image) {
  const TestTensor x = cpu_tensor(s, logits), dx = cpu_tensor(s);
  std::vector<double> workspace(lovasz_workspace_bytes(x.view(), per_image, 1) / sizeof(double) + 1);
  int64_t bad = -2;
  Outcome r;
  CONVOY_CPU(lovasz_loss, x.view(), target.data(), 255, per_image, 0.5f, r.loss.data(), dx.view(), &bad, 1,
             workspace.data());
  r.fault = bad < 0 ? INT64_MAX : bad;
  r.gradient = dx.values();
  return r;
}

TEST_CASE("Lovasz-Softmax equals the CPU's, equal errors in the order of pixels", "[region_losses]") {
  size_t turn = 0;
  // Lists of one block and of two; more lists than are sorted at a time.
  for (const Shape s : {Shape{1, 1, 1, 1}, Shape{2, 9, 9, 5}, Shape{2, 3, 17, 16}, Shape{3, 8, 1, 3},
                        Shape{1, 2, 67, 71}, Shape{3, 100, 1, 2}}) {
    const DType t = kFloatTypes[turn % 3];
    for (const bool per_image : {true, false}) {
      if (s.c == 100 && !per_image) continue;
      const Placement placement = kPlacements[turn % 4];
      INFO(describe(s, t, placement) << " per image " << per_image);
      const auto logits = logits_with_equals(s, t);
      const auto target = labels(s.n * s.h * s.w, s.c);
      const bool gradient = turn++ % 7 != 6;
      compare(device_lovasz(s, t, placement, logits, target, per_image, gradient),
              cpu_lovasz(s, logits, target, per_image), 3 * tolerance(t), gradient);
    }
  }
}

TEST_CASE("Lovasz-Softmax of images without labels, with wrong labels and with NaN", "[region_losses]") {
  const Shape s{2, 4, 6, 5};
  auto logits = logits_with_equals(s, DType::kF32);
  auto target = labels(60, 4);
  std::fill(target.begin(), target.begin() + 30, 255);  // the first image
  target[50] = -3;
  target[40] = 4;
  const Outcome want = cpu_lovasz(s, logits, target, true);
  CHECK(want.fault == 40);
  compare(device_lovasz(s, DType::kF32, Placement::kPadded, logits, target, true), want, 1e-5, true);
  std::fill(target.begin(), target.end(), 255);
  const Outcome nothing = device_lovasz(s, DType::kF32, Placement::kPadded, logits, target, false);
  CHECK(nothing.loss[0] == 0);
  CHECK(std::count(nothing.gradient.begin(), nothing.gradient.end(), 0.f) == s.count());
  target[3] = 1;
  logits[3] = NAN;
  CHECK(std::isnan(device_lovasz(s, DType::kF32, Placement::kPadded, logits, target, true).loss[0]));
}

}  // namespace
}  // namespace convoy::test
