// kernels/attention_*.cu in the emulator against the CPU twins.
#include "kernels/attention.h"
#include "tests/emulator/twins.h"

namespace convoy::test {
namespace {

struct Case {
  Shape shape;
  DType dtype;
  Placement placement;
};

/// Every dtype and every placement with every other one over the shapes, one of each per shape.
std::vector<Case> cases(const std::vector<Shape>& shapes) {
  std::vector<Case> all;
  for (size_t i = 0; i < shapes.size(); ++i) all.push_back({shapes[i], kFloatTypes[i % 3], kPlacements[i % 4]});
  return all;
}

DeviceBuffer<float> device_space(size_t bytes) {
  return DeviceBuffer<float>(bytes / sizeof(float));
}
std::vector<float> space(size_t bytes) {
  return std::vector<float>(bytes / sizeof(float));
}
View plain(const float* data, int64_t n, int64_t c, int64_t h = 1) {
  return {.data = const_cast<float*>(data), .n = n, .c = c, .h = h, .pitch = c};
}

TEST_CASE("criss-cross attention equals the CPU's", "[attention]") {
  for (const auto& [s, t, p] : cases({{1, 1, 1, 1},
                                      {2, 3, 5, 7},
                                      {1, 19, 9, 5},
                                      {1, 33, 7, 3},
                                      {1, 64, 1, 6},
                                      {1, 8, 6, 1},
                                      {1, 5, 2, 35},
                                      {2, 16, 4, 4}})) {
    INFO(describe(s, t, p));
    const Shape ws{s.n, s.h + s.w - 1, s.h, s.w};
    const auto tv = typed_values("t", s.count(), t), fv = typed_values("f", s.count(), t),
               wv = typed_values("w", ws.count(), t);
    const Results got = over_orders([&] {
      const DeviceImage dt(s, t, p, tv), df(s, t, p, fv), dw(ws, t, p, wv), w(ws, t, p), map(s, t, p), flipped(s, t, p);
      const auto workspace = device_space(device::criss_cross_cuda_workspace_bytes(dt.view(), map.view()));
      device::ca_weight(nullptr, dt.view(), df.view(), w.view(), workspace.data());
      device::ca_map(nullptr, dw.view(), df.view(), map.view(), workspace.data());
      device::ca_map_transposed(nullptr, dw.view(), dt.view(), flipped.view(), workspace.data());
      return Results{w.values(), map.values(), flipped.values()};
    });
    const TestTensor ct = cpu_tensor(s, tv), cf = cpu_tensor(s, fv), cw = cpu_tensor(ws, wv), w = cpu_tensor(ws),
                     map = cpu_tensor(s), flipped = cpu_tensor(s);
    auto workspace = space(CONVOY_CPU(criss_cross_workspace_bytes, ct.view()));
    CONVOY_CPU(ca_weight, ct.view(), cf.view(), w.view(), workspace.data());
    CONVOY_CPU(ca_map, cw.view(), cf.view(), map.view(), workspace.data());
    CONVOY_CPU(ca_map_transposed, cw.view(), ct.view(), flipped.view(), workspace.data());
    CHECK(relative_error(got[0], w.values()) <= tolerance(t));
    CHECK(relative_error(got[1], map.values()) <= tolerance(t));
    CHECK(relative_error(got[2], flipped.values()) <= tolerance(t));
  }
}

void check_position(const Case& k, int64_t channels, double scale, int64_t strip) {
  const auto& [qs, t, p] = k;
  INFO(describe(qs, t, p) << " channels " << channels << " scale " << scale << " strip " << strip);
  const Shape vs{qs.n, channels, qs.h, qs.w};
  const int64_t pixels = qs.h * qs.w;
  const auto q = typed_values("q", qs.count(), t, scale), key = typed_values("k", qs.count(), t, scale),
             v = typed_values("v", vs.count(), t), dy = typed_values("dy", vs.count(), t);
  const Results got = over_orders([&] {
    const DeviceImage dev_q(qs, t, p, q), dev_k(qs, t, p, key), dev_v(vs, t, p, v), dev_dy(vs, t, p, dy), y(vs, t, p),
        dq(qs, t, p), dk(qs, t, p), dv(vs, t, p);
    const DeviceBuffer<float> sums(static_cast<size_t>(qs.n * pixels));
    const View lse = plain(sums.data(), qs.n, pixels);
    const auto forward = device_space(device::position_attention_cuda_workspace_bytes(dev_q.view(), y.view(), strip));
    device::position_attention(nullptr, dev_q.view(), dev_k.view(), dev_v.view(), y.view(), lse, strip, forward.data());
    const auto backward =
        device_space(device::position_attention_backward_cuda_workspace_bytes(dq.view(), dk.view(), dv.view(), strip));
    device::position_attention_backward(nullptr, dev_dy.view(), dev_q.view(), dev_k.view(), dev_v.view(), lse,
                                        dq.view(), dk.view(), dv.view(), strip, backward.data());
    return Results{y.values(), sums.host(), dq.values(), dk.values(), dv.values()};
  });
  const TestTensor cq = cpu_tensor(qs, q), ck = cpu_tensor(qs, key), cv = cpu_tensor(vs, v), cdy = cpu_tensor(vs, dy),
                   y = cpu_tensor(vs), dq = cpu_tensor(qs), dk = cpu_tensor(qs), dv = cpu_tensor(vs);
  std::vector<float> sums(static_cast<size_t>(qs.n * pixels));
  const View lse = plain(sums.data(), qs.n, pixels);
  auto workspace = space(CONVOY_CPU(position_attention_workspace_bytes, cq.view()));
  CONVOY_CPU(position_attention, cq.view(), ck.view(), cv.view(), y.view(), lse, workspace.data());
  workspace = space(CONVOY_CPU(position_attention_backward_workspace_bytes, cq.view(), cv.view()));
  CONVOY_CPU(position_attention_backward, cdy.view(), cq.view(), ck.view(), cv.view(), y.view(), lse, dq.view(),
             dk.view(), dv.view(), workspace.data());
  CHECK(relative_error(got[0], y.values()) <= 2 * tolerance(t));
  CHECK(relative_error(got[1], sums) <= 1e-6);
  CHECK(relative_error(got[4], dv.values()) <= 4 * tolerance(t));
  if (pixels == 1) return;  // gradients of energies are zero
  CHECK(relative_error(got[2], dq.values()) <= 8 * tolerance(t));
  CHECK(relative_error(got[3], dk.values()) <= 8 * tolerance(t));
}

TEST_CASE("position attention equals the CPU's", "[attention]") {
  for (const Case& k : cases({{1, 1, 1, 1}, {2, 3, 5, 7}, {1, 19, 9, 5}, {1, 8, 7, 3}, {3, 5, 1, 3}, {1, 2, 3, 19}}))
    check_position(k, k.shape.c == 3 ? 33 : 9, 0.5, 64);
  // Strips of queries, the last one shorter; energies up to 100.
  for (size_t i = 0; i < 3; ++i) check_position({{2, 4, 5, 7}, kFloatTypes[i], kPlacements[i + 1]}, 8, 6, 16);
}

TEST_CASE("the strip of position attention bounds its memory", "[attention]") {
  View q{.layout = Layout::kNhwc, .n = 1, .c = 64, .h = 97, .w = 97, .pitch = 64};
  View v = q;
  v.c = v.pitch = 512;
  const int64_t strip = device::position_attention_strip(q);
  CHECK(strip >= 64);
  CHECK(device::position_attention_cuda_workspace_bytes(q, v, strip) < 97 * 97 * 97 * 97 * 4 / 8);
  q.h = q.w = 1000;
  CHECK(device::position_attention_strip(q) == 64);
}

TEST_CASE("channel attention equals the CPU's", "[attention]") {
  for (const auto& [s, t, p] : cases(
           {{1, 1, 1, 1}, {2, 3, 5, 7}, {1, 19, 9, 5}, {1, 33, 7, 3}, {2, 8, 15, 21}, {1, 70, 3, 2}, {1, 16, 17, 9}})) {
    INFO(describe(s, t, p));
    const Shape ws{s.n, s.c, s.c, 1};
    const auto x = typed_values("x", s.count(), t, 0.5), dy = typed_values("dy", s.count(), t);
    const Results got = over_orders([&] {
      const DeviceImage dx_in(s, t, p, x), ddy(s, t, p, dy), y(s, t, p), weights(ws, t, p), dx(s, t, p);
      const auto forward = device_space(device::channel_attention_cuda_workspace_bytes(dx_in.view(), y.view()));
      device::channel_attention(nullptr, dx_in.view(), y.view(), weights.view(), forward.data());
      const auto backward =
          device_space(device::channel_attention_backward_cuda_workspace_bytes(dx_in.view(), dx.view()));
      device::channel_attention_backward(nullptr, ddy.view(), dx_in.view(), weights.view(), dx.view(), backward.data());
      return Results{y.values(), weights.values(), dx.values()};
    });
    const TestTensor cx = cpu_tensor(s, x), cdy = cpu_tensor(s, dy), y = cpu_tensor(s), weights = cpu_tensor(ws),
                     dx = cpu_tensor(s);
    CONVOY_CPU(channel_attention, cx.view(), y.view(), weights.view());
    auto workspace = space(CONVOY_CPU(channel_attention_backward_workspace_bytes, cx.view()));
    CONVOY_CPU(channel_attention_backward, cdy.view(), cx.view(), weights.view(), dx.view(), workspace.data());
    CHECK(relative_error(got[0], y.values()) <= 2 * tolerance(t));
    CHECK(relative_error(got[1], weights.values()) <= 2 * tolerance(t));
    CHECK(relative_error(got[2], dx.values()) <= 8 * tolerance(t));
  }
}

TEST_CASE("encoding by codewords equals the CPU's", "[attention]") {
  const int64_t counts[] = {1, 4, 32, 37, 5, 33, 3};
  size_t i = 0;
  for (const auto& [s, t, p] : cases(
           {{1, 1, 1, 1}, {2, 3, 5, 7}, {1, 19, 9, 5}, {1, 33, 7, 3}, {2, 8, 15, 21}, {1, 70, 3, 2}, {3, 16, 4, 9}})) {
    const int64_t count = counts[i++];
    INFO(describe(s, t, p) << " codewords " << count);
    const auto words = static_cast<size_t>(count);
    const Shape ds{s.n, count, s.h, s.w};
    const auto x = typed_values("x", s.count(), t), codewords = random_values("c", count * s.c, 0.5),
               scale = random_values("s", count, 0.2, -0.3), dy = random_values("dy", s.n * count * s.c);
    const Results got = over_orders([&] {
      const DeviceImage dx_in(s, t, p, x), distances(ds, t, p), dx(s, t, p);
      const DeviceBuffer<float> dc(codewords), dscale(scale), ddy(dy), y(dy.size()), out_c(codewords.size()),
          out_scale(words);
      const View c = plain(dc.data(), count, s.c);
      const auto forward = device_space(device::encoding_cuda_workspace_bytes(dx_in.view(), count));
      device::encoding(nullptr, dx_in.view(), c, dscale.data(), plain(y.data(), s.n, count, s.c), distances.view(),
                       forward.data());
      const auto backward = device_space(
          device::encoding_backward_cuda_workspace_bytes(dx_in.view(), distances.view(), dx.view(), count));
      device::encoding_backward(nullptr, plain(ddy.data(), s.n, count, s.c), dx_in.view(), c, dscale.data(),
                                distances.view(), dx.view(), out_c.data(), out_scale.data(), backward.data());
      return Results{y.host(), distances.values(), dx.values(), out_c.host(), out_scale.host()};
    });
    const TestTensor cx = cpu_tensor(s, x), distances = cpu_tensor(ds), dx = cpu_tensor(s);
    std::vector<float> y(dy.size()), out_c(codewords.size()), out_scale(words);
    const View c = plain(codewords.data(), count, s.c);
    auto workspace = space(CONVOY_CPU(encoding_workspace_bytes, cx.view(), count));
    CONVOY_CPU(encoding, cx.view(), c, scale.data(), plain(y.data(), s.n, count, s.c), distances.view(),
               workspace.data());
    workspace = space(CONVOY_CPU(encoding_backward_workspace_bytes, cx.view(), count));
    CONVOY_CPU(encoding_backward, plain(dy.data(), s.n, count, s.c), cx.view(), c, scale.data(), distances.view(),
               dx.view(), out_c.data(), out_scale.data(), workspace.data());
    CHECK(relative_error(got[0], y) <= 2e-5);
    CHECK(relative_error(got[1], distances.values()) <= tolerance(t));
    CHECK(relative_error(got[2], dx.values()) <= std::max(2e-5, 2 * tolerance(t)));
    CHECK(relative_error(got[3], out_c) <= 3e-5);
    if (count > 1) CHECK(relative_error(got[4], out_scale) <= 5e-5);
  }
}

TEST_CASE("attention refuses other layouts", "[attention]") {
  const Shape s{1, 8, 2, 2};
  const DeviceImage x(s, DType::kF32, Placement::kDense);
  View nchw = x.view();
  nchw.layout = Layout::kNchw;
  CHECK_THROWS_AS(device::ca_weight(nullptr, x.view(), nchw, x.view(), nullptr), std::invalid_argument);
  CHECK_THROWS_AS(device::channel_attention(nullptr, nchw, x.view(), x.view(), nullptr), std::invalid_argument);
}

}  // namespace
}  // namespace convoy::test
