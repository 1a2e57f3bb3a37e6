// kernels/shuffle.cu in the emulator against the CPU twins. Nothing is computed, so results are equal.
#include "kernels/shuffle.h"
#include "tests/emulator/twins.h"

namespace convoy::test {
namespace {

struct Case {
  Shape wide;
  int64_t r;

  Shape deep() const { return {wide.n, wide.c * r * r, wide.h / r, wide.w / r}; }
};

std::vector<int32_t> channel_table(const Case& k, DepthOrder order) {
  std::vector<int32_t> table;
  for (int64_t corner = 0; corner < k.r * k.r; ++corner)
    for (int64_t c = 0; c < k.wide.c; ++c)
      table.push_back(
          static_cast<int32_t>(order == DepthOrder::kChannelSlow ? c * k.r * k.r + corner : corner * k.wide.c + c));
  return table;
}

/// Calls f(dtype, placement) for three of the twelve combinations, others from call to call.
template <class F>
void for_some_images(int& turn, F f) {
  int k = turn++;
  for (const DType dtype : kFloatTypes)
    for (const Placement placement : kPlacements)
      if (k++ % 4 == 0) f(dtype, placement);
}

TEST_CASE("depth to space and back equal the CPU's", "[shuffle]") {
  const Case cases[] = {
      {{1, 1, 1, 1}, 1}, {{2, 3, 6, 10}, 2}, {{1, 19, 9, 3}, 3}, {{3, 8, 2, 4}, 2}, {{1, 33, 4, 4}, 4}};
  int turn = 0;
  for (const Case& k : cases)
    for (const DepthOrder order : {DepthOrder::kChannelSlow, DepthOrder::kCornerSlow}) {
      const std::vector<int32_t> channel_of = channel_table(k, order);
      std::vector<int32_t> place_of(channel_of.size());
      for (size_t i = 0; i < place_of.size(); ++i)
        place_of[static_cast<size_t>(channel_of[i])] = static_cast<int32_t>(i);
      for_some_images(turn, [&](DType t, Placement p) {
        INFO(describe(k.wide, t, p) << " r " << k.r << " order " << static_cast<int64_t>(order));
        const auto wide = typed_values("wide", k.wide.count(), t), deep = typed_values("deep", k.wide.count(), t);
        const Results got = over_orders([&] {
          const DeviceImage from(k.deep(), t, p, deep), to(k.wide, t, p), back_from(k.wide, t, p, wide),
              back_to(k.deep(), t, p);
          device::depth_to_space(nullptr, from.view(), order, k.r, to.view());
          device::space_to_depth(nullptr, back_from.view(), order, k.r, back_to.view());
          return Results{to.values(), back_to.values()};
        });
        const TestTensor cdeep = cpu_tensor(k.deep(), deep), cwide = cpu_tensor(k.wide, wide), to = cpu_tensor(k.wide),
                         back_to = cpu_tensor(k.deep());
        CONVOY_CPU(depth_to_space, cdeep.view(), channel_of.data(), k.r, to.view());
        CONVOY_CPU(space_to_depth, cwide.view(), place_of.data(), k.r, back_to.view());
        CHECK(got[0] == to.values());
        CHECK(got[1] == back_to.values());
      });
    }
}

TEST_CASE("channel shuffles equal the CPU's, and two of them give x again", "[shuffle]") {
  struct Shuffle {
    Shape shape;
    int64_t groups;
  };
  const Shuffle cases[] = {{{1, 1, 1, 1}, 1}, {{2, 6, 3, 5}, 2}, {{1, 33, 2, 7}, 3}, {{1, 300, 1, 3}, 4}};
  int turn = 0;
  for (const Shuffle& k : cases) {
    const Shape s = k.shape;
    const int64_t groups = k.groups;
    std::vector<int32_t> table;
    for (int64_t c = 0; c < s.c; ++c) table.push_back(static_cast<int32_t>(c % groups * (s.c / groups) + c / groups));
    for_some_images(turn, [&](DType t, Placement p) {
      INFO(describe(s, t, p) << " groups " << groups);
      const auto x = typed_values("x", s.count(), t);
      const Results got = over_orders([&] {
        const DeviceImage from(s, t, p, x), y(s, t, p), back(s, t, p);
        device::channel_shuffle(nullptr, from.view(), groups, y.view());
        device::channel_shuffle(nullptr, y.view(), s.c / groups, back.view());
        return Results{y.values(), back.values()};
      });
      const TestTensor cx = cpu_tensor(s, x), cy = cpu_tensor(s);
      CONVOY_CPU(depth_to_space, cx.view(), table.data(), 1, cy.view());
      CHECK(got[0] == cy.values());
      CHECK(got[1] == x);
    });
  }
}

TEST_CASE("shuffles name sizes that do not fit", "[shuffle]") {
  const DeviceImage a({1, 4, 2, 2}, DType::kF32, Placement::kDense), b({1, 2, 4, 4}, DType::kF32, Placement::kDense);
  CHECK_THROWS_WITH(device::depth_to_space(nullptr, a.view(), DepthOrder::kChannelSlow, 2, b.view()),
                    Catch::Contains("depth_to_space: sizes"));
  CHECK_THROWS_WITH(device::channel_shuffle(nullptr, a.view(), 3, a.view()), Catch::Contains("groups"));
}

}  // namespace
}  // namespace convoy::test
