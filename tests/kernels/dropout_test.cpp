#include "kernels/dropout.h"

#include "engine/rng.h"
#include "tests/kernels/blocked_tensor.h"

namespace convoy::test {

TEST_CASE("dropout's mask follows from key, step, slot and element in every layout") {
  const uint64_t key = 0x0123456789abcdefull, step = (7ull << 32) + 5;
  for (const int64_t block : channel_blocks())
    for (const Shape s : image_shapes())
      for (const bool whole_channels : {false, true})
        for (const float p : {0.0f, 0.1f, 0.5f, 1.0f})
          for (const Layout layout : {Layout::kBlocked, Layout::kNchw, Layout::kNhwc}) {
            INFO("block " << block << " shape " << s.text() << " p " << p << " whole " << whole_channels << " "
                          << layout_name(layout));
            const int64_t first_slot = 11;
            const std::vector<float> x = random_values("dropout.x", s.count());
            std::vector<float> want;
            for (int64_t i = 0; i < s.count(); ++i) {
              const int64_t within = i % (s.c * s.h * s.w), slot = first_slot + i / (s.c * s.h * s.w);
              const int64_t e = whole_channels ? within / (s.h * s.w) : within;
              const auto words = philox(key, step, static_cast<uint64_t>(slot) << 32 | static_cast<uint64_t>(e / 4));
              const bool keep = unit_float(words[static_cast<size_t>(e % 4)]) >= p;
              want.push_back(keep ? x[static_cast<size_t>(i)] * static_cast<float>(1 / (1 - double(p))) : 0.0f);
            }
            same_for_any_threads([&] {
              TestTensor tx(s, layout, block, true), ty(s, layout, block, true);
              tx.fill(x);
              CONVOY_KERNEL(block, dropout)(tx.view(), p, key, step, first_slot, whole_channels, ty.view());
              CHECK(ty.values() == want);
              CHECK(ty.surroundings_intact());
              CONVOY_KERNEL(block, dropout)(tx.view(), p, key, step, first_slot, whole_channels, tx.view());
              CHECK(tx.same_bits(ty));
              return ty.values();
            });
          }
}

TEST_CASE("dropout keeps its share and differs from step to step") {
  for (const int64_t block : channel_blocks()) {
    const Shape s{1, 16, 64, 64};
    TestTensor x(s, Layout::kBlocked, block), a(s, Layout::kBlocked, block), b(s, Layout::kBlocked, block);
    x.fill(std::vector<float>(static_cast<size_t>(s.count()), 1.0f));
    CONVOY_KERNEL(block, dropout)(x.view(), 0.3f, 1, 0, 0, false, a.view());
    CONVOY_KERNEL(block, dropout)(x.view(), 0.3f, 1, 1, 0, false, b.view());
    double kept = 0;
    for (const float v : a.values()) kept += v > 0;
    CHECK(kept / static_cast<double>(s.count()) == Approx(0.7).margin(0.01));
    CHECK_FALSE(a.same_bits(b));
  }
}

TEST_CASE("Philox gives the published words") {
  CHECK(philox(0, 0, 0) == std::array<uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(philox(~0ull, ~0ull, ~0ull) == std::array<uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
}

}  // namespace convoy::test
