// kernels/conv2d_direct.cu, conv2d_direct_weights.cu and conv2d_bias.cu in the emulator against the CPU twins.
#include "kernels/elementwise.h"
#include "tests/emulator/conv_case.h"

namespace convoy::test {
namespace {

size_t floats(size_t bytes) {
  return bytes / sizeof(float);
}

// An nchw image as a network's input is.
class PlainImage {
 public:
  PlainImage(Shape s, const std::vector<float>& values) : buffer_(values) {
    view_.data = buffer_.data();
    view_.n = s.n, view_.c = s.c, view_.h = s.h, view_.w = s.w;
    view_.pitch = s.c;
  }
  const View& view() const { return view_; }

 private:
  DeviceBuffer<float> buffer_;
  View view_;
};

// Output channels that fill no tile and several, input channels with and without a rest, groups of whole tiles, of
// parts of one and of one channel; strides, dilations, paddings that leave the image; asymmetric kernels.
std::vector<ConvTwin> cases() {
  return {
      square_conv({2, 3, 5, 7}, 19, 3, 1, 1),         square_conv({1, 33, 4, 5}, 8, 1, 1, 0),
      square_conv({1, 19, 6, 7}, 33, 3, 2, 1),        square_conv({1, 1, 1, 1}, 1, 3, 1, 1),
      square_conv({1, 64, 3, 5}, 16, 3, 1, 2, 2),     square_conv({1, 16, 4, 9}, 24, 3, 1, 6, 6, 2),
      square_conv({1, 24, 5, 4}, 12, 3, 2, 1, 1, 3),  square_conv({2, 8, 3, 5}, 16, 3, 1, 1, 1, 8),
      square_conv({1, 6, 3, 9}, 6, 1, 1, 0, 1, 6),    square_conv({1, 16, 5, 5}, 8, 2, 2, 0),
      square_conv({1, 8, 7, 8}, 3, 4, 3, 2),          square_conv({1, 16, 2, 3}, 8, 1, 2, 0),
      {{2, 8, 3, 9}, 8, 1, 3, {1, 2, 0, 1, 1, 1, 1}}, {{1, 10, 4, 9}, 20, 3, 5, {2, 1, 1, 4, 1, 2, 2}},
  };
}

// The gradient of x is left out where x is no nhwc image.
void check(const ConvTwin& k, DType t, Placement p, bool with_bias, bool plain) {
  INFO(k.text() << " " << dtype_name(t) << " placement " << static_cast<int>(p) << " bias " << with_bias << " plain "
                << plain);
  const auto x = typed_values("x", k.x.count(), t), dy = typed_values("dy", k.y().count(), t);
  const auto w = random_values("w", k.weights()), bias = random_values("bias", k.out);
  const Results got = over_orders([&] {
    const DeviceImage image(k.x, t, p, x), gradient(k.y(), t, p, dy), y(k.y(), t, p), dx(k.x, t, p);
    const PlainImage plain_image(k.x, x);
    const View& from = plain ? plain_image.view() : image.view();
    const DeviceBuffer<float> dw(w.size()), dbias(bias.size()), weights(w), offset(bias),
        forward(floats(device::conv2d_direct_cuda_workspace_bytes(from, y.view(), k.kernel_h, k.kernel_w, k.p.groups))),
        backward(floats(device::conv2d_direct_cuda_workspace_bytes(gradient.view(), dx.view(), k.kernel_h, k.kernel_w,
                                                                   k.p.groups))),
        parts(floats(
            device::conv2d_direct_weights_cuda_workspace_bytes(from, gradient.view(), k.kernel_h, k.kernel_w, k.p))),
        sums(floats(device::conv2d_bias_cuda_workspace_bytes(gradient.view())));
    device::conv2d_direct(nullptr, from, weights.data(), k.kernel_h, k.kernel_w, with_bias ? offset.data() : nullptr,
                          k.p, y.view(), forward.data());
    device::conv2d_direct_backward_weights(nullptr, from, gradient.view(), k.kernel_h, k.kernel_w, k.p, dw.data(),
                                           parts.data());
    device::conv2d_backward_bias(nullptr, gradient.view(), dbias.data(), sums.data());
    if (plain) return Results{y.values(), dw.host(), dbias.host()};
    device::conv2d_direct_backward_data(nullptr, gradient.view(), weights.data(), k.kernel_h, k.kernel_w, k.p,
                                        dx.view(), backward.data());
    return Results{y.values(), dw.host(), dbias.host(), dx.values()};
  });
  const TestTensor cx = cpu_tensor(k.x, x), cdy = cpu_tensor(k.y(), dy), cy = cpu_tensor(k.y()), cdx = cpu_tensor(k.x);
  std::vector<float> dw(w.size()), dbias(bias.size());
  CONVOY_CPU(conv2d_direct, cx.view(), w.data(), k.kernel_h, k.kernel_w, with_bias ? bias.data() : nullptr, k.p,
             cy.view());
  CONVOY_CPU(conv2d_direct_backward_weights, cx.view(), cdy.view(), k.kernel_h, k.kernel_w, k.p, dw.data());
  CONVOY_CPU(conv2d_backward_bias, cdy.view(), dbias.data());
  CHECK(relative_error(got[0], cy.values()) <= tolerance(t));
  CHECK(relative_error(got[1], dw) <= 3e-6);
  CHECK(relative_error(got[2], dbias) <= 3e-6);
  if (plain) return;
  CONVOY_CPU(conv2d_direct_backward_data, cdy.view(), w.data(), k.kernel_h, k.kernel_w, k.p, cdx.view());
  CHECK(relative_error(got[3], cdx.values()) <= tolerance(t));
}

TEST_CASE("direct convolution and its gradients equal the CPU's", "[conv]") {
  size_t turn = 0;
  for (const ConvTwin& k : cases())
    for (const DType t : kFloatTypes) {
      check(k, t, turn % 3 == 0 ? kPlacements[turn / 3 % 4] : Placement::kPadded, turn % 2 == 0, false);
      ++turn;
    }
}

TEST_CASE("every placement of a direct convolution gives the CPU's results", "[conv]") {
  for (const Placement p : kPlacements) {
    check(square_conv({1, 19, 3, 5}, 9, 3, 1, 1), DType::kBF16, p, true, false);
    check(square_conv({1, 16, 3, 5}, 16, 3, 2, 1), DType::kF32, p, false, false);
  }
}

TEST_CASE("direct convolution takes images as they are read", "[conv]") {
  check(square_conv({2, 3, 7, 9}, 16, 3, 2, 1), DType::kF32, Placement::kPadded, false, true);
  check(square_conv({1, 1, 5, 4}, 8, 5, 1, 2), DType::kF32, Placement::kDense, true, true);
  check(square_conv({1, 4, 5, 6}, 3, 3, 1, 1), DType::kF32, Placement::kPadded, true, true);
}

TEST_CASE("gradients of many weights and of many pixels are merged", "[conv]") {
  check(square_conv({2, 64, 2, 2}, 144, 1, 1, 0), DType::kF32, Placement::kPadded, false, false);
  check(square_conv({2, 3, 40, 20}, 2, 1, 1, 0), DType::kF32, Placement::kPadded, false, false);
}

TEST_CASE("adding a bias equals the CPU's sums", "[conv]") {
  for_all_images(twin_shapes(), [](Shape s, DType t, Placement p) {
    const auto x = typed_values("x", s.count(), t), bias = random_values("bias", s.c);
    const Results got = over_orders([&] {
      const DeviceImage image(s, t, p, x), y(s, t, p);
      const DeviceBuffer<float> offset(bias);
      device::add_bias(nullptr, image.view(), offset.data(), y.view());
      device::add_bias(nullptr, image.view(), offset.data(), image.view());
      return Results{y.values(), image.values()};
    });
    const TestTensor cx = cpu_tensor(s, x), cy = cpu_tensor(s);
    CONVOY_CPU(add_bias, cx.view(), bias.data(), cy.view());
    CHECK(relative_error(got[0], cy.values()) <= tolerance(t));
    CHECK(bits(got[0]) == bits(got[1]));
  });
}

TEST_CASE("a direct convolution refuses what it cannot do", "[conv]") {
  const Shape s{1, 8, 3, 3};
  const DeviceImage x(s, DType::kF32, Placement::kDense), half(s, DType::kF16, Placement::kDense);
  View blocked = x.view();
  blocked.layout = Layout::kBlocked;
  CHECK_THROWS_AS(device::conv2d_direct(nullptr, x.view(), nullptr, 1, 1, nullptr, {}, half.view(), nullptr),
                  std::invalid_argument);
  CHECK_THROWS_AS(device::conv2d_direct(nullptr, blocked, nullptr, 1, 1, nullptr, {}, x.view(), nullptr),
                  std::invalid_argument);
  CHECK_THROWS_AS(device::conv2d_backward_bias(nullptr, blocked, nullptr, nullptr), std::invalid_argument);
}

}  // namespace
}  // namespace convoy::test
