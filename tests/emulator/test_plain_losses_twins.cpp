// kernels/plain_losses.cu in the emulator against the CPU twins.
#include "kernels/plain_losses.h"
#include "tests/emulator/twins.h"

namespace convoy::test {
namespace {

TEST_CASE("losses of vectors equal the CPU's", "[plain_losses]") {
  for (const int64_t count : {1, 33, 700, 5000})
    for (const bool smooth : {false, true})
      for (const bool gradient : {true, false}) {
        INFO(count << " values, smooth L1 " << smooth << ", gradient " << gradient);
        auto x = random_values("x", count, 8), t = random_values("t", count, smooth ? 8 : 0.5, 0.5);
        x[0] = t[0];
        const double scale = 1.0 / static_cast<double>(count), beta = 0.75;
        const Results got = over_orders([&] {
          const DeviceBuffer<float> dx(x), dt(t), loss(1), d_x(x.size());
          const DeviceBuffer<double> workspace(static_cast<size_t>(plain_loss_parts(count)));
          float* const d = gradient ? d_x.data() : nullptr;
          if (smooth)
            device::smooth_l1(nullptr, dx.data(), dt.data(), count, beta, scale, loss.data(), d, workspace.data());
          else
            device::bce_with_logits(nullptr, dx.data(), dt.data(), count, scale, loss.data(), d, workspace.data());
          Results r{loss.host()};
          if (gradient) r.push_back(d_x.host());
          return r;
        });
        std::vector<float> loss(1), d_x(x.size());
        if (smooth)
          CONVOY_CPU(smooth_l1, x.data(), t.data(), count, beta, scale, loss.data(), d_x.data());
        else
          CONVOY_CPU(bce_with_logits, x.data(), t.data(), count, scale, loss.data(), d_x.data());
        CHECK(relative_error(got[0], loss) <= 1e-7);
        if (gradient) CHECK(relative_error(got[1], d_x) <= 1e-7);
      }
}

TEST_CASE("labels are counted as on the CPU", "[plain_losses]") {
  struct Case {
    int64_t rows, count, classes;
  };
  // More classes than shared memory is used for, too.
  for (const Case& k : {Case{1, 1, 1}, Case{3, 1000, 19}, Case{1, 9001, 19}, Case{2, 300, 5000}}) {
    INFO(k.rows << "x" << k.count << " labels of " << k.classes << " classes");
    const golden::Stream u("labels");
    std::vector<int32_t> target(static_cast<size_t>(k.rows * k.count));
    for (size_t i = 0; i < target.size(); ++i)  // runs of one class, wrong labels among them
      target[i] = i % 11 == 3 ? -1 : i % 11 == 7 ? 1 << 20 : static_cast<int32_t>(u[i / 50] * 0.9 * k.classes);
    const Results got = over_orders([&] {
      const DeviceBuffer<int32_t> labels(target);
      const DeviceBuffer<float> counts(static_cast<size_t>(k.rows * k.classes)), presence(counts.host().size());
      const DeviceBuffer<unsigned char> workspace(label_counts_cuda_workspace_bytes(k.rows, k.classes));
      device::label_counts(nullptr, labels.data(), k.rows, k.count, k.classes, counts.data(), workspace.data());
      device::class_presence(nullptr, labels.data(), k.rows, k.count, k.classes, presence.data(), workspace.data());
      return Results{counts.host(), presence.host()};
    });
    std::vector<float> want(static_cast<size_t>(k.rows * k.classes));
    CONVOY_CPU(label_counts, target.data(), k.rows, k.count, k.classes, want.data());
    CHECK(got[0] == want);
    for (float& v : want) v = v > 0 ? 1.f : 0.f;
    CHECK(got[1] == want);
  }
}

TEST_CASE("the focal loss of a mean has the formula's value and slope", "[plain_losses]") {
  for (const float mean : {0.f, 1e-6f, 0.4f, 30.f})
    for (const double gamma : {0.0, 0.5, 2.0}) {
      INFO("mean " << mean << ", gamma " << gamma);
      const float part = mean / 4;
      const DeviceBuffer<float> dpart(std::vector<float>{part}), dmean(std::vector<float>{mean}), loss(1), slope(1);
      device::focal_of_mean(nullptr, dpart.data(), dmean.data(), 0.5, gamma, loss.data(), slope.data());
      const double m = mean, q = 1 - std::exp(-m);
      const auto f = [&](double at) { return 0.5 * std::pow(-std::expm1(-at), gamma) * at; };
      CHECK(loss.host()[0] == Approx(0.5 * std::pow(-std::expm1(-m), gamma) * part).epsilon(1e-6));
      if (q > 1e-3) CHECK(slope.host()[0] == Approx((f(m + 1e-5) - f(m - 1e-5)) / 2e-5).epsilon(1e-5));
      CHECK(std::isfinite(slope.host()[0]));
    }
}

}  // namespace
}  // namespace convoy::test
