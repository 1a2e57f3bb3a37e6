// kernels/depthwise.cu and depthwise_weights.cu in the emulator against the CPU twins.
#include "kernels/depthwise.h"
#include "tests/emulator/conv_case.h"

namespace convoy::test {
namespace {

ConvTwin square(Shape x, int64_t kernel, int64_t stride, int64_t pad, int64_t dilation = 1) {
  return square_conv(x, x.c, kernel, stride, pad, dilation, x.c);
}

// The widths that slide with both strides and with dilations, also such as leave the image; asymmetric kernels and
// strides; kernels, strides and paddings that no kernel is made for.
std::vector<ConvTwin> cases() {
  return {
      square({2, 3, 5, 7}, 3, 1, 1),
      square({1, 33, 6, 9}, 3, 2, 1),
      square({1, 19, 7, 10}, 3, 2, 0),
      square({1, 64, 5, 9}, 3, 1, 2, 2),
      square({1, 8, 7, 13}, 3, 1, 6, 6),
      square({1, 16, 7, 9}, 3, 2, 2, 2),
      square({1, 19, 6, 11}, 5, 1, 2),
      square({2, 16, 7, 6}, 5, 2, 2),
      square({1, 33, 8, 9}, 7, 1, 3),
      square({1, 8, 9, 11}, 7, 2, 3),
      square({1, 1, 1, 1}, 3, 1, 1),
      square({1, 24, 6, 7}, 4, 1, 0),
      square({1, 19, 9, 9}, 2, 3, 0),
      square({1, 20, 4, 5}, 11, 1, 5),
      square({1, 300, 3, 5}, 3, 1, 1),
      square({1, 16, 2, 3}, 1, 4, 0),
      square({1, 8, 3, 4}, 3, 1, 3),
      {{2, 8, 4, 9}, 8, 1, 3, {1, 1, 0, 1, 1, 1, 8}},
      {{2, 8, 4, 9}, 8, 3, 1, {1, 1, 1, 0, 1, 1, 8}},
      {{1, 24, 5, 12}, 24, 3, 5, {2, 1, 1, 4, 1, 2, 24}},
      {{1, 33, 5, 9}, 33, 5, 3, {1, 2, 2, 1, 2, 1, 33}},
  };
}

void check(const ConvTwin& k, DType t, Placement p, bool with_bias) {
  INFO(k.text() << " " << dtype_name(t) << " placement " << static_cast<int>(p) << " bias " << with_bias);
  const auto x = typed_values("x", k.x.count(), t), dy = typed_values("dy", k.y().count(), t);
  const auto w = random_values("w", k.weights()), bias = random_values("bias", k.x.c);
  const Results got = over_orders([&] {
    const DeviceImage from(k.x, t, p, x), gradient(k.y(), t, p, dy), y(k.y(), t, p), dx(k.x, t, p);
    const DeviceBuffer<float> dw(static_cast<size_t>(k.weights())), weights(w), offset(bias),
        workspace(device::depthwise_cuda_workspace_bytes(gradient.view(), k.kernel_h, k.kernel_w) / sizeof(float));
    device::depthwise(nullptr, from.view(), weights.data(), k.kernel_h, k.kernel_w, with_bias ? offset.data() : nullptr,
                      k.p, y.view());
    device::depthwise_backward_data(nullptr, gradient.view(), weights.data(), k.kernel_h, k.kernel_w, k.p, dx.view());
    device::depthwise_backward_weights(nullptr, from.view(), gradient.view(), k.kernel_h, k.kernel_w, k.p, dw.data(),
                                       workspace.data());
    return Results{y.values(), dx.values(), dw.host()};
  });
  const TestTensor cx = cpu_tensor(k.x, x), cdy = cpu_tensor(k.y(), dy), cy = cpu_tensor(k.y()), cdx = cpu_tensor(k.x);
  std::vector<float> dw(w.size()),
      workspace(depthwise_workspace_bytes(cdy.view(), k.kernel_h, k.kernel_w) / sizeof(float));
  CONVOY_CPU(depthwise, cx.view(), w.data(), k.kernel_h, k.kernel_w, with_bias ? bias.data() : nullptr, k.p, cy.view());
  CONVOY_CPU(depthwise_backward_data, cdy.view(), w.data(), k.kernel_h, k.kernel_w, k.p, cdx.view());
  CONVOY_CPU(depthwise_backward_weights, cx.view(), cdy.view(), k.kernel_h, k.kernel_w, k.p, dw.data(),
             workspace.data());
  CHECK(relative_error(got[0], cy.values()) <= tolerance(t));
  CHECK(relative_error(got[1], cdx.values()) <= tolerance(t));
  CHECK(relative_error(got[2], dw) <= 3e-6);
}

TEST_CASE("depthwise convolution and its gradients equal the CPU's", "[depthwise]") {
  size_t turn = 0;
  for (const ConvTwin& k : cases())
    for (const DType t : kFloatTypes) {
      // Padded is what a network's tensors are; of the other placements each case sees one.
      check(k, t, turn % 3 == 0 ? kPlacements[turn / 3 % 4] : Placement::kPadded, turn % 2 == 0);
      ++turn;
    }
}

TEST_CASE("every placement of a depthwise convolution gives the CPU's results", "[depthwise]") {
  for (const Shape s : {Shape{1, 19, 4, 5}, Shape{1, 16, 3, 6}})
    for (const Placement p : kPlacements) {
      check(square(s, 3, 1, 1), DType::kBF16, p, true);
      check(square(s, 3, 2, 1), DType::kF32, p, false);
    }
}

TEST_CASE("the weight gradient of a depthwise convolution merges parts of many rows", "[depthwise]") {
  check(square({2, 8, 300, 3}, 3, 1, 1), DType::kF32, Placement::kPadded, true);
}

TEST_CASE("a depthwise convolution refuses what it cannot do", "[depthwise]") {
  const Shape s{1, 8, 3, 3};
  const DeviceImage x(s, DType::kF32, Placement::kDense), other({1, 16, 3, 3}, DType::kF32, Placement::kDense),
      half(s, DType::kF16, Placement::kDense);
  const Conv2dParams p{.pad_h = 1, .pad_w = 1, .groups = 8};
  CHECK_THROWS_AS(device::depthwise(nullptr, x.view(), nullptr, 3, 3, nullptr, p, half.view()), std::invalid_argument);
  CHECK_THROWS_AS(device::depthwise(nullptr, x.view(), nullptr, 3, 3, nullptr, p, other.view()), std::invalid_argument);
  CHECK_THROWS_AS(device::depthwise(nullptr, x.view(), nullptr, 13, 13, nullptr, p, x.view()), std::invalid_argument);
}

}  // namespace
}  // namespace convoy::test
