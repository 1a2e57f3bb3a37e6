// kernels/softmax.cu in the emulator against the CPU twins.
#include "kernels/softmax.h"
#include "tests/emulator/twins.h"

namespace convoy::test {
namespace {

TEST_CASE("softmax over channels and its gradient equal the CPU's", "[softmax]") {
  size_t turn = 0;
  for (const Shape s : twin_shapes())
    for (const DType t : kFloatTypes)
      for (const bool log : {false, true}) {
        const Placement p = kPlacements[turn++ % 4];
        INFO(describe(s, t, p) << " log " << log);
        const auto x = typed_values("x", s.count(), t, 20, 5), dy = typed_values("dy", s.count(), t);
        const TestTensor cx = cpu_tensor(s, x), cdy = cpu_tensor(s, dy), cy = cpu_tensor(s), cdx = cpu_tensor(s);
        CONVOY_CPU(softmax_channels, cx.view(), log, cy.view());
        const auto y = rounded(cy.values(), t);
        CONVOY_CPU(softmax_channels_backward, cdy.view(), cpu_tensor(s, y).view(), log, cdx.view());
        const Results got = over_orders([&] {
          const DeviceImage in(s, t, p, x), out(s, t, p), ddy(s, t, p, dy), dy_in(s, t, p, y), dx(s, t, p);
          device::softmax_channels(nullptr, in.view(), log, out.view());
          device::softmax_channels_backward(nullptr, ddy.view(), dy_in.view(), log, dx.view());
          device::softmax_channels(nullptr, in.view(), log, in.view());
          return Results{out.values(), dx.values(), in.values()};
        });
        CHECK(relative_error(got[0], cy.values()) <= tolerance(t));
        CHECK(relative_error(got[1], cdx.values()) <= 2 * tolerance(t));
        CHECK(bits(got[2]) == bits(got[0]));
      }
}

TEST_CASE("softmax over rows and its gradient equal the CPU's", "[softmax]") {
  for (const auto& [rows, length] : {std::array<int64_t, 2>{1, 1}, {5, 3}, {3, 64}, {2, 301}, {40, 8}})
    for (const bool log : {false, true}) {
      INFO(rows << " rows of " << length << " log " << log);
      const int64_t count = rows * length;
      const auto x = random_values("x", count, 20, 5), dy = random_values("dy", count);
      std::vector<float> y(x.size()), dx(x.size());
      CONVOY_CPU(softmax_rows, x.data(), rows, length, log, y.data());
      CONVOY_CPU(softmax_rows_backward, dy.data(), y.data(), rows, length, log, dx.data());
      const auto plain = [&](const DeviceBuffer<float>& buffer) {
        View v;
        v.data = buffer.data();
        v.n = rows, v.c = v.pitch = length;
        return v;
      };
      const Results got = over_orders([&] {
        const DeviceBuffer<float> in(x), out(x.size()), ddy(dy), dy_in(y), ddx(x.size());
        device::softmax_rows(nullptr, plain(in), rows, length, log, plain(out));
        device::softmax_rows_backward(nullptr, plain(ddy), plain(dy_in), rows, length, log, plain(ddx));
        return Results{out.host(), ddx.host()};
      });
      CHECK(relative_error(got[0], y) <= 3e-6);
      CHECK(relative_error(got[1], dx) <= 6e-6);
    }
}

}  // namespace
}  // namespace convoy::test
