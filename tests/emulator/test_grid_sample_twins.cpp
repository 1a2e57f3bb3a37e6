// kernels/grid_sample.cu in the emulator against the CPU twins.
#include <cmath>

#include "kernels/grid_sample.h"
#include "tests/emulator/twins.h"

namespace convoy::test {
namespace {

struct Case {
  Shape x;
  int64_t h, w;

  Shape y() const { return {x.n, x.c, h, w}; }
  int64_t coordinates() const { return x.n * h * w * 2; }
  View grid(float* data) const {
    View v;
    v.data = data;
    v.n = x.n, v.c = v.pitch = h, v.h = w, v.w = 2;
    return v;
  }
};

/// Places in and around the image, some that are no numbers, some on top of each other.
std::vector<float> places(const Case& k) {
  std::vector<float> grid = random_values("grid", k.coordinates(), 1.3);
  for (size_t i = 0; i < grid.size(); ++i) {
    if (i % 23 == 6) grid[i] = std::nanf("");
    if (i % 29 == 10) grid[i] = i % 2 ? -INFINITY : 3e38f;
    if (i % 5 == 3 && i > 8) grid[i - 1] = grid[0], grid[i] = grid[1];
  }
  return grid;
}

struct Outcome {
  std::vector<float> y, dx, dgrid;
};

Outcome on_device(const Case& k, DType t, Placement p, const GridSampleParams& params, const std::vector<float>& x,
                  const std::vector<float>& dy, const std::vector<float>& grid) {
  const Results r = over_orders([&] {
    const DeviceImage from(k.x, t, p, x), gradient(k.y(), t, p, dy), y(k.y(), t, p), dx(k.x, t, p);
    const DeviceBuffer<float> at(grid), d_at(grid.size());
    const DeviceBuffer<unsigned char> workspace(device::grid_sample_backward_x_cuda_workspace_bytes(dx.view()));
    device::grid_sample(nullptr, from.view(), k.grid(at.data()), params, y.view());
    device::grid_sample_backward_x(nullptr, gradient.view(), k.grid(at.data()), params, dx.view(), workspace.data());
    device::grid_sample_backward_grid(nullptr, gradient.view(), from.view(), k.grid(at.data()), params,
                                      k.grid(d_at.data()));
    return Results{y.values(), dx.values(), d_at.host()};
  });
  return {r[0], r[1], r[2]};
}

Outcome on_cpu(const Case& k, const GridSampleParams& params, const std::vector<float>& x, const std::vector<float>& dy,
               std::vector<float> grid) {
  const TestTensor cx = cpu_tensor(k.x, x), cdy = cpu_tensor(k.y(), dy), y = cpu_tensor(k.y()), dx = cpu_tensor(k.x);
  std::vector<float> dgrid(grid.size());
  const View at = k.grid(grid.data());
  CONVOY_CPU(grid_sample, cx.view(), at, params, y.view());
  CONVOY_CPU(grid_sample_backward_x, cdy.view(), at, params, dx.view());
  CONVOY_CPU(grid_sample_backward_grid, cdy.view(), cx.view(), at, params, k.grid(dgrid.data()));
  return {y.values(), dx.values(), dgrid};
}

TEST_CASE("sampling at places and its gradients equal the CPU's", "[grid_sample]") {
  const Case cases[] = {{{1, 1, 1, 1}, 1, 1},  {{2, 3, 5, 7}, 4, 3},  {{1, 19, 4, 6}, 7, 5},
                        {{1, 33, 6, 3}, 2, 9}, {{3, 64, 2, 5}, 3, 3}, {{1, 300, 3, 2}, 2, 3}};
  int turn = 0;
  for (const Case& k : cases)
    for (const bool align_corners : {false, true})
      for (const bool nearest : {false, true}) {
        int combination = turn++;
        for (const DType t : kFloatTypes)
          for (const Placement p : kPlacements) {
            if (combination++ % 4 != 0) continue;
            INFO(describe(k.x, t, p) << " corners " << align_corners << " nearest " << nearest);
            const auto x = typed_values("x", k.x.count(), t), dy = typed_values("dy", k.y().count(), t);
            const std::vector<float> grid = places(k);
            const GridSampleParams params{align_corners, nearest};
            const Outcome got = on_device(k, t, p, params, x, dy, grid), want = on_cpu(k, params, x, dy, grid);
            CHECK(relative_error(got.y, want.y) <= tolerance(t));
            CHECK(relative_error(got.dx, want.dx) <= tolerance(t));
            CHECK(relative_error(got.dgrid, want.dgrid) <= tolerance(DType::kF32));
          }
      }
}

TEST_CASE("the gradient of what is sampled, for gradients of every size and all places in one pixel", "[grid_sample]") {
  const Case k{{1, 5, 3, 4}, 9, 11};
  std::vector<float> grid(static_cast<size_t>(k.coordinates()));
  for (size_t i = 0; i < grid.size(); ++i) grid[i] = i % 2 ? 0.1f : -0.2f;
  for (const double scale : {1e-42, 1e-30, 1.0, 1e36}) {
    INFO("scale " << scale);
    const auto x = typed_values("x", k.x.count(), DType::kF32), dy = random_values("dy", k.y().count(), scale, scale);
    const Outcome got = on_device(k, DType::kF32, Placement::kPadded, {}, x, dy, grid);
    const Outcome want = on_cpu(k, {}, x, dy, grid);
    double largest = 0, worst = 0;
    for (size_t i = 0; i < want.dx.size(); ++i) {
      largest = std::max(largest, std::abs(static_cast<double>(want.dx[i])));
      worst = std::max(worst, std::abs(static_cast<double>(got.dx[i]) - static_cast<double>(want.dx[i])));
    }
    CHECK(largest > scale);
    CHECK(worst <= (scale < 1e-40 ? 0.1 : 1e-5) * largest);  // the CPU adds rounded subnormal numbers
  }
  const auto x = typed_values("x", k.x.count(), DType::kF32);
  std::vector<float> dy(static_cast<size_t>(k.y().count()));
  CHECK(on_device(k, DType::kF32, Placement::kDense, {}, x, dy, grid).dx ==
        std::vector<float>(static_cast<size_t>(k.x.count())));
  for (const float bad : {std::nanf(""), INFINITY}) {
    dy[7] = bad;
    for (const float v : on_device(k, DType::kF32, Placement::kPadded, {}, x, dy, grid).dx) CHECK(std::isnan(v));
  }
}

TEST_CASE("sampling names a grid that does not fit", "[grid_sample]") {
  const Case k{{1, 4, 2, 2}, 3, 3}, other{{1, 4, 2, 2}, 3, 2};
  const DeviceImage x(k.x, DType::kF32, Placement::kDense), y(k.y(), DType::kF32, Placement::kDense);
  const DeviceBuffer<float> grid(18);
  CHECK_THROWS_WITH(device::grid_sample(nullptr, x.view(), other.grid(grid.data()), {}, y.view()),
                    Catch::Contains("grid_sample: sizes"));
}

}  // namespace
}  // namespace convoy::test
