// kernels/group_norm.cu and l2_norm.cu in the emulator against the CPU twins.
#include "kernels/group_norm.h"
#include "tests/emulator/twins.h"

namespace convoy::test {
namespace {

constexpr float kEps = 1e-5f;

std::vector<float> floats(int64_t count) {
  return std::vector<float>(static_cast<size_t>(count));
}

TEST_CASE("group norm and its gradients equal the CPU's", "[group_norm]") {
  struct Case {
    Shape x;
    int64_t groups;
  };
  const std::vector<Case> cases = {{{1, 1, 2, 3}, 1},   {{2, 3, 5, 7}, 3}, {{1, 19, 9, 5}, 1},  {{2, 33, 7, 3}, 11},
                                   {{1, 64, 5, 11}, 8}, {{3, 8, 1, 3}, 2}, {{1, 300, 2, 3}, 3}, {{2, 6, 21, 15}, 2}};
  size_t turn = 0;
  for (const Case& k : cases)
    for (const DType t : kFloatTypes) {
      const Placement p = kPlacements[turn++ % 4];
      const Shape s = k.x;
      INFO(describe(s, t, p) << " groups " << k.groups);
      const auto x = typed_values("x", s.count(), t, 2, 30), dy = typed_values("dy", s.count(), t);
      const auto weight = random_values("weight", s.c, 1, 1), bias = random_values("bias", s.c);
      const size_t items = static_cast<size_t>(s.n * k.groups), channels = static_cast<size_t>(s.c);
      const TestTensor cx = cpu_tensor(s, x), cdy = cpu_tensor(s, dy), cy = cpu_tensor(s), cdx = cpu_tensor(s);
      auto mean = floats(s.n * k.groups), rstd = mean, dweight = floats(s.c), dbias = dweight;
      std::vector<double> workspace(static_cast<size_t>(group_norm_workspace(cx.view(), k.groups)));
      CONVOY_CPU(group_norm, cx.view(), weight.data(), bias.data(), k.groups, kEps, cy.view(), mean.data(), rstd.data(),
                 workspace.data());
      CONVOY_CPU(group_norm_backward, cdy.view(), cx.view(), mean.data(), rstd.data(), weight.data(), k.groups,
                 cdx.view(), dweight.data(), dbias.data(), workspace.data());
      const Results got = over_orders([&] {
        const DeviceImage in(s, t, p, x), ddy(s, t, p, dy), y(s, t, p), dx(s, t, p);
        const DeviceBuffer<float> w(weight), b(bias), dmean(items), drstd(items), m(mean), r(rstd), dw(channels),
            db(channels);
        const DeviceBuffer<double> space(device::group_norm_cuda_workspace_bytes(in.view(), k.groups) / 8 + 1);
        device::group_norm(nullptr, in.view(), w.data(), b.data(), k.groups, kEps, y.view(), dmean.data(), drstd.data(),
                           space.data());
        device::group_norm_backward(nullptr, ddy.view(), in.view(), m.data(), r.data(), w.data(), k.groups, dx.view(),
                                    dw.data(), db.data(), space.data());
        return Results{y.values(), dmean.host(), drstd.host(), dx.values(), dw.host(), db.host()};
      });
      CHECK(relative_error(got[0], cy.values()) <= tolerance(t) + 3e-5);
      CHECK(relative_error(got[1], mean) <= 1e-6);
      CHECK(relative_error(got[2], rstd) <= 3e-5);
      CHECK(relative_error(got[3], cdx.values()) <= 2 * tolerance(t) + 3e-5);
      CHECK(relative_error(got[4], dweight) <= 3e-5);
      CHECK(relative_error(got[5], dbias) <= 3e-5);
    }
}

TEST_CASE("groups that do not divide the channels are refused", "[group_norm]") {
  const DeviceImage x({1, 8, 2, 2}, DType::kF32, Placement::kDense);
  CHECK_THROWS_AS(device::group_norm(nullptr, x.view(), nullptr, nullptr, 3, kEps, x.view(), nullptr, nullptr, nullptr),
                  std::invalid_argument);
}

TEST_CASE("L2 norm and its gradients equal the CPU's", "[group_norm]") {
  size_t turn = 0;
  std::vector<Shape> shapes = twin_shapes();
  shapes.push_back({2, 5, 21, 15});
  for (const Shape s : shapes)
    for (const DType t : kFloatTypes) {
      const Placement p = kPlacements[turn++ % 4];
      INFO(describe(s, t, p));
      auto x = typed_values("x", s.count(), t, 2), dy = typed_values("dy", s.count(), t);
      for (int64_t c = 0; c < s.c; ++c) x[static_cast<size_t>(c * s.h * s.w)] = 0;  // a pixel of zeros
      const float eps = 1e-2f;
      const auto weight = random_values("weight", s.c, 1, 20);
      const TestTensor cx = cpu_tensor(s, x), cdy = cpu_tensor(s, dy), cy = cpu_tensor(s), cdx = cpu_tensor(s);
      auto dweight = floats(s.c), workspace = floats(l2_norm_workspace(cx.view()));
      CONVOY_CPU(l2_norm, cx.view(), weight.data(), eps, cy.view());
      CONVOY_CPU(l2_norm_backward, cdy.view(), cx.view(), weight.data(), eps, cdx.view(), dweight.data(),
                 workspace.data());
      const Results got = over_orders([&] {
        const DeviceImage in(s, t, p, x), ddy(s, t, p, dy), y(s, t, p), dx(s, t, p);
        const DeviceBuffer<float> w(weight), dw(static_cast<size_t>(s.c)),
            space(device::l2_norm_cuda_workspace_bytes(in.view()) / sizeof(float));
        device::l2_norm(nullptr, in.view(), w.data(), eps, y.view());
        device::l2_norm_backward(nullptr, ddy.view(), in.view(), w.data(), eps, dx.view(), dw.data(), space.data());
        return Results{y.values(), dx.values(), dw.host()};
      });
      CHECK(relative_error(got[0], cy.values()) <= 2 * tolerance(t));
      CHECK(relative_error(got[1], cdx.values()) <= 2 * tolerance(t));
      CHECK(relative_error(got[2], dweight) <= 6e-6);
    }
}

}  // namespace
}  // namespace convoy::test
