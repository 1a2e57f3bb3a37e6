// kernels/pool.cu in the emulator against the CPU twins.
#include <climits>

#include "kernels/pool.h"
#include "tests/emulator/twins.h"

namespace convoy::test {
namespace {

struct PoolCase {
  Shape x;
  Pool2d pool;
  int64_t oh, ow;
};

// Windows that overlap, leave gaps, reach over the end (ceil mode), are not square; one window for all.
std::vector<PoolCase> pool_cases() {
  const Pool2d overlapping{3, 3, 2, 2, 1, 1, true}, plain{2, 2, 2, 2, 0, 0, false}, ceil{3, 2, 2, 3, 1, 1, false},
      gaps{1, 1, 2, 2, 0, 0, true}, wide{5, 3, 1, 2, 2, 1, false};
  return {
      {{2, 3, 5, 7}, overlapping, 3, 4},   {{1, 19, 9, 5}, plain, 4, 2}, {{1, 33, 6, 4}, ceil, 4, 2},
      {{1, 64, 5, 6}, gaps, 3, 3},         {{3, 8, 4, 5}, wide, 4, 3},   {{1, 1, 1, 1}, gaps, 1, 1},
      {{1, 300, 3, 3}, overlapping, 2, 2}, {{2, 5, 7, 7}, ceil, 4, 3},
  };
}

/// An index in device memory that lies like the image of the pooled values.
class DeviceIndex {
 public:
  DeviceIndex(const View& like, int64_t pitch) : bytes_(static_cast<size_t>(like.n * like.pixels() * pitch)) {
    view_ = like;
    view_.dtype = DType::kI32;
    view_.data = bytes_.data();
    view_.pitch = pitch;
  }
  /// From NCHW positions.
  DeviceIndex(const View& like, int64_t pitch, const std::vector<float>& nchw) : DeviceIndex(like, pitch) {
    std::vector<int32_t> host(bytes_.host().size(), INT_MIN);
    each([&](size_t from, size_t to) { host[to] = static_cast<int32_t>(nchw[from]); });
    cudaMemcpy(bytes_.data(), host.data(), host.size() * sizeof(int32_t), cudaMemcpyHostToDevice);
  }
  const View& view() const { return view_; }
  /// NCHW positions. Fails the test where a pad is not zero.
  std::vector<float> values() const {
    const auto host = bytes_.host();
    std::vector<float> result(static_cast<size_t>(view_.count()));
    each([&](size_t from, size_t to) { result[from] = static_cast<float>(host[to]); });
    int64_t bad_pads = 0;
    for (int64_t row = 0; row < view_.n * view_.pixels(); ++row)
      for (int64_t c = view_.c; c < view_.blocks() * view_.block; ++c)
        bad_pads += host[static_cast<size_t>(row * view_.pitch + c)] != 0;
    CHECK(bad_pads == 0);
    return result;
  }

