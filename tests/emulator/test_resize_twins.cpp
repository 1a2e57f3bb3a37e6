// kernels/resize_bilinear.cu, resize_nearest.cu and label_resize.cu in the emulator against the CPU twins.
#include "kernels/label_resize.h"
#include "kernels/resize_bilinear.h"
#include "tests/emulator/twins.h"

namespace convoy::test {
namespace {

struct Case {
  Shape x;
  int64_t h, w;
  ResizeParams params;

  Shape y() const { return {x.n, x.c, h, w}; }
};

// Up and down, by whole and odd factors, to and from single pixels; both coordinate rules; with a given scale factor.
std::vector<Case> cases() {
  return {
      {{1, 1, 1, 1}, 1, 1, {true, 0, 0}},     {{2, 3, 5, 7}, 11, 13, {false, 0, 0}},
      {{2, 3, 5, 7}, 11, 13, {true, 0, 0}},   {{1, 19, 3, 4}, 24, 32, {true, 0, 0}},
      {{1, 19, 3, 4}, 24, 32, {false, 0, 0}}, {{1, 33, 9, 8}, 4, 3, {false, 0, 0}},
      {{1, 33, 9, 8}, 4, 3, {true, 0, 0}},    {{1, 64, 1, 5}, 6, 5, {false, 0, 0}},
      {{1, 64, 7, 6}, 1, 1, {true, 0, 0}},    {{1, 8, 5, 5}, 7, 7, {false, 1.5, 1.5}},
      {{3, 5, 4, 4}, 4, 4, {true, 0, 0}},     {{1, 300, 2, 3}, 4, 5, {false, 0, 0}},
  };
}

TEST_CASE("bilinear resizing and its gradient equal the CPU's") {
  for (const Case& k : cases())
    for (const DType t : kFloatTypes)
      for (const Placement p : kPlacements) {
        INFO(describe(k.x, t, p) << " to " << k.h << "x" << k.w << " align_corners " << k.params.align_corners);
        const auto x = typed_values("x", k.x.count(), t), dy = typed_values("dy", k.y().count(), t);
        const Results got = over_orders([&] {
          const DeviceImage from(k.x, t, p, x), gradient(k.y(), t, p, dy), y(k.y(), t, p), dx(k.x, t, p);
          device::resize_bilinear(nullptr, from.view(), k.params, y.view());
          device::resize_bilinear_backward(nullptr, gradient.view(), k.params, dx.view());
          return Results{y.values(), dx.values()};
        });
        const TestTensor cx = cpu_tensor(k.x, x), cdy = cpu_tensor(k.y(), dy), cy = cpu_tensor(k.y()),
                         cdx = cpu_tensor(k.x);
        CONVOY_CPU(resize_bilinear, cx.view(), k.params, cy.view());
        CONVOY_CPU(resize_bilinear_backward, cdy.view(), k.params, cdx.view());
        CHECK(relative_error(got[0], cy.values()) <= tolerance(t));
        CHECK(relative_error(got[1], cdx.values()) <= tolerance(t));
      }
}

TEST_CASE("the gradient of bilinear resizing is its transpose") {
  for (const Case& k : cases()) {
    INFO(k.x.text() << " to " << k.h << "x" << k.w << " align_corners " << k.params.align_corners);
    const auto x = random_values("x", k.x.count()), dy = random_values("dy", k.y().count());
    const DeviceImage from(k.x, DType::kF32, Placement::kDense, x), gradient(k.y(), DType::kF32, Placement::kDense, dy);
    const DeviceImage y(k.y(), DType::kF32, Placement::kDense), dx(k.x, DType::kF32, Placement::kDense);
    device::resize_bilinear(nullptr, from.view(), k.params, y.view());
    device::resize_bilinear_backward(nullptr, gradient.view(), k.params, dx.view());
    const auto out = y.values(), back = dx.values();
    double forward = 0, backward = 0;
    for (size_t i = 0; i < out.size(); ++i) forward += static_cast<double>(out[i]) * static_cast<double>(dy[i]);
    for (size_t i = 0; i < back.size(); ++i) backward += static_cast<double>(back[i]) * static_cast<double>(x[i]);
    CHECK(forward == Approx(backward).margin(1e-5));
  }
}

TEST_CASE("nearest resizing and its gradient equal the CPU's", "[nearest]") {
  size_t turn = 0;
  for (const Case& k : cases())
    for (const DType t : kFloatTypes) {
      const Placement p = kPlacements[turn++ % 4];
      INFO(describe(k.x, t, p) << " to " << k.h << "x" << k.w);
      const auto x = typed_values("x", k.x.count(), t), dy = typed_values("dy", k.y().count(), t);
      const Results got = over_orders([&] {
        const DeviceImage from(k.x, t, p, x), gradient(k.y(), t, p, dy), y(k.y(), t, p), dx(k.x, t, p);
        device::resize_nearest(nullptr, from.view(), k.params, y.view());
        device::resize_nearest_backward(nullptr, gradient.view(), k.params, dx.view());
        return Results{y.values(), dx.values()};
      });
      const TestTensor cx = cpu_tensor(k.x, x), cdy = cpu_tensor(k.y(), dy), cy = cpu_tensor(k.y()),
                       cdx = cpu_tensor(k.x);
      CONVOY_CPU(resize_nearest, cx.view(), k.params, cy.view());
      CONVOY_CPU(resize_nearest_backward, cdy.view(), k.params, cdx.view());
      CHECK(bits(got[0]) == bits(cy.values()));
      CHECK(relative_error(got[1], cdx.values()) <= tolerance(t));
    }
}

TEST_CASE("labels resized as numbers equal the CPU's", "[nearest]") {
  struct LabelCase {
    int64_t in_h, in_w, out_h, out_w;
  };
  // 31 to 8: where the last bit of a position decides.
  for (const LabelCase& k : {LabelCase{1, 1, 1, 1}, {31, 31, 8, 8}, {7, 300, 3, 270}, {5, 4, 9, 1}}) {
    INFO(k.in_h << "x" << k.in_w << " to " << k.out_h << "x" << k.out_w);
    const auto view = [](int32_t* data, int64_t h, int64_t w) {
      View v;
      v.data = data, v.dtype = DType::kI32;
      v.n = 2, v.c = v.pitch = h, v.h = w;
      return v;
    };
    std::vector<int32_t> labels, wanted(static_cast<size_t>(2 * k.out_h * k.out_w));
    for (const float v : random_values("labels", 2 * k.in_h * k.in_w, 10, 9)) labels.push_back(static_cast<int32_t>(v));
    labels[0] = 255;
    const Results got = over_orders([&] {
      const DeviceBuffer<int32_t> from(labels), to(wanted.size());
      device::label_resize(nullptr, view(from.data(), k.in_h, k.in_w), view(to.data(), k.out_h, k.out_w));
      const auto host = to.host();
      return Results{std::vector<float>(host.begin(), host.end())};
    });
    CONVOY_CPU(label_resize, view(labels.data(), k.in_h, k.in_w), view(wanted.data(), k.out_h, k.out_w));
    CHECK(got[0] == std::vector<float>(wanted.begin(), wanted.end()));
  }
}

}  // namespace
}  // namespace convoy::test
