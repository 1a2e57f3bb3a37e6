#include "kernels/metrics.h"
#include "tests/kernels/image_tensor.h"

namespace convoy::test {

TEST_CASE("argmax over channels: the lowest of equals, any layout") {
  for (const int64_t c : {1, 3, 19, 33})  // beside the blocks
    for (const int64_t block : {1, 8, 16}) {
      ImageTensor x(2, c, 3, 5, block, 1);
      auto values = random_values(2 * c * 15, 7);
      for (float& v : values) v = std::round(v * 3);  // many ties
      x.fill(values);
      std::vector<int32_t> labels(30, -5);
      argmax_channels(x.view(), labels.data());
      for (int64_t i = 0; i < 30; ++i) {
        int64_t best = 0;
        const auto at = [&](int64_t k) { return values[static_cast<size_t>((i / 15 * c + k) * 15 + i % 15)]; };
        for (int64_t k = 1; k < c; ++k)
          if (at(k) > at(best)) best = k;
        CHECK(labels[static_cast<size_t>(i)] == best);
      }
    }
}

TEST_CASE("confusion matrix adds counts and names the first wrong pixel") {
  const std::vector<int32_t> target = {0, 1, 2, 2, -1, 1, 0}, prediction = {0, 2, 2, 1, 0, 2, 0};
  std::vector<int64_t> matrix(9, 0);
  for (const int threads : {1, 3}) {
    Threads scope(threads);
    CHECK(confusion_matrix(prediction.data(), target.data(), 7, 3, -1, matrix.data()) == -1);
  }
  CHECK(matrix == std::vector<int64_t>{4, 0, 0, 0, 0, 4, 0, 2, 2});
  const std::vector<int32_t> wrong = {0, 1, 3, 2, -1, -2, 0};
  CHECK(confusion_matrix(prediction.data(), wrong.data(), 7, 3, -1, matrix.data()) == 2);
}

}  // namespace convoy::test
