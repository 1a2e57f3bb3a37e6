// kernels/batch_norm.cu in the emulator against the CPU twins.
#include <barrier>
#include <thread>

#include "kernels/batch_norm.h"
#include "tests/emulator/twins.h"

namespace convoy::test {
namespace {

constexpr float kEps = 1e-5f;

// More rows than one part of the first stage has, too; one placement is enough there.
template <class F>
void for_all_batch_norm_images(F f) {
  for_all_images(twin_shapes(), f);
  const Shape many_rows{2, 3, 23, 29};
  for (const DType t : kFloatTypes) f(many_rows, t, Placement::kAlignedSlice);
}

float* data(std::vector<float>& v) {
  return v.data();
}

std::vector<float> floats(int64_t count) {
  return std::vector<float>(static_cast<size_t>(count));
}

TEST_CASE("batch norm statistics equal the CPU's") {
  for_all_batch_norm_images([](Shape s, DType t, Placement p) {
    const auto x = typed_values("x", s.count(), t, 2, 30);
    const Results got = over_orders([&] {
      const DeviceImage dx(s, t, p, x);
      const DeviceBuffer<float> mean(static_cast<size_t>(s.c)), var(static_cast<size_t>(s.c)),
          workspace(static_cast<size_t>(bn_workspace(dx.view())));
      device::bn_stats(nullptr, dx.view(), mean.data(), var.data(), workspace.data());
      return Results{mean.host(), var.host()};
    });
    const TestTensor cx = cpu_tensor(s, x);
    auto mean = floats(s.c), var = floats(s.c), workspace = floats(bn_workspace(cx.view()));
    CONVOY_CPU(bn_stats, cx.view(), data(mean), data(var), data(workspace));
    CHECK(relative_error(got[0], mean) <= 1e-6);
    CHECK(relative_error(got[1], var) <= 3e-5);
  });
}

TEST_CASE("batch norm with residual and activation equals the CPU's") {
  for_all_images(twin_shapes(), [](Shape s, DType t, Placement p) {
    const auto x = typed_values("x", s.count(), t, 4, 1), residual = typed_values("residual", s.count(), t, 3);
    const auto mean = random_values("mean", s.c, 1, 1), var = random_values("var", s.c, 0.9, 1);
    const auto gamma = random_values("gamma", s.c, 1, 1), beta = random_values("beta", s.c);
    for (const Activation act : {Activation::kNone, Activation::kRelu, Activation::kRelu6})
      for (const bool with_residual : {false, true}) {
        INFO("activation " << static_cast<int>(act) << " residual " << with_residual);
        const Results got = over_orders([&] {
          const DeviceImage dx(s, t, p, x), dr(s, t, p, residual), y(s, t, p);
          const DeviceBuffer<float> dmean(mean), dvar(var), dgamma(gamma), dbeta(beta);
          device::bn_apply(nullptr, dx.view(), with_residual ? &dr.view() : nullptr, dmean.data(), dvar.data(),
                           dgamma.data(), dbeta.data(), kEps, act, y.view());
          return Results{y.values()};
        });
        const TestTensor cx = cpu_tensor(s, x), cr = cpu_tensor(s, residual), y = cpu_tensor(s);
        CONVOY_CPU(bn_apply, cx.view(), with_residual ? &cr.view() : nullptr, mean.data(), var.data(), gamma.data(),
                   beta.data(), kEps, act, y.view());
        CHECK(relative_error(got[0], y.values()) <= tolerance(t));
      }
  });
}

TEST_CASE("running statistics equal the CPU's") {
  for (const int64_t channels : {1, 19, 64, 300}) {
    const auto mean = random_values("mean", channels), var = random_values("var", channels, 1, 2);
    auto running_mean = random_values("running_mean", channels),
         running_var = random_values("running_var", channels, 1, 3);
    const Results got = over_orders([&] {
      const DeviceBuffer<float> dmean(mean), dvar(var), drunning_mean(running_mean), drunning_var(running_var);
      const DeviceBuffer<int64_t> tracked(std::vector<int64_t>{41});
      device::bn_update_running(nullptr, dmean.data(), dvar.data(), 15, 0.1f, drunning_mean.data(), drunning_var.data(),
                                tracked.data(), channels);
      CHECK(tracked.host()[0] == 42);
      return Results{drunning_mean.host(), drunning_var.host()};
    });
    int64_t tracked = 41;
    CONVOY_CPU(bn_update_running, mean.data(), var.data(), 15, 0.1f, running_mean.data(), running_var.data(), &tracked,
               channels);
    CHECK(relative_error(got[0], running_mean) <= 1e-6);
    CHECK(relative_error(got[1], running_var) <= 1e-6);
  }
}

TEST_CASE("batch norm gradients equal the CPU's") {
  for_all_batch_norm_images([](Shape s, DType t, Placement p) {
    const auto x = typed_values("x", s.count(), t, 2, 1), dy = typed_values("dy", s.count(), t);
    auto y = typed_values("y", s.count(), t, 5, 3);
    for (float& v : y) v = std::min(std::max(v, 0.f), 6.f);
    const auto mean = random_values("mean", s.c, 1, 1), var = random_values("var", s.c, 0.9, 1);
    const auto gamma = random_values("gamma", s.c, 1, 1);
    const int64_t count = s.n * s.h * s.w;
    for (const Activation act : {Activation::kNone, Activation::kRelu, Activation::kRelu6})
      for (const bool frozen : {false, true}) {
        if (frozen && act == Activation::kRelu6) continue;  // as kRelu
        INFO("activation " << static_cast<int>(act) << " frozen " << frozen);
        const Results got = over_orders([&] {
          const DeviceImage dx_in(s, t, p, x), ddy(s, t, p, dy), dy_in(s, t, p, y), dx(s, t, p), masked(s, t, p);
          const DeviceBuffer<float> dmean(mean), dvar(var), dgamma(gamma), sum(static_cast<size_t>(s.c)),
              product(static_cast<size_t>(s.c)), workspace(static_cast<size_t>(bn_workspace(dx_in.view())));
          const View* mask = act == Activation::kNone ? nullptr : &dy_in.view();
          device::bn_backward_reduce(nullptr, ddy.view(), mask, dx_in.view(), dmean.data(), dvar.data(), kEps, act,
                                     sum.data(), product.data(), workspace.data());
          device::bn_backward_apply(nullptr, ddy.view(), mask, dx_in.view(), dmean.data(), dvar.data(), dgamma.data(),
                                    kEps, act, frozen ? nullptr : sum.data(), product.data(), count, dx.view(),
                                    frozen ? nullptr : &masked.view());
          Results r{sum.host(), product.host(), dx.values()};
          if (!frozen) r.push_back(masked.values());
          return r;
        });
        const TestTensor cx = cpu_tensor(s, x), cdy = cpu_tensor(s, dy), cy = cpu_tensor(s, y), cdx = cpu_tensor(s),
                         masked = cpu_tensor(s);
        auto sum = floats(s.c), product = floats(s.c), workspace = floats(bn_workspace(cx.view()));
        const View* mask = act == Activation::kNone ? nullptr : &cy.view();
        CONVOY_CPU(bn_backward_reduce, cdy.view(), mask, cx.view(), mean.data(), var.data(), kEps, act, data(sum),
                   data(product), data(workspace));
        CONVOY_CPU(bn_backward_apply, cdy.view(), mask, cx.view(), mean.data(), var.data(), gamma.data(), kEps, act,
                   frozen ? nullptr : sum.data(), product.data(), count, cdx.view(), frozen ? nullptr : &masked.view());
        CHECK(relative_error(got[0], sum) <= 3e-5);
        CHECK(relative_error(got[1], product) <= 3e-5);
        CHECK(relative_error(got[2], cdx.values()) <= 3 * tolerance(t));
        if (!frozen) CHECK(bits(got[3]) == bits(masked.values()));
      }
  });
}

TEST_CASE("a gradient through an activation needs its output") {
  const Shape s{1, 8, 2, 2};
  const DeviceImage x(s, DType::kF32, Placement::kDense, random_values("x", s.count()));
  CHECK_THROWS_AS(device::bn_backward_reduce(nullptr, x.view(), nullptr, x.view(), nullptr, nullptr, kEps,
                                             Activation::kRelu, nullptr, nullptr, nullptr),
                  std::invalid_argument);
}

TEST_CASE("ranks as threads: statistics of shards merge to those of the whole") {
  constexpr size_t kRanks = 4;
  constexpr int64_t kChannels = 19;
  std::vector<std::vector<float>> shards(kRanks), means(kRanks), vars(kRanks);
  std::vector<Shape> shapes;
  for (size_t r = 0; r < kRanks; ++r) {
    shapes.push_back({1, kChannels, 20 + static_cast<int64_t>(r), 31});
    shards[r] = random_values("shard" + std::to_string(r), shapes[r].count(), 2, 5);
  }
  std::vector<std::vector<double>> merged(kRanks);
  std::barrier gathered(kRanks);
  const auto rank = [&](size_t r) {
    const DeviceImage x(shapes[r], DType::kF32, Placement::kDense, shards[r]);
    const DeviceBuffer<float> mean(kChannels), var(kChannels), workspace(static_cast<size_t>(bn_workspace(x.view())));
    for (int step = 0; step < 5; ++step) {
      device::bn_stats(nullptr, x.view(), mean.data(), var.data(), workspace.data());
      means[r] = mean.host();
      vars[r] = var.host();
      gathered.arrive_and_wait();
      merged[r].clear();
      for (size_t c = 0; c < kChannels; ++c) {
        double count = 0, m = 0, squares = 0;
        for (size_t k = 0; k < kRanks; ++k) {
          const double rows = static_cast<double>(shapes[k].h * shapes[k].w), delta = means[k][c] - m;
          squares += vars[k][c] * rows + delta * delta * count * rows / (count + rows);
          m += delta * rows / (count + rows);
          count += rows;
        }
        merged[r].push_back(squares / count);
      }
      gathered.arrive_and_wait();
    }
  };
  std::vector<std::thread> threads;
  for (size_t r = 0; r < kRanks; ++r) threads.emplace_back(rank, r);
  for (auto& t : threads) t.join();
  for (size_t c = 0; c < kChannels; ++c) {
    double count = 0, sum = 0, squares = 0;
    const auto each = [&](auto f) {
      for (size_t r = 0; r < kRanks; ++r)
        for (int64_t i = 0; i < shapes[r].h * shapes[r].w; ++i)
          f(static_cast<double>(
              shards[r][c * static_cast<size_t>(shapes[r].h * shapes[r].w) + static_cast<size_t>(i)]));
    };
    each([&](double v) { sum += v, count += 1; });
    each([&](double v) { squares += (v - sum / count) * (v - sum / count); });
    CHECK(merged[0][c] == Approx(squares / count).epsilon(1e-4));
    for (size_t r = 1; r < kRanks; ++r) CHECK(merged[r][c] == merged[0][c]);
  }
}

}  // namespace
}  // namespace convoy::test
