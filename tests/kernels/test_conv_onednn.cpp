#include <cstdlib>

#include "kernels/conv2d_onednn.h"
#include "tests/kernels/conv_reference.h"
#include "tests/kernels/image_tensor.h"

#ifdef CONVOY_WITH_ONEDNN

namespace convoy::test {
namespace {

using Direction = OneDnnConv::Direction;

/// Workspace with the alignment that the calls ask for, full of NaN.
class Workspace {
 public:
  explicit Workspace(size_t bytes) : data_(std::aligned_alloc(64, (bytes + 64) / 64 * 64)) {
    std::memset(data_, 0xff, (bytes + 64) / 64 * 64);
  }
  ~Workspace() { std::free(data_); }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
  void* data() const { return data_; }

 private:
  void* data_;
};

struct Results {
  std::vector<float> y, dx, dw;  // empty where oneDNN has only reference code
};

Results run_onednn(const ConvCase& k, const std::vector<float>& x, const std::vector<float>& w,
                   const std::vector<float>& bias, const std::vector<float>& dy, int64_t block, int threads) {
  Threads scope(threads);
  const int64_t x_block = k.c <= 4 ? 1 : block;
  ImageTensor xt(k.n, k.c, k.h, k.w, x_block), dxt(k.n, k.c, k.h, k.w, x_block);
  ImageTensor yt(k.n, k.out_c, k.out_h(), k.out_w(), block), dyt(k.n, k.out_c, k.out_h(), k.out_w(), block);
  xt.fill(x);
  dyt.fill(dy);
  const auto create = [&](Direction d) {
    return OneDnnConv::create(d, xt.view(), yt.view(), k.kernel_h, k.kernel_w, k.p, !bias.empty(), threads);
  };
  Results r;
  if (const auto conv = create(Direction::kForward)) {
    Workspace workspace(conv->workspace_bytes());
    conv->forward(xt.view().f32(), w.data(), bias.empty() ? nullptr : bias.data(), yt.view().f32(), workspace.data());
    r.y = yt.plain();
  }
  if (const auto conv = create(Direction::kBackwardData)) {
    Workspace workspace(conv->workspace_bytes());
    conv->backward_data(dyt.view().f32(), w.data(), dxt.view().f32(), workspace.data());
    r.dx = dxt.plain();
  }
  if (const auto conv = create(Direction::kBackwardWeights)) {
    Workspace workspace(conv->workspace_bytes());
    r.dw.assign(w.size(), NAN);
    conv->backward_weights(xt.view().f32(), dyt.view().f32(), r.dw.data(), workspace.data());
    CHECK(conv->implementation().find("ref") == std::string::npos);
  }
  return r;
}

void check_case(const ConvCase& k, uint32_t seed) {
  const auto x = random_values(k.n * k.c * k.h * k.w, seed), w = random_values(k.weight_count(), seed + 1);
  const auto dy = random_values(k.n * k.out_c * k.out_h() * k.out_w(), seed + 2);
  const auto bias = seed % 2 ? random_values(k.out_c, seed + 3) : std::vector<float>{};
  const ConvGradients expected = conv_reference(k, x, w, bias, dy);
  for (const int64_t block : {8, 16}) {
    if (block == 16 && !has_avx512()) continue;
    INFO("N " << k.n << ", C " << k.c << " to " << k.out_c << " at " << k.h << "x" << k.w << ", kernel " << k.kernel_h
              << "x" << k.kernel_w << ", stride " << k.p.stride_h << ", pad " << k.p.pad_h << ", dilation "
              << k.p.dilation_h << ", groups " << k.p.groups << ", block " << block);
    const Results one = run_onednn(k, x, w, bias, dy, block, 1);
    if (!one.y.empty()) CHECK(relative_error(one.y, expected.y) < 2e-6);
    if (!one.dx.empty()) CHECK(relative_error(one.dx, expected.dx) < 2e-6);
    if (!one.dw.empty()) CHECK(relative_error(one.dw, expected.dw) < 2e-6);
    for (const int threads : {2, 3}) {
      const Results more = run_onednn(k, x, w, bias, dy, block, threads);
      CHECK(same_bits(more.y, one.y));
      CHECK(same_bits(more.dx, one.dx));
      CHECK(same_bits(more.dw, one.dw));
    }
  }
}

}  // namespace

TEST_CASE("oneDNN convolutions agree with double precision and give equal bits for 1, 2 and 3 threads") {
  uint32_t seed = 100;
  for (const ConvCase& k : conv_cases()) check_case(k, seed += 5);
}

TEST_CASE("oneDNN convolutions of many random shapes give equal bits for 1, 2 and 3 threads") {
  std::mt19937 engine(7);
  const auto pick = [&](std::initializer_list<int64_t> from) { return from.begin()[engine() % from.size()]; };
  uint32_t seed = 1000;
  for (int i = 0; i < 40; ++i) {
    const int64_t kernel = pick({1, 1, 3, 3, 5}), dilation = kernel == 3 ? pick({1, 1, 2, 6}) : 1;
    const int64_t stride = pick({1, 1, 2}), pad = pick({0, kernel / 2 * dilation});
    ConvCase k{pick({1, 2, 3, 9}),
               pick({3, 8, 19, 32, 64}),
               pick({1, 7, 14}),
               pick({1, 9, 20}),
               pick({5, 16, 19, 64}),
               kernel,
               kernel,
               {stride, stride, pad, pad, dilation, dilation, 1}};
    if (k.out_h() > 0 && k.out_w() > 0) check_case(k, seed += 5);
  }
}

TEST_CASE("weight gradients of wide layers on small maps are added up image by image") {
  uint32_t seed = 5000;
  for (const int64_t images : {2, 5})
    for (const int64_t out : {256, 264, 300})
      for (const int64_t dilation : {0, 2}) {  // 0: 1x1
        const int64_t kernel = dilation ? 3 : 1;
        const ConvCase k{
            images, 24,     4,      5,
            out,    kernel, kernel, {1, 1, dilation, dilation, dilation ? dilation : 1, dilation ? dilation : 1, 1}};
        check_case(k, seed += 5);
        ImageTensor x(k.n, k.c, k.h, k.w, 8), y(k.n, k.out_c, k.out_h(), k.out_w(), 8);
        const auto conv =
            OneDnnConv::create(Direction::kBackwardWeights, x.view(), y.view(), kernel, kernel, k.p, false, 2);
        REQUIRE(conv);
        CHECK(conv->implementation().find("image by image") != std::string::npos);
      }
}

TEST_CASE("oneDNN convolutions of dense shapes are found for every direction") {
  for (const int64_t block : {8, 16}) {
    if (block == 16 && !has_avx512()) continue;
    ImageTensor x(2, 64, 16, 32, block), y(2, 64, 16, 32, block);
    for (const Direction d : {Direction::kForward, Direction::kBackwardData, Direction::kBackwardWeights}) {
      const auto conv = OneDnnConv::create(d, x.view(), y.view(), 3, 3, {1, 1, 1, 1, 1, 1, 1}, false, 2);
      REQUIRE(conv);
      CHECK(conv->implementation().find("reorder") == std::string::npos);
    }
  }
}

}  // namespace convoy::test

#endif
