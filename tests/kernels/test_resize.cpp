#include <algorithm>

#include "kernels/resize_bilinear.h"
#include "tests/golden_ops.h"
#include "tests/kernels/image_tensor.h"

namespace convoy::test {
namespace {

struct Results {
  std::vector<float> y, dx;
};

Results run_resize(bool avx512, bool nearest, const ResizeParams& p, const std::vector<int64_t>& xs, int64_t out_h,
                   int64_t out_w, const std::vector<float>& x, const std::vector<float>& dy, int64_t extra) {
  const int64_t block = avx512 ? 16 : 8;
  ImageTensor xt(xs[0], xs[1], xs[2], xs[3], block, extra), dxt(xs[0], xs[1], xs[2], xs[3], block, extra);
  ImageTensor yt(xs[0], xs[1], out_h, out_w, block, extra), dyt(xs[0], xs[1], out_h, out_w, block, extra);
  xt.fill(x);
  dyt.fill(dy);
  if (nearest) {
    CONVOY_TEST_KERNEL(avx512, resize_nearest)(xt.view(), p, yt.view());
    CONVOY_TEST_KERNEL(avx512, resize_nearest_backward)(dyt.view(), p, dxt.view());
  } else {
    CONVOY_TEST_KERNEL(avx512, resize_bilinear)(xt.view(), p, yt.view());
    CONVOY_TEST_KERNEL(avx512, resize_bilinear_backward)(dyt.view(), p, dxt.view());
  }
  return {yt.plain(), dxt.plain()};
}

/// The two source pixels of an output pixel and the weight of the second, in double.
struct Taps {
  int64_t i0, i1;
  double weight;
};

Taps taps(int64_t o, int64_t in, int64_t out, const ResizeParams& p, double factor, bool nearest) {
  const double s = factor > 0 ? 1 / factor : static_cast<double>(in) / static_cast<double>(out);
  const double position = static_cast<double>(o);
  if (nearest) {
    const int64_t i = std::min(static_cast<int64_t>(std::floor(position * s)), in - 1);
    return {i, i, 0};
  }
  double at = std::max((position + 0.5) * s - 0.5, 0.0);
  if (p.align_corners) at = out > 1 ? position * static_cast<double>(in - 1) / static_cast<double>(out - 1) : 0;
  const int64_t i = std::min(static_cast<int64_t>(at), in - 1);
  return {i, std::min(i + 1, in - 1), i + 1 < in ? at - static_cast<double>(i) : 0};
}

void resize_reference(bool nearest, const ResizeParams& p, const std::vector<int64_t>& xs, int64_t out_h, int64_t out_w,
                      const std::vector<float>& x, const std::vector<float>& dy, std::vector<double>& y,
                      std::vector<double>& dx) {
  y.assign(dy.size(), 0);
  dx.assign(x.size(), 0);
  size_t at = 0;
  for (int64_t plane = 0; plane < xs[0] * xs[1]; ++plane)
    for (int64_t oh = 0; oh < out_h; ++oh)
      for (int64_t ow = 0; ow < out_w; ++ow, ++at) {
        const Taps v = taps(oh, xs[2], out_h, p, p.scale_h, nearest), h = taps(ow, xs[3], out_w, p, p.scale_w, nearest);
        for (int corner = 0; corner < 4; ++corner) {
          const double weight = (corner & 1 ? h.weight : 1 - h.weight) * (corner & 2 ? v.weight : 1 - v.weight);
          const size_t i =
              static_cast<size_t>((plane * xs[2] + (corner & 2 ? v.i1 : v.i0)) * xs[3] + (corner & 1 ? h.i1 : h.i0));
          y[at] += weight * static_cast<double>(x[i]);
          dx[i] += weight * static_cast<double>(dy[at]);
        }
      }
}

}  // namespace

TEST_CASE("resize agrees with double precision and gives equal bits for 1, 2 and 3 threads") {
  struct Case {
    std::vector<int64_t> x;
    int64_t out_h, out_w;
    ResizeParams p;
  };
  const Case cases[] = {
      {{2, 19, 5, 7}, 13, 17, {true, 0, 0}},  {{1, 33, 13, 17}, 5, 7, {false, 0, 0}},
      {{3, 1, 1, 1}, 4, 5, {false, 0, 0}},    {{1, 3, 6, 5}, 1, 1, {true, 0, 0}},
      {{1, 64, 6, 9}, 48, 72, {false, 8, 8}}, {{1, 19, 16, 40}, 128, 320, {true, 0, 0}},
      {{2, 3, 1, 1}, 3, 700, {true, 0, 0}},   {{1, 16, 9, 300}, 31, 600, {false, 0, 0}},
      {{1, 8, 7, 9}, 7, 9, {true, 0, 0}},     {{1, 8, 7, 9}, 7, 9, {false, 0, 0}},
      {{1, 5, 11, 9}, 5, 4, {false, .5, .5}}, {{1, 20, 40, 33}, 3, 2, {true, 0, 0}},
  };
  uint32_t seed = 1;
  for (const Case& c : cases)
    for (const bool nearest : {false, true}) {
      const int64_t planes = c.x[0] * c.x[1];
      const auto x = random_values(planes * c.x[2] * c.x[3], seed++);
      const auto dy = random_values(planes * c.out_h * c.out_w, seed++);
      std::vector<double> y, dx;
      resize_reference(nearest, c.p, c.x, c.out_h, c.out_w, x, dy, y, dx);
      for (int avx512 = 0; avx512 <= static_cast<int>(has_avx512()); ++avx512) {
        INFO("C " << c.x[1] << ", " << c.x[2] << "x" << c.x[3] << " to " << c.out_h << "x" << c.out_w << ", nearest "
                  << nearest << ", align_corners " << c.p.align_corners << ", avx512 " << avx512);
        Threads scope(1);
        const Results one = run_resize(avx512, nearest, c.p, c.x, c.out_h, c.out_w, x, dy, 0);
        // A float32 coordinate of several hundred is off by 1e-5, and so are weights.
        CHECK(relative_error(one.y, y) < (nearest ? 1e-7 : 1e-5));
        CHECK(relative_error(one.dx, dx) < 1e-5);
        for (const int threads : {2, 3}) {
          omp_set_num_threads(threads);
          const Results more = run_resize(avx512, nearest, c.p, c.x, c.out_h, c.out_w, x, dy, 1);
          CHECK(same_bits(more.y, one.y));
          CHECK(same_bits(more.dx, one.dx));
        }
      }
    }
}

TEST_CASE("resize agrees with the golden cases") {
  int seen = 0;
  for (const golden::OpCase& c : golden::op_cases_of("interpolate")) {
    INFO(c.id);
    const bool nearest = c.attrs.at("mode") == "nearest";
    ResizeParams p;
    if (!nearest) p.align_corners = c.attrs.at("align_corners");
    if (!c.attrs.at("scale_factor").is_null()) p.scale_h = p.scale_w = c.attrs.at("scale_factor");
    const auto& ys = c.output("y").shape;
    for (int avx512 = 0; avx512 <= static_cast<int>(has_avx512()); ++avx512) {
      const Results r = run_resize(avx512, nearest, p, c.input("x").shape, ys[2], ys[3], c.input("x").values,
                                   c.output("y").upstream, 0);
      CHECK(relative_error(r.y, c.output("y").values) < 1e-6);
      CHECK(relative_error(r.dx, c.gradient("x").values) < 1e-6);
    }
    ++seen;
  }
  CHECK(seen >= 24);
}

}  // namespace convoy::test
