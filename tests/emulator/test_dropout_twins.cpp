// kernels/dropout.cu and kernels/prelu.cu in the emulator against the CPU twins.
#include "kernels/dropout.h"
#include "kernels/prelu.h"
#include "tests/emulator/twins.h"

namespace convoy::test {
namespace {

TEST_CASE("dropout drops the elements that the CPU's drops", "[dropout]") {
  size_t turn = 0;
  std::vector<Shape> shapes = twin_shapes();
  shapes.push_back({2, 9, 6, 6});  // planes of whole counters, several runs
  for (const Shape s : shapes)
    for (const DType t : kFloatTypes)
      for (const bool whole : {false, true}) {
        const Placement p = kPlacements[turn++ % 4];
        const float rate = std::array{0.5f, 0.1f, 0.f, 1.f}[turn % 4];
        INFO(describe(s, t, p) << " rate " << rate << " whole channels " << whole);
        const auto x = typed_values("x", s.count(), t, 3);
        const Results got = over_orders([&] {
          const DeviceImage in(s, t, p, x), out(s, t, p);
          device::dropout(nullptr, in.view(), rate, 0x123456789abcdefull, 41, 5, whole, out.view());
          return Results{out.values()};
        });
        const TestTensor cx = cpu_tensor(s, x), cy = cpu_tensor(s);
        CONVOY_CPU(dropout, cx.view(), rate, 0x123456789abcdefull, 41, 5, whole, cy.view());
        CHECK(bits(got[0]) == bits(rounded(cy.values(), t)));
      }
}

TEST_CASE("dropout of plain arrays, and in place", "[dropout]") {
  for (const int64_t channels : {1, 19, 64, 1001})
    for (const bool whole : {false, true}) {
      const int64_t rows = 3;
      const auto x = random_values("x", rows * channels);
      const auto plain = [&](float* data) {
        View v;
        v.data = data;
        v.n = rows, v.c = v.pitch = channels;
        return v;
      };
      const DeviceBuffer<float> dx(x);
      device::dropout(nullptr, plain(dx.data()), 0.3f, 7, 8, 0, whole, plain(dx.data()));
      auto wanted = x;
      CONVOY_CPU(dropout, plain(wanted.data()), 0.3f, 7, 8, 0, whole, plain(wanted.data()));
      CHECK(bits(dx.host()) == bits(wanted));
    }
}

TEST_CASE("parametric ReLU and its gradients equal the CPU's", "[prelu]") {
  size_t turn = 0;
  std::vector<Shape> shapes = twin_shapes();
  shapes.push_back({2, 5, 21, 15});  // several parts
  for (const Shape s : shapes)
    for (const DType t : kFloatTypes)
      for (const int64_t slopes : {int64_t{1}, s.c}) {
        const Placement p = kPlacements[turn++ % 4];
        INFO(describe(s, t, p) << " slopes " << slopes);
        const auto x = typed_values("x", s.count(), t, 3), dy = typed_values("dy", s.count(), t);
        const auto slope = random_values("slope", slopes, 0.5, 0.2);
        const Results got = over_orders([&] {
          const DeviceImage in(s, t, p, x), ddy(s, t, p, dy), y(s, t, p), dx(s, t, p);
          const DeviceBuffer<float> a(slope), dslope(static_cast<size_t>(slopes));
          const DeviceBuffer<double> workspace(device::prelu_cuda_workspace_bytes(in.view()) / sizeof(double) + 1);
          device::prelu(nullptr, in.view(), a.data(), slopes, y.view());
          device::prelu_backward(nullptr, ddy.view(), in.view(), a.data(), slopes, dx.view(), dslope.data(),
                                 workspace.data());
          return Results{y.values(), dx.values(), dslope.host()};
        });
        const TestTensor cx = cpu_tensor(s, x), cdy = cpu_tensor(s, dy), y = cpu_tensor(s), dx = cpu_tensor(s);
        std::vector<float> dslope(static_cast<size_t>(slopes)),
            workspace(static_cast<size_t>(prelu_workspace(cx.view())));
        CONVOY_CPU(prelu, cx.view(), slope.data(), slopes, y.view());
        CONVOY_CPU(prelu_backward, cdy.view(), cx.view(), slope.data(), slopes, dx.view(), dslope.data(),
                   workspace.data());
        CHECK(bits(got[0]) == bits(rounded(y.values(), t)));
        CHECK(bits(got[1]) == bits(rounded(dx.values(), t)));
        CHECK(relative_error(got[2], dslope) <= 3e-6);
      }
}

}  // namespace
}  // namespace convoy::test