 private:
  template <class F>
  void each(F f) const {
    for (int64_t n = 0; n < view_.n; ++n)
      for (int64_t c = 0; c < view_.c; ++c)
        for (int64_t p = 0; p < view_.pixels(); ++p)
          f(static_cast<size_t>((n * view_.c + c) * view_.pixels() + p),
            static_cast<size_t>((n * view_.pixels() + p) * view_.pitch + c));
  }
  DeviceBuffer<int32_t> bytes_;
  View view_;
};

std::vector<float> as_floats(const TestTensor& index) {
  std::vector<float> values = index.values();
  for (float& v : values) {
    int32_t i;
    std::memcpy(&i, &v, sizeof i);
    v = static_cast<float>(i);
  }
  return values;
}

template <class F>
void for_all_pool_cases(F f) {
  size_t turn = 0;
  for (const PoolCase& c : pool_cases())
    for (const DType t : kFloatTypes)
      for (int k = 0; k < 2; ++k) {
        const Placement p = kPlacements[turn++ % 4];
        INFO(describe(c.x, t, p));
        f(c, Shape{c.x.n, c.x.c, c.oh, c.ow}, t, p);
      }
}

TEST_CASE("max pooling, its index and its gradient equal the CPU's", "[pool]") {
  for_all_pool_cases([](const PoolCase& c, Shape out, DType t, Placement p) {
    // Few values, so that windows have equal maxima.
    auto x = typed_values("x", c.x.count(), t, 3);
    for (float& v : x) v = std::round(v);
    const auto dy = typed_values("dy", out.count(), t);
    const Results got = over_orders([&] {
      const DeviceImage in(c.x, t, p, x), y(out, t, p), without(out, t, p), ddy(out, t, p, dy), dx(c.x, t, p);
      const DeviceIndex index(y.view(), y.view().pitch);
      device::max_pool(nullptr, in.view(), c.pool, y.view(), &index.view());
      device::max_pool(nullptr, in.view(), c.pool, without.view(), nullptr);
      device::max_pool_backward(nullptr, ddy.view(), index.view(), c.pool, dx.view());
      return Results{y.values(), without.values(), index.values(), dx.values()};
    });
    const TestTensor cx = cpu_tensor(c.x, x), cy = cpu_tensor(out), index = cpu_tensor(out), cdy = cpu_tensor(out, dy),
                     dx = cpu_tensor(c.x);
    CONVOY_CPU(max_pool, cx.view(), c.pool, cy.view(), &index.view());
    CONVOY_CPU(max_pool_backward, cdy.view(), index.view(), c.pool, dx.view());
    CHECK(bits(got[0]) == bits(cy.values()));
    CHECK(bits(got[1]) == bits(cy.values()));
    CHECK(bits(got[2]) == bits(as_floats(index)));
    CHECK(bits(got[3]) == bits(rounded(dx.values(), t)));
  });
}

TEST_CASE("a maximum over NaN is NaN", "[pool]") {
  const Shape s{1, 9, 3, 3}, out{1, 9, 1, 1};
  auto x = random_values("x", s.count());
  x[9 * 4 + 2] = std::numeric_limits<float>::quiet_NaN();
  const DeviceImage in(s, DType::kF32, Placement::kPadded, x), y(out, DType::kF32, Placement::kPadded);
  const DeviceIndex index(y.view(), 16);
  device::max_pool(nullptr, in.view(), {.kernel_h = 3, .kernel_w = 3}, y.view(), &index.view());
  const auto got = y.values();
  for (size_t c = 0; c < 9; ++c) CHECK(std::isnan(got[c]) == (c == 4));
  CHECK(index.values()[4] == 2);
}

TEST_CASE("average pooling and its gradient equal the CPU's", "[pool]") {
  for_all_pool_cases([](const PoolCase& c, Shape out, DType t, Placement p) {
    const auto x = typed_values("x", c.x.count(), t, 3), dy = typed_values("dy", out.count(), t);
    const Results got = over_orders([&] {
      const DeviceImage in(c.x, t, p, x), y(out, t, p), ddy(out, t, p, dy), dx(c.x, t, p);
      device::avg_pool(nullptr, in.view(), c.pool, y.view());
      device::avg_pool_backward(nullptr, ddy.view(), c.pool, dx.view());
      return Results{y.values(), dx.values()};
    });
    const TestTensor cx = cpu_tensor(c.x, x), cy = cpu_tensor(out), cdy = cpu_tensor(out, dy), dx = cpu_tensor(c.x);
    CONVOY_CPU(avg_pool, cx.view(), c.pool, cy.view());
    CONVOY_CPU(avg_pool_backward, cdy.view(), c.pool, dx.view());
    CHECK(relative_error(got[0], cy.values()) <= tolerance(t));
    CHECK(relative_error(got[1], dx.values()) <= tolerance(t));
  });
}

TEST_CASE("adaptive pooling and its gradient equal the CPU's", "[pool]") {
  struct Case {
    Shape x;
    int64_t oh, ow;
  };
  // Small and large bins, bins that overlap, more bins than pixels, several parts of a bin.
  const std::vector<Case> cases = {{{1, 1, 1, 1}, 1, 1},  {{2, 3, 5, 7}, 1, 1},    {{2, 3, 5, 7}, 3, 2},
                                   {{1, 19, 9, 5}, 1, 1}, {{1, 33, 13, 17}, 2, 2}, {{1, 64, 2, 3}, 3, 5},
                                   {{3, 8, 11, 5}, 1, 2}, {{2, 5, 21, 17}, 1, 1},  {{1, 300, 7, 6}, 1, 1}};
  size_t turn = 0;
  for (const Case& c : cases)
    for (const DType t : kFloatTypes) {
      const Placement p = kPlacements[turn++ % 4];
      INFO(describe(c.x, t, p) << " to " << c.oh << "x" << c.ow);
      const Shape out{c.x.n, c.x.c, c.oh, c.ow};
      const auto x = typed_values("x", c.x.count(), t, 3, 2), dy = typed_values("dy", out.count(), t);
      const Results got = over_orders([&] {
        const DeviceImage in(c.x, t, p, x), y(out, t, p), ddy(out, t, p, dy), dx(c.x, t, p);
        const DeviceBuffer<unsigned char> workspace(device::adaptive_pool_cuda_workspace_bytes(in.view(), y.view()));
        device::adaptive_avg_pool(nullptr, in.view(), y.view(), reinterpret_cast<float*>(workspace.data()));
        device::adaptive_avg_pool_backward(nullptr, ddy.view(), dx.view());
        return Results{y.values(), dx.values()};
      });
      const TestTensor cx = cpu_tensor(c.x, x), cy = cpu_tensor(out), cdy = cpu_tensor(out, dy), dx = cpu_tensor(c.x);
      CONVOY_CPU(adaptive_avg_pool, cx.view(), cy.view());
      CONVOY_CPU(adaptive_avg_pool_backward, cdy.view(), dx.view());
      CHECK(relative_error(got[0], cy.values()) <= tolerance(t));
      CHECK(relative_error(got[1], dx.values()) <= tolerance(t));
    }
}

TEST_CASE("unpooling and its gradient equal the CPU's", "[pool]") {
  size_t turn = 0;
  for (const Shape z : {Shape{1, 1, 1, 1}, {2, 3, 3, 4}, {1, 19, 4, 2}, {1, 64, 3, 3}, {3, 8, 2, 2}})
    for (const DType t : kFloatTypes) {
      const Placement p = kPlacements[turn++ % 4];
      INFO(describe(z, t, p));
      const Shape y{z.n, z.c, 2 * z.h + 1, 2 * z.w};
      const auto values = typed_values("z", z.count(), t), dy = typed_values("dy", y.count(), t);
      // Some places are named several times; with an odd turn some lie outside.
      const bool faulty = turn % 2 == 1;
      auto index = random_values("index", z.count(), 0.5, 0.5);
      for (float& v : index) v = std::floor(v * static_cast<float>((faulty ? 5 : 4) * y.h * y.w) / 4.f);
      for (size_t i = 0; i < index.size() && !faulty; ++i)
        index[i] = std::min(index[i], static_cast<float>(y.h * y.w - 1));
      const Results got = over_orders([&] {
        const DeviceImage in(z, t, p, values), out(y, t, p), ddy(y, t, p, dy), dz(z, t, p);
        const DeviceIndex places(in.view(), in.view().pitch, index);
        const DeviceBuffer<int32_t> workspace(device::max_unpool_cuda_workspace_bytes(out.view()) / sizeof(int32_t));
        const DeviceBuffer<int64_t> fault(std::vector<int64_t>{INT64_MAX});
        device::max_unpool(nullptr, in.view(), places.view(), out.view(), fault.data(), workspace.data());
        device::max_unpool_backward(nullptr, ddy.view(), places.view(), dz.view());
        const int64_t bad = fault.host()[0];
        return Results{out.values(), dz.values(), {bad == INT64_MAX ? -1.f : static_cast<float>(bad)}};
      });
      const TestTensor cz = cpu_tensor(z, values), cy = cpu_tensor(y), cdy = cpu_tensor(y, dy), dz = cpu_tensor(z);
      std::vector<float> raw(index.size());
      for (size_t i = 0; i < index.size(); ++i) {
        const auto at = static_cast<int32_t>(index[i]);
        std::memcpy(&raw[i], &at, sizeof at);
      }
      const TestTensor places = cpu_tensor(z, raw);
      int64_t bad = -1;
      CONVOY_CPU(max_unpool, cz.view(), places.view(), cy.view(), &bad);
      CONVOY_CPU(max_unpool_backward, cdy.view(), places.view(), dz.view());
      CHECK(bits(got[0]) == bits(cy.values()));
      CHECK(bits(got[1]) == bits(dz.values()));
      CHECK(got[2][0] == static_cast<float>(bad));
    }
}

TEST_CASE("pooling refuses an index of another kind", "[pool]") {
  const Shape s{1, 8, 2, 2};
  const DeviceImage x(s, DType::kF32, Placement::kDense, random_values("x", s.count()));
  CHECK_THROWS_AS(device::max_pool_backward(nullptr, x.view(), x.view(), {}, x.view()), std::invalid_argument);
}

}  // namespace
}  // namespace convoy::test
