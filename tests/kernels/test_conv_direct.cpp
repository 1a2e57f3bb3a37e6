#include <array>

#include "kernels/conv2d.h"
#include "tests/golden_ops.h"
#include "tests/kernels/conv_reference.h"
#include "tests/kernels/image_tensor.h"

namespace convoy::test {
namespace {

struct Results {
  std::vector<float> y, dx, dw, dbias;
};

Results run_direct(bool avx512, const ConvCase& k, const std::vector<float>& x, const std::vector<float>& w,
                   const std::vector<float>& bias, const std::vector<float>& dy, int64_t x_block, int64_t y_block,
                   int64_t extra) {
  ImageTensor xt(k.n, k.c, k.h, k.w, x_block, extra), dxt(k.n, k.c, k.h, k.w, x_block, extra);
  ImageTensor yt(k.n, k.out_c, k.out_h(), k.out_w(), y_block, extra);
  ImageTensor dyt(k.n, k.out_c, k.out_h(), k.out_w(), y_block, extra);
  xt.fill(x);
  dyt.fill(dy);
  Results r;
  r.dw.assign(w.size(), NAN);
  r.dbias.assign(static_cast<size_t>(k.out_c), NAN);
  CONVOY_TEST_KERNEL(avx512, conv2d_direct)
  (xt.view(), w.data(), k.kernel_h, k.kernel_w, bias.empty() ? nullptr : bias.data(), k.p, yt.view());
  CONVOY_TEST_KERNEL(avx512, conv2d_direct_backward_data)
  (dyt.view(), w.data(), k.kernel_h, k.kernel_w, k.p, dxt.view());
  CONVOY_TEST_KERNEL(avx512, conv2d_direct_backward_weights)
  (xt.view(), dyt.view(), k.kernel_h, k.kernel_w, k.p, r.dw.data());
  CONVOY_TEST_KERNEL(avx512, conv2d_backward_bias)(dyt.view(), r.dbias.data());
  r.y = yt.plain();
  r.dx = dxt.plain();
  return r;
}

}  // namespace

TEST_CASE("direct convolution agrees with double precision, in every layout and for any number of threads") {
  uint32_t seed = 1;
  for (const ConvCase& k : conv_cases()) {
    const auto x = random_values(k.n * k.c * k.h * k.w, seed++), w = random_values(k.weight_count(), seed++);
    const auto dy = random_values(k.n * k.out_c * k.out_h() * k.out_w(), seed++);
    const auto bias = seed % 2 ? random_values(k.out_c, seed++) : std::vector<float>{};
    const ConvGradients expected = conv_reference(k, x, w, bias, dy);
    for (int avx512 = 0; avx512 <= static_cast<int>(has_avx512()); ++avx512) {
      const int64_t block = avx512 ? 16 : 8;
      for (const auto& [x_block, y_block, extra] :
           {std::array<int64_t, 3>{block, block, 0}, {block, block, 1}, {1, block, 0}, {block, 1, 0}, {1, 1, 2}}) {
        INFO("C " << k.c << " to " << k.out_c << " at " << k.h << "x" << k.w << ", kernel " << k.kernel_h << "x"
                  << k.kernel_w << ", groups " << k.p.groups << ", blocks " << x_block << " " << y_block);
        Results first;
        for (int threads = 1; threads <= 3; ++threads) {
          Threads scope(threads);
          Results r = run_direct(avx512, k, x, w, bias, dy, x_block, y_block, extra);
          if (threads == 1) {
            CHECK(relative_error(r.y, expected.y) < 1e-6);
            CHECK(relative_error(r.dx, expected.dx) < 1e-6);
            CHECK(relative_error(r.dw, expected.dw) < 1e-6);
            CHECK(relative_error(r.dbias, expected.dbias) < 1e-6);
            first = std::move(r);
          } else {
            CHECK(same_bits(r.y, first.y));
            CHECK(same_bits(r.dx, first.dx));
            CHECK(same_bits(r.dw, first.dw));
            CHECK(same_bits(r.dbias, first.dbias));
          }
        }
      }
    }
  }
}

TEST_CASE("direct convolution agrees with the golden cases") {
  int seen = 0;
  for (const golden::OpCase& c : golden::op_cases_of("conv2d")) {
    INFO(c.id);
    const auto pair = [&](const char* key) { return c.attrs.at(key).get<std::vector<int64_t>>(); };
    const auto &xs = c.input("x").shape, &ys = c.output("y").shape;
    const bool has_bias = c.attrs.at("bias");
    ConvCase k{xs[0], xs[1], xs[2], xs[3], ys[1], pair("kernel")[0], pair("kernel")[1], {}};
    k.p = {pair("stride")[0],   pair("stride")[1],   pair("padding")[0],  pair("padding")[1],
           pair("dilation")[0], pair("dilation")[1], c.attrs.at("groups")};
    REQUIRE(k.out_h() == ys[2]);
    REQUIRE(k.out_w() == ys[3]);
    for (int avx512 = 0; avx512 <= static_cast<int>(has_avx512()); ++avx512) {
      const int64_t block = avx512 ? 16 : 8;
      const Results r =
          run_direct(avx512, k, c.input("x").values, c.input("weight").values,
                     has_bias ? c.input("bias").values : std::vector<float>{}, c.output("y").upstream, block, block, 0);
      CHECK(relative_error(r.y, c.output("y").values) < 1e-6);
      CHECK(relative_error(r.dx, c.gradient("x").values) < 1e-6);
      CHECK(relative_error(r.dw, c.gradient("weight").values) < 1e-6);
      if (has_bias) CHECK(relative_error(r.dbias, c.gradient("bias").values) < 1e-6);
    }
    ++seen;
  }
  CHECK(seen >= 20);
}

}  // namespace convoy::test
