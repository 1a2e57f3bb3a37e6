#include "kernels/depthwise.h"
#include "tests/golden_ops.h"
#include "tests/kernels/conv_reference.h"
#include "tests/kernels/image_tensor.h"

namespace convoy::test {
namespace {

struct Results {
  std::vector<float> y, dx, dw;
};

Results run_depthwise(bool avx512, const ConvCase& k, const std::vector<float>& x, const std::vector<float>& w,
                      const std::vector<float>& bias, const std::vector<float>& dy, int64_t extra) {
  const int64_t block = avx512 ? 16 : 8;
  ImageTensor xt(k.n, k.c, k.h, k.w, block, extra), dxt(k.n, k.c, k.h, k.w, block, extra);
  ImageTensor yt(k.n, k.c, k.out_h(), k.out_w(), block, extra), dyt(k.n, k.c, k.out_h(), k.out_w(), block, extra);
  xt.fill(x);
  dyt.fill(dy);
  Results r;
  r.dw.assign(w.size(), NAN);
  std::vector<float> workspace(depthwise_workspace_bytes(dyt.view(), k.kernel_h, k.kernel_w) / sizeof(float), NAN);
  CONVOY_TEST_KERNEL(avx512, depthwise)
  (xt.view(), w.data(), k.kernel_h, k.kernel_w, bias.empty() ? nullptr : bias.data(), k.p, yt.view());
  CONVOY_TEST_KERNEL(avx512, depthwise_backward_data)
  (dyt.view(), w.data(), k.kernel_h, k.kernel_w, k.p, dxt.view());
  CONVOY_TEST_KERNEL(avx512, depthwise_backward_weights)
  (xt.view(), dyt.view(), k.kernel_h, k.kernel_w, k.p, r.dw.data(), workspace.data());
  r.y = yt.plain();
  r.dx = dxt.plain();
  return r;
}

ConvCase depthwise_case(int64_t n, int64_t c, int64_t h, int64_t w, int64_t kernel_h, int64_t kernel_w,
                        int64_t stride_h, int64_t stride_w, int64_t pad_h, int64_t pad_w, int64_t dilation_h,
                        int64_t dilation_w) {
  return {n, c, h, w, c, kernel_h, kernel_w, {stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w, c}};
}

}  // namespace

TEST_CASE("depthwise convolution agrees with double precision and gives equal bits for 1, 2 and 3 threads") {
  const ConvCase cases[] = {
      depthwise_case(2, 19, 33, 29, 3, 3, 1, 1, 1, 1, 1, 1), depthwise_case(1, 1, 5, 4, 3, 3, 1, 1, 1, 1, 1, 1),
      depthwise_case(3, 33, 18, 31, 3, 3, 2, 2, 1, 1, 1, 1), depthwise_case(1, 64, 17, 17, 3, 3, 1, 1, 2, 2, 2, 2),
      depthwise_case(2, 64, 9, 9, 3, 3, 1, 1, 6, 6, 6, 6),   depthwise_case(1, 3, 20, 37, 5, 5, 1, 1, 2, 2, 1, 1),
      depthwise_case(2, 16, 19, 22, 5, 5, 2, 2, 2, 2, 1, 1), depthwise_case(1, 33, 12, 25, 7, 7, 1, 1, 3, 3, 1, 1),
      depthwise_case(1, 19, 1, 1, 3, 3, 1, 1, 1, 1, 1, 1),   depthwise_case(1, 19, 1, 1, 3, 3, 1, 1, 12, 12, 12, 12),
      depthwise_case(2, 8, 14, 30, 3, 1, 1, 1, 1, 0, 1, 1),  depthwise_case(2, 8, 14, 30, 1, 3, 1, 2, 0, 1, 1, 1),
      depthwise_case(1, 24, 15, 40, 3, 5, 2, 1, 1, 4, 1, 2), depthwise_case(1, 19, 9, 9, 2, 2, 3, 3, 0, 0, 1, 1),
      depthwise_case(1, 3, 300, 7, 3, 3, 1, 1, 1, 1, 1, 1),  depthwise_case(1, 20, 11, 12, 11, 11, 1, 1, 5, 5, 1, 1),
      depthwise_case(1, 16, 2, 3, 1, 1, 4, 4, 0, 0, 1, 1),
  };
  uint32_t seed = 1;
  for (const ConvCase& k : cases) {
    const auto x = random_values(k.n * k.c * k.h * k.w, seed++), w = random_values(k.weight_count(), seed++);
    const auto dy = random_values(k.n * k.c * k.out_h() * k.out_w(), seed++);
    const auto bias = seed % 2 ? random_values(k.c, seed++) : std::vector<float>{};
    const ConvGradients expected = conv_reference(k, x, w, bias, dy);
    for (int avx512 = 0; avx512 <= static_cast<int>(has_avx512()); ++avx512) {
      INFO("C " << k.c << " at " << k.h << "x" << k.w << ", kernel " << k.kernel_h << "x" << k.kernel_w << ", stride "
                << k.p.stride_h << ", dilation " << k.p.dilation_h << ", avx512 " << avx512);
      Threads scope(1);
      const Results one = run_depthwise(avx512, k, x, w, bias, dy, 0);
      CHECK(relative_error(one.y, expected.y) < 1e-6);
      CHECK(relative_error(one.dx, expected.dx) < 1e-6);
      CHECK(relative_error(one.dw, expected.dw) < 1e-6);
      for (const int threads : {2, 3}) {
        omp_set_num_threads(threads);
        const Results more = run_depthwise(avx512, k, x, w, bias, dy, 1);
        CHECK(same_bits(more.y, one.y));
        CHECK(same_bits(more.dx, one.dx));
        CHECK(same_bits(more.dw, one.dw));
      }
    }
  }
}

TEST_CASE("depthwise convolution agrees with the golden cases") {
  int seen = 0;
  for (const golden::OpCase& c : golden::op_cases_of("conv2d")) {
    const auto pair = [&](const char* key) { return c.attrs.at(key).get<std::vector<int64_t>>(); };
    const auto &xs = c.input("x").shape, &ys = c.output("y").shape;
    if (c.attrs.at("groups") != xs[1] || ys[1] != xs[1]) continue;
    INFO(c.id);
    const bool has_bias = c.attrs.at("bias");
    ConvCase k{xs[0], xs[1], xs[2], xs[3], ys[1], pair("kernel")[0], pair("kernel")[1], {}};
    k.p = {pair("stride")[0],
           pair("stride")[1],
           pair("padding")[0],
           pair("padding")[1],
           pair("dilation")[0],
           pair("dilation")[1],
           xs[1]};
    for (int avx512 = 0; avx512 <= static_cast<int>(has_avx512()); ++avx512) {
      const Results r =
          run_depthwise(avx512, k, c.input("x").values, c.input("weight").values,
                        has_bias ? c.input("bias").values : std::vector<float>{}, c.output("y").upstream, 0);
      CHECK(relative_error(r.y, c.output("y").values) < 1e-6);
      CHECK(relative_error(r.dx, c.gradient("x").values) < 1e-6);
      CHECK(relative_error(r.dw, c.gradient("weight").values) < 1e-6);
    }
    ++seen;
  }
  CHECK(seen >= 4);
}

}  // namespace convoy::test
