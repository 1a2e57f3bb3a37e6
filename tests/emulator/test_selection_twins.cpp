// kernels/selection.cu in the emulator against sorting, and against the CPU twins where there are such.
#include <algorithm>

#include "kernels/selection.h"
#include "kernels/softmax_ce.h"
#include "tests/emulator/twins.h"

namespace convoy::test {
namespace {

/// Values in [0,1] with many equals, crowded near 1, and some that are no candidates.
std::vector<float> candidates_and_others(int64_t count) {
  const golden::Stream u("values");
  std::vector<float> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) {
    const double v = u[i];
    values[i] = static_cast<float>(i % 3 == 0 ? v : i % 3 == 1 ? 1 - v * v * 1e-4 : std::floor(8 * v) / 8);
    if (i % 13 == 5) values[i] = kNoProbability;
    if (i % 17 == 3) values[i] = -1;
    if (i == 20) values[i] = NAN;
    if (i == 21) values[i] = -0.f;
    if (i == 22) values[i] = 1e-40f;
  }
  return values;
}

std::vector<float> sorted_candidates(std::vector<float> values, bool descending) {
  std::erase_if(values, [](float v) { return !(v >= 0 && v <= 1); });
  std::stable_sort(values.begin(), values.end(), [&](float a, float b) { return descending ? a > b : a < b; });
  return values;
}

constexpr int64_t kCounts[] = {1, 30, 9001};

TEST_CASE("the hard threshold is the value that sorting gives", "[selection]") {
  for (const int64_t count : kCounts) {
    const auto values = candidates_and_others(count), sorted = sorted_candidates(values, false);
    const auto candidates = static_cast<int64_t>(sorted.size());
    for (const float limit : {0.f, 0.7f})
      for (const int64_t min_kept : {int64_t{0}, int64_t{1}, candidates / 2, candidates, candidates + 1}) {
        INFO(count << " values, limit " << limit << ", at least " << min_kept);
        const Results got = over_orders([&] {
          const DeviceBuffer<float> dvalues(values), threshold(1), keeps_all(1);
          const DeviceBuffer<unsigned char> workspace(selection_cuda_workspace_bytes(count));
          device::hard_threshold(nullptr, dvalues.data(), count, limit, min_kept, threshold.data(), keeps_all.data(),
                                 workspace.data());
          return Results{threshold.host(), keeps_all.host()};
        });
        const bool keeps_all = min_kept > candidates;
        const auto below = std::count_if(sorted.begin(), sorted.end(), [&](float v) { return v <= limit; });
        const float want = keeps_all           ? 1.f
                           : below >= min_kept ? limit
                                               : sorted[static_cast<size_t>(min_kept - 1)] + 0.f;
        CHECK(got[0][0] == want);
        CHECK(got[1][0] == (keeps_all ? 1.f : 0.f));
      }
  }
}

TEST_CASE("labels of easy pixels are ignored as on the CPU", "[selection]") {
  for (const int64_t count : kCounts)
    for (const float threshold : {0.f, 0.625f, 1.f}) {
      const auto values = candidates_and_others(count);
      std::vector<int32_t> target(values.size()), want(values.size());
      for (size_t i = 0; i < target.size(); ++i) target[i] = static_cast<int32_t>(i % 19);
      const DeviceBuffer<float> dvalues(values), dthreshold(std::vector<float>{threshold});
      const DeviceBuffer<int32_t> dtarget(target), kept(target.size());
      device::keep_hard_labels(nullptr, dtarget.data(), dvalues.data(), count, 255, dthreshold.data(), kept.data());
      CONVOY_CPU(keep_hard_labels, target.data(), values.data(), count, 255, &threshold, want.data());
      CHECK(kept.host() == want);
    }
}

TEST_CASE("selected negatives are those that sorting gives", "[selection]") {
  for (const int64_t count : kCounts) {
    const int64_t images = count % 2 ? 1 : 2, anchors = count / images;
    const auto values = candidates_and_others(count), sorted = sorted_candidates(values, true);
    const auto candidates = static_cast<int64_t>(sorted.size());
    for (const int64_t wanted : {int64_t{0}, int64_t{1}, candidates / 3, candidates - 1, candidates + 5})
      for (const int64_t otherwise : {0, 7}) {
        if (otherwise == 7 && wanted != 0) continue;
        INFO(count << " values, wanted " << wanted << " or " << otherwise);
        const Results got = over_orders([&] {
          const DeviceBuffer<float> dvalues(values), dwanted(std::vector<float>{static_cast<float>(wanted)}),
              selection(3);
          const DeviceBuffer<unsigned char> workspace(selection_cuda_workspace_bytes(count));
          device::box_selection(nullptr, dvalues.data(), images, anchors, dwanted.data(), otherwise, selection.data(),
                                workspace.data());
          return Results{selection.host()};
        });
        const int64_t k = std::min(wanted > 0 ? wanted : otherwise, candidates);
        std::vector<float> want{2, 0, 0};
        if (k > 0) {
          const float last = sorted[static_cast<size_t>(k - 1)];
          int64_t ties = k - std::count_if(sorted.begin(), sorted.end(), [&](float v) { return v > last; });
          int64_t place = 0;
          for (int64_t i = 0; i < count && ties > 0; ++i)
            if (values[static_cast<size_t>(i)] == last && --ties == 0) place = i;
          want = {last, static_cast<float>(place / anchors), static_cast<float>(place % anchors)};
        }
        CHECK(got[0] == want);
      }
  }
}

TEST_CASE("more equals than a chunk holds are told apart by their places", "[selection]") {
  std::vector<float> values(3 * static_cast<size_t>(kTieChunk) + 100, 0.25f);
  const auto count = static_cast<int64_t>(values.size());
  for (const int64_t wanted : {kTieChunk, 2 * kTieChunk + 1, count}) {
    const DeviceBuffer<float> dvalues(values), dwanted(std::vector<float>{static_cast<float>(wanted)}), selection(3);
    const DeviceBuffer<unsigned char> workspace(selection_cuda_workspace_bytes(count));
    device::box_selection(nullptr, dvalues.data(), 1, count, dwanted.data(), 0, selection.data(), workspace.data());
    CHECK(selection.host() == std::vector<float>{0.25f, 0.f, static_cast<float>(wanted - 1)});
  }
}

}  // namespace
}  // namespace convoy::test
