// Channel gates, fill, dot and the activations that read their input: kernels/elementwise.cu in the emulator against
// the CPU twins.
#include "kernels/elementwise.h"
#include "tests/emulator/twins.h"

namespace convoy::test {
namespace {

TEST_CASE("leaky ReLU and hardswish equal the CPU's", "[gate]") {
  size_t turn = 0;
  for (const Shape s : twin_shapes())
    for (const DType t : kFloatTypes) {
      const Placement p = kPlacements[turn++ % 4];
      INFO(describe(s, t, p));
      const auto x = typed_values("x", s.count(), t, 9), dy = typed_values("dy", s.count(), t);
      const Results got = over_orders([&] {
        const DeviceImage in(s, t, p, x), ddy(s, t, p, dy), leaky(s, t, p), dleaky(s, t, p), hard(s, t, p),
            dhard(s, t, p), filled(s, t, p);
        device::leaky_relu(nullptr, in.view(), 0.01f, leaky.view());
        device::leaky_relu_backward(nullptr, ddy.view(), in.view(), 0.01f, dleaky.view());
        device::hardswish(nullptr, in.view(), hard.view());
        device::hardswish_backward(nullptr, ddy.view(), in.view(), dhard.view());
        device::fill(nullptr, filled.view(), 0.5f);
        return Results{leaky.values(), dleaky.values(), hard.values(), dhard.values(), filled.values()};
      });
      const TestTensor cx = cpu_tensor(s, x), cdy = cpu_tensor(s, dy), y = cpu_tensor(s);
      CONVOY_CPU(leaky_relu, cx.view(), 0.01f, y.view());
      CHECK(bits(got[0]) == bits(rounded(y.values(), t)));
      CONVOY_CPU(leaky_relu_backward, cdy.view(), cx.view(), 0.01f, y.view());
      CHECK(bits(got[1]) == bits(rounded(y.values(), t)));
      CONVOY_CPU(hardswish, cx.view(), y.view());
      CHECK(relative_error(got[2], y.values()) <= tolerance(t));
      CONVOY_CPU(hardswish_backward, cdy.view(), cx.view(), y.view());
      CHECK(relative_error(got[3], y.values()) <= tolerance(t));
      for (const float v : got[4]) CHECK(v == 0.5f);
    }
}

/// A gate per image and channel: nhwc like the images, or plain.
View gate_view(const DeviceImage& gate, bool plain) {
  View v = gate.view();
  if (plain) v.layout = Layout::kNchw, v.block = 1;
  return v;
}

TEST_CASE("gates and their gradients equal the CPU's", "[gate]") {
  size_t turn = 0;
  std::vector<Shape> shapes = twin_shapes();
  shapes.push_back({2, 5, 21, 15});  // more than one part of an image
  for (const Shape s : shapes)
    for (const DType t : kFloatTypes)
      for (const bool plain : {false, true}) {
        const Placement p = kPlacements[turn++ % 4];
        INFO(describe(s, t, p) << " plain gate " << plain);
        const Shape gate_shape{s.n, s.c, 1, 1};
        const auto x = typed_values("x", s.count(), t, 3), dy = typed_values("dy", s.count(), t);
        const auto gate = typed_values("gate", gate_shape.count(), t);
        const Placement gate_placement = plain ? Placement::kDense : p;
        const Results got = over_orders([&] {
          const DeviceImage in(s, t, p, x), ddy(s, t, p, dy), sum(s, t, p), product(s, t, p),
              dgate(gate_shape, t, gate_placement), g(gate_shape, t, gate_placement, gate);
          const DeviceBuffer<unsigned char> workspace(device::gate_cuda_workspace_bytes(in.view()));
          device::add_channel(nullptr, in.view(), gate_view(g, plain), sum.view());
          device::mul_channel(nullptr, in.view(), gate_view(g, plain), product.view());
          device::mul_channel_backward_gate(nullptr, ddy.view(), in.view(), gate_view(dgate, plain),
                                            reinterpret_cast<float*>(workspace.data()));
          return Results{sum.values(), product.values(), dgate.values()};
        });
        const TestTensor cx = cpu_tensor(s, x), cdy = cpu_tensor(s, dy), y = cpu_tensor(s),
                         g = cpu_tensor(gate_shape, gate), dgate = cpu_tensor(gate_shape);
        CONVOY_CPU(add_channel, cx.view(), g.view(), y.view());
        CHECK(bits(got[0]) == bits(rounded(y.values(), t)));
        CONVOY_CPU(mul_channel, cx.view(), g.view(), y.view());
        CHECK(bits(got[1]) == bits(rounded(y.values(), t)));
        CONVOY_CPU(mul_channel_backward_gate, cdy.view(), cx.view(), dgate.view());
        CHECK(relative_error(got[2], dgate.values()) <= 2 * tolerance(t));
      }
}

TEST_CASE("gates of other images are refused", "[gate]") {
  const Shape s{2, 8, 2, 2};
  const DeviceImage x(s, DType::kF32, Placement::kDense, random_values("x", s.count())),
      gate({1, 8, 1, 1}, DType::kF32, Placement::kDense);
  CHECK_THROWS_AS(device::mul_channel(nullptr, x.view(), gate.view(), x.view()), std::invalid_argument);
}

TEST_CASE("dot products of any length equal the CPU's", "[gate]") {
  for (const int64_t count : {1, 3, 257, 5000}) {
    const auto a = random_values("a", count, 1, 3), b = random_values("b", count, 1, 5);
    const auto plain = [&](const float* data) {
      View v;
      v.data = const_cast<float*>(data);
      v.n = count;
      return v;
    };
    const Results got = over_orders([&] {
      const DeviceBuffer<float> da(a), db(b), result(1);
      const DeviceBuffer<double> workspace(device::dot_cuda_workspace_bytes() / sizeof(double));
      device::dot(nullptr, plain(da.data()), plain(db.data()), result.data(), workspace.data());
      return Results{result.host()};
    });
    float result = 0;
    CONVOY_CPU(dot, plain(a.data()), plain(b.data()), &result);
    CHECK(got[0][0] == Approx(result).epsilon(2e-7));
  }
}

}  // namespace
}  // namespace convoy::test
