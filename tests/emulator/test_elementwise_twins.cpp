// kernels/elementwise.cu in the emulator against the CPU twins.
#include "kernels/elementwise.h"
#include "tests/emulator/twins.h"

namespace convoy::test {
namespace {

constexpr Activation kActivations[] = {Activation::kNone, Activation::kRelu, Activation::kRelu6, Activation::kSigmoid};

TEST_CASE("pointwise arithmetic equals the CPU's") {
  for_all_images(twin_shapes(), [](Shape s, DType t, Placement p) {
    const auto a = typed_values("a", s.count(), t, 3), b = typed_values("b", s.count(), t, 3);
    const Results got = over_orders([&] {
      const DeviceImage da(s, t, p, a), db(s, t, p, b), sum(s, t, p), product(s, t, p), total(s, t, p, b),
          scaled(s, t, p), scaled_too(s, t, p);
      const DeviceBuffer<float> factor(std::vector<float>{-1.7f});
      device::add(nullptr, da.view(), db.view(), sum.view());
      device::mul(nullptr, da.view(), db.view(), product.view());
      device::accumulate(nullptr, da.view(), total.view());
      device::scale(nullptr, da.view(), -1.7f, scaled.view());
      device::scale_by_scalar(nullptr, da.view(), factor.data(), scaled_too.view());
      return Results{sum.values(), product.values(), total.values(), scaled.values(), scaled_too.values()};
    });
    const TestTensor ca = cpu_tensor(s, a), cb = cpu_tensor(s, b), sum = cpu_tensor(s), product = cpu_tensor(s),
                     total = cpu_tensor(s, b), scaled = cpu_tensor(s);
    CONVOY_CPU(add, ca.view(), cb.view(), sum.view());
    CONVOY_CPU(mul, ca.view(), cb.view(), product.view());
    CONVOY_CPU(accumulate, ca.view(), total.view());
    CONVOY_CPU(scale, ca.view(), -1.7f, scaled.view());
    // One operation in fp32 and one rounding: equal to the bit.
    CHECK(bits(got[0]) == bits(rounded(sum.values(), t)));
    CHECK(bits(got[1]) == bits(rounded(product.values(), t)));
    CHECK(bits(got[2]) == bits(rounded(total.values(), t)));
    CHECK(bits(got[3]) == bits(rounded(scaled.values(), t)));
    CHECK(bits(got[4]) == bits(got[3]));
  });
}

TEST_CASE("activations and their gradients equal the CPU's") {
  for_all_images(twin_shapes(), [](Shape s, DType t, Placement p) {
    const auto x = typed_values("x", s.count(), t, 9), dy = typed_values("dy", s.count(), t);
    for (const Activation act : kActivations) {
      INFO("activation " << static_cast<int>(act));
      const TestTensor cx = cpu_tensor(s, x), cdy = cpu_tensor(s, dy), cy = cpu_tensor(s), cdx = cpu_tensor(s);
      CONVOY_CPU(activation, cx.view(), act, cy.view());
      const auto y = rounded(cy.values(), t);
      CONVOY_CPU(activation_backward, cdy.view(), cpu_tensor(s, y).view(), act, cdx.view());
      const Results got = over_orders([&] {
        const DeviceImage dx_in(s, t, p, x), ddy(s, t, p, dy), dy_in(s, t, p, y), out(s, t, p), gradient(s, t, p);
        device::activation(nullptr, dx_in.view(), act, out.view());
        device::activation_backward(nullptr, ddy.view(), dy_in.view(), act, gradient.view());
        return Results{out.values(), gradient.values()};
      });
      CHECK(relative_error(got[0], cy.values()) <= tolerance(t));
      CHECK(relative_error(got[1], cdx.values()) <= tolerance(t));
    }
  });
}

TEST_CASE("pointwise outputs may be their own operands, and NaN passes through") {
  const Shape s{1, 19, 3, 5};
  auto x = random_values("x", s.count());
  x[7] = std::numeric_limits<float>::quiet_NaN();
  for (const Placement p : kPlacements) {
    const DeviceImage image(s, DType::kF32, p, x);
    device::activation(nullptr, image.view(), Activation::kRelu6, image.view());
    device::add(nullptr, image.view(), image.view(), image.view());
    const auto got = image.values();
    for (size_t i = 0; i < got.size(); ++i) {
      if (i == 7)
        CHECK(std::isnan(got[i]));
      else
        CHECK(got[i] == 2 * std::max(x[i], 0.f));
    }
  }
}

TEST_CASE("plain arrays of any length go through the pointwise kernels") {
  for (const int64_t count : {1, 3, 4, 257, 5000}) {
    INFO(count << " elements");
    const auto a = random_values("a", count), b = random_values("b", count);
    const DeviceBuffer<float> da(a), db(b);
    View va, vb;
    va.data = da.data(), vb.data = db.data();
    va.n = vb.n = count;
    device::accumulate(nullptr, va, vb);
    const auto got = db.host();
    for (size_t i = 0; i < got.size(); ++i) REQUIRE(got[i] == a[i] + b[i]);
  }
}

TEST_CASE("launchers refuse what their kernels cannot take") {
  const Shape s{1, 8, 2, 2};
  const auto x = random_values("x", s.count());
  const DeviceImage f32(s, DType::kF32, Placement::kDense, x), f16(s, DType::kF16, Placement::kDense, x);
  CHECK_THROWS_AS(device::add(nullptr, f32.view(), f16.view(), f32.view()), std::invalid_argument);
  View integers = f32.view(), blocked = f32.view();
  integers.dtype = DType::kI32;
  blocked.layout = Layout::kBlocked;
  CHECK_THROWS_AS(device::add(nullptr, integers, integers, integers), std::invalid_argument);
  CHECK_THROWS_AS(device::add(nullptr, blocked, blocked, blocked), std::invalid_argument);
}

}  // namespace
}  // namespace convoy::test
