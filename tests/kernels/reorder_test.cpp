#include "kernels/reorder.h"

#include "tests/kernels/blocked_tensor.h"

namespace convoy::test {

TEST_CASE("reorder copies between all layouts and slices") {
  const Layout layouts[] = {Layout::kNchw, Layout::kBlocked, Layout::kNhwc};
  for (const int64_t block : channel_blocks())
    for (const Shape s : image_shapes())
      for (const Layout from : layouts)
        for (const Layout to : layouts)
          for (const bool sliced : {false, true}) {
            INFO("block " << block << " shape " << s.text() << " " << layout_name(from) << " to " << layout_name(to)
                          << " sliced " << sliced);
            const std::vector<float> x = random_values("reorder", s.count());
            same_for_any_threads([&] {
              TestTensor source(s, from, block, sliced), target(s, to, block, !sliced);
              source.fill(x);
              CONVOY_KERNEL(block, reorder)(source.view(), target.view());
              CHECK(target.values() == x);
              CHECK(target.surroundings_intact());
              TestTensor part(s, to, block, sliced);
              CONVOY_KERNEL(block, reorder)(source.view(), part.view());
              CHECK(part.values() == x);
              CHECK(part.surroundings_intact());
              return target.values();
            });
          }
}

}  // namespace convoy::test
