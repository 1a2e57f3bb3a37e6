// Messages between ranks, packed and unpacked on a device, against the same sums in double.
#include <catch2/catch.hpp>
#include <memory>

#include "kernels/exchange.h"
#include "tests/emulator/twins.h"

namespace convoy::test {
namespace {

View plain_view(const DeviceBuffer<float>& buffer, int64_t count) {
  View v;
  v.data = buffer.data();
  v.dtype = DType::kF32;
  v.layout = Layout::kNchw;
  v.n = 1, v.c = count, v.h = v.w = 1;
  return v;
}

struct Moments {
  double count = 0, mean = 0, m2 = 0;
  void merge(double n, double part_mean, double part_m2) {
    if (n == 0) return;
    const double delta = part_mean - mean, total = count + n;
    mean += delta * n / total;
    m2 += part_m2 + delta * delta * count * n / total;
    count = total;
  }
};

/// Values of lanes in device memory.
struct LaneArrays {
  std::vector<std::vector<float>> values;
  std::vector<std::unique_ptr<DeviceBuffer<float>>> buffers;
  std::vector<View> views;
  LaneArrays(const std::string& name, int lanes, int64_t count, double offset) {
    for (int lane = 0; lane < lanes; ++lane) {
      values.push_back(random_values(name + std::to_string(lane), count, 1, offset));
      buffers.push_back(std::make_unique<DeviceBuffer<float>>(values.back()));
      views.push_back(plain_view(*buffers.back(), count));
    }
  }
};

TEST_CASE("lanes are summed in their order", "[exchange]") {
  for (const int lanes : {0, 1, 3, 64, 67})
    for (const int64_t count : {1, 19, 300}) {
      const LaneArrays in("sum", lanes, count, 0);
      const Results results = over_orders([&] {
        DeviceBuffer<float> sum(static_cast<size_t>(count)), scaled(static_cast<size_t>(count));
        device::sum_lanes(nullptr, in.views, count, sum.data());
        device::scale_floats(nullptr, sum.data(), count, 1.0 / 3, scaled.data());
        return Results{sum.host(), scaled.host()};
      });
      int64_t wrong = 0;
      for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
        float sum = 0;
        for (const auto& lane : in.values) sum += lane[i];
        wrong += results[0][i] != sum || results[1][i] != static_cast<float>(1.0 / 3 * sum);
      }
      INFO(lanes << " lanes of " << count);
      CHECK(wrong == 0);
    }
}

TEST_CASE("statistics of lanes and ranks are merged", "[exchange]") {
  for (const int lanes : {1, 2, 66})
    for (const int64_t channels : {1, 33, 300}) {
      const double lane_count = 35;
      const LaneArrays means("mean", lanes, channels, 4), vars("var", lanes, channels, 3);
      // Ranks: one without images, this one, one of a single value far away.
      const auto width = static_cast<size_t>(channels), stride = 1 + 2 * width;
      std::vector<float> all(3 * stride, 0.f);
      all[2 * stride] = 1;
      for (size_t c = 0; c < width; ++c) all[2 * stride + 1 + c] = -1000.f;
      const Results results = over_orders([&] {
        DeviceBuffer<float> messages(all), mean(width), var(width);
        device::bn_merge_lanes(nullptr, {}, {}, lane_count, channels, messages.data());
        device::bn_merge_lanes(nullptr, means.views, vars.views, lane_count, channels, messages.data() + stride);
        device::bn_merge_ranks(nullptr, messages.data(), static_cast<int64_t>(stride), 3, channels, mean.data(),
                               var.data());
        return Results{messages.host(), mean.host(), var.host()};
      });
      CHECK(results[0][0] == 0.f);
      CHECK(results[0][stride] == static_cast<float>(lane_count * lanes));
      for (size_t c = 0; c < width; ++c) {
        Moments expected;
        for (size_t lane = 0; lane < static_cast<size_t>(lanes); ++lane)
          expected.merge(lane_count, means.values[lane][c], vars.values[lane][c] * lane_count);
        CHECK(results[0][stride + 1 + c] == Approx(expected.mean).epsilon(1e-6));
        CHECK(results[0][stride + 1 + width + c] == Approx(expected.m2).epsilon(1e-6));
        expected.merge(1, -1000, 0);
        CHECK(results[1][c] == Approx(expected.mean).epsilon(1e-6));
        CHECK(results[2][c] == Approx(expected.m2 / expected.count).epsilon(1e-6));
      }
    }
}

}  // namespace
}  // namespace convoy::test
