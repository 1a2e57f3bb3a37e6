// Kernels of layers on images against plain loops in double: every shape, both instruction sets, slices, pad lanes,
// threads. Their gradients are held against finite differences in tests/engine.
#include <functional>
#include <numeric>

#include "kernels/elementwise.h"
#include "kernels/grid_sample.h"
#include "kernels/group_norm.h"
#include "kernels/label_resize.h"
#include "kernels/pool.h"
#include "kernels/prelu.h"
#include "kernels/shuffle.h"
#include "kernels/softmax.h"
#include "tests/kernels/blocked_tensor.h"

namespace convoy::test {

namespace {

using Floats = std::vector<float>;
using Doubles = std::vector<double>;

size_t at(const Shape& s, int64_t n, int64_t c, int64_t p) {
  return static_cast<size_t>((n * s.c + c) * s.h * s.w + p);
}

/// Runs kernel(block, x, y), y of shape `to(x's shape)`, on blocked tensors, x and y as slices in turns, and compares y
/// with want(x's shape, x's values).
void check_images(const std::function<Shape(Shape)>& to,
                  const std::function<void(int64_t, const View&, const View&)>& kernel,
                  const std::function<Doubles(Shape, const Floats&)>& want, double tolerance) {
  for (const int64_t block : channel_blocks())
    for (const Shape s : image_shapes())
      for (const bool sliced : {false, true}) {
        INFO("block " << block << " shape " << s.text() << " sliced " << sliced);
        const Floats x = random_values("image layers", s.count(), 3, 0.5);
        const Doubles expected = want(s, x);
        same_for_any_threads([&] {
          TestTensor tx(s, Layout::kBlocked, block, sliced), ty(to(s), Layout::kBlocked, block, !sliced);
          tx.fill(x);
          kernel(block, tx.view(), ty.view());
          CHECK(relative_error(ty.values(), expected) <= tolerance);
          CHECK(ty.surroundings_intact());
          CHECK(tx.surroundings_intact());
          return bits(ty.values());
        });
      }
}

Shape same(Shape s) {
  return s;
}

template <class Element>
Doubles map(const Shape& s, const Element& element) {
  Doubles y;
  for (int64_t n = 0; n < s.n; ++n)
    for (int64_t c = 0; c < s.c; ++c)
      for (int64_t p = 0; p < s.h * s.w; ++p) y.push_back(element(n, c, p));
  return y;
}

}  // namespace

TEST_CASE("softmax over channels and rows") {
  for (const bool log : {false, true}) {
    const auto softmax_of = [log](const Shape& s, const Floats& x) {
      return map(s, [&](int64_t n, int64_t c, int64_t p) {
        double high = -INFINITY, sum = 0;
        for (int64_t k = 0; k < s.c; ++k) high = std::max(high, double(x[at(s, n, k, p)]));
        for (int64_t k = 0; k < s.c; ++k) sum += std::exp(double(x[at(s, n, k, p)]) - high);
        const double v = double(x[at(s, n, c, p)]) - high - std::log(sum);
        return log ? v : std::exp(v);
      });
    };
    check_images(
        same,
        [log](int64_t block, const View& x, const View& y) {
          CONVOY_KERNEL(block, softmax_channels)
          (x, log, y);
        },
        softmax_of, 1e-6);
    for (const int64_t block : channel_blocks())
      for (const Shape s : {Shape{1, 1, 1, 1}, Shape{5, 7, 1, 1}, Shape{3, 16, 1, 1}, Shape{2, 1000, 1, 1}}) {
        INFO("block " << block << " rows " << s.text());
        const Floats x = random_values("rows", s.count(), 5);
        Floats y(x.size() + 1, -7);
        CONVOY_KERNEL(block, softmax_rows)(x.data(), s.n, s.c, log, y.data());
        CHECK(y.back() == -7);
        y.pop_back();
        CHECK(relative_error(y, softmax_of(s, x)) <= 1e-6);
      }
  }
}

TEST_CASE("softmax of extreme values") {
  for (const int64_t block : channel_blocks()) {
    const Floats x{-1e30f, 0, 1e30f, 1e30f, -INFINITY};
    Floats y(5);
    CONVOY_KERNEL(block, softmax_rows)(x.data(), 1, 5, false, y.data());
    CHECK(y == Floats{0, 0, 0.5f, 0.5f, 0});
    TestTensor tx({1, 5, 1, 1}, Layout::kBlocked, block), ty({1, 5, 1, 1}, Layout::kBlocked, block);
    tx.fill(x);
    CONVOY_KERNEL(block, softmax_channels)(tx.view(), false, ty.view());
    CHECK(ty.values() == y);
    CHECK(ty.surroundings_intact());
  }
}

TEST_CASE("group norm and L2 norm") {
  const auto factor = [](int64_t c) { return 0.5f + 0.125f * static_cast<float>(c % 5); };
  const auto shift = [](int64_t c) { return 0.25f * static_cast<float>(c % 3); };
  const auto values = [](int64_t count, const auto& of) {
    Floats v;
    for (int64_t c = 0; c < count; ++c) v.push_back(of(c));
    return v;
  };
  const auto groups_of = [](int64_t channels) -> int64_t { return channels % 8 == 0 ? 8 : channels % 3 == 0 ? 3 : 1; };
  check_images(
      same,
      [&](int64_t block, const View& x, const View& y) {
        const int64_t groups = groups_of(x.c);
        Floats mean(static_cast<size_t>(x.n * groups)), rstd(mean);
        Doubles workspace(static_cast<size_t>(group_norm_workspace(x, groups)));
        CONVOY_KERNEL(block, group_norm)
        (x, values(x.c, factor).data(), values(x.c, shift).data(), groups, 1e-3f, y, mean.data(), rstd.data(),
         workspace.data());
      },
      [&](const Shape& s, const Floats& x) {
        const int64_t size = s.c / groups_of(s.c), count = size * s.h * s.w;
        return map(s, [&](int64_t n, int64_t c, int64_t p) {
          const float* group = x.data() + at(s, n, c / size * size, 0);
          const double mean = std::accumulate(group, group + count, 0.0) / double(count);
          double var = 0;
          for (int64_t i = 0; i < count; ++i) var += (double(group[i]) - mean) * (double(group[i]) - mean);
          return (double(x[at(s, n, c, p)]) - mean) / std::sqrt(var / double(count) + 1e-3) * double(factor(c)) +
                 double(shift(c));
        });
      },
      2e-5);
  check_images(
      same,
      [&](int64_t block, const View& x, const View& y) {
        CONVOY_KERNEL(block, l2_norm)
        (x, values(x.c, factor).data(), 1e-10f, y);
      },
      [&](const Shape& s, const Floats& x) {
        return map(s, [&](int64_t n, int64_t c, int64_t p) {
          double squares = 0;
          for (int64_t k = 0; k < s.c; ++k) squares += double(x[at(s, n, k, p)]) * double(x[at(s, n, k, p)]);
          return double(x[at(s, n, c, p)]) / std::sqrt(squares) * double(factor(c));
        });
      },
      1e-6);
}

TEST_CASE("L2 norm of a pixel of zeros") {
  for (const int64_t block : channel_blocks()) {
    const Shape s{1, 3, 1, 2};
    TestTensor x(s, Layout::kBlocked, block), y(s, Layout::kBlocked, block), dy(s, Layout::kBlocked, block),
        dx(s, Layout::kBlocked, block);
    x.fill({0, 3, 0, 0, 0, 4});
    dy.fill({1, 0, 1, 0, 1, 0});
    const Floats weight{2, 2, 2};
    Floats dweight(3), workspace(2);
    CONVOY_KERNEL(block, l2_norm)(x.view(), weight.data(), 0.5f, y.view());
    CHECK(relative_error(y.values(), Doubles{0, 6 / 5.5, 0, 0, 0, 8 / 5.5}) < 1e-6);
    CONVOY_KERNEL(block, l2_norm_backward)
    (dy.view(), x.view(), weight.data(), 0.5f, dx.view(), dweight.data(), workspace.data());
    CHECK(relative_error(dx.values(), Doubles{4, 0, 4, 0, 4, 0}) < 1e-6);
    CHECK(dweight == Floats{0, 0, 0});
    CHECK(dx.surroundings_intact());
  }
}

TEST_CASE("parametric ReLU, hard swish, leaky ReLU, bias") {
  const auto channel_value = [](int64_t c) { return 0.1f + 0.05f * static_cast<float>(c % 7); };
  for (const bool single : {false, true}) {
    const auto slope_of = [&](int64_t c) { return channel_value(single ? 0 : c); };
    check_images(
        same,
        [&](int64_t block, const View& x, const View& y) {
          Floats slopes;
          for (int64_t c = 0; c < (single ? 1 : x.c); ++c) slopes.push_back(slope_of(c));
          CONVOY_KERNEL(block, prelu)
          (x, slopes.data(), single ? 1 : x.c, y);
        },
        [&](const Shape& s, const Floats& x) {
          return map(s, [&](int64_t n, int64_t c, int64_t p) {
            const double v = x[at(s, n, c, p)];
            return v > 0 ? v : v * double(slope_of(c));
          });
        },
        1e-7);
  }
  const auto pointwise = [&](const auto& kernel, const std::function<double(double, int64_t)>& want) {
    check_images(
        same, kernel,
        [&](const Shape& s, const Floats& x) {
          return map(s, [&](int64_t n, int64_t c, int64_t p) { return want(x[at(s, n, c, p)], c); });
        },
        1e-6);
  };
  pointwise(
      [](int64_t block, const View& x, const View& y) {
        CONVOY_KERNEL(block, hardswish)
        (x, y);
      },
      [](double x, int64_t) { return x * std::min(std::max(x + 3, 0.0), 6.0) / 6; });
  pointwise(
      [](int64_t block, const View& x, const View& y) {
        CONVOY_KERNEL(block, leaky_relu)
        (x, 0.25f, y);
      },
      [](double x, int64_t) { return x > 0 ? x : 0.25 * x; });
  pointwise(
      [&](int64_t block, const View& x, const View& y) {
        Floats bias;
        for (int64_t c = 0; c < x.c; ++c) bias.push_back(channel_value(c));
        CONVOY_KERNEL(block, add_bias)
        (x, bias.data(), y);
      },
      [&](double x, int64_t c) { return x + double(channel_value(c)); });
}

TEST_CASE("rearrangements of channels and pixels") {
  constexpr int64_t kR = 2;
  const auto deep_of = [](Shape s) { return Shape{s.n, s.c * kR * kR, s.h, s.w}; };
  const auto wide_of = [](Shape s) { return Shape{s.n, s.c, s.h * kR, s.w * kR}; };
  // Any permutation will do; this one has no pattern that a kernel could get right by chance.
  const auto table = [](int64_t channels) {
    std::vector<int32_t> t(static_cast<size_t>(channels));
    std::iota(t.begin(), t.end(), 0);
    for (size_t i = t.size(); i > 1; --i) std::swap(t[i - 1], t[i * 7919 % i ? i * 7919 % i : (i * 31) % i]);
    return t;
  };
  for (const int64_t block : channel_blocks())
    for (const Shape s : image_shapes()) {
      INFO("block " << block << " shape " << s.text());
      const Shape deep = deep_of(s), wide = wide_of(s);
      const std::vector<int32_t> channel_of = table(deep.c);
      std::vector<int32_t> place_of(channel_of.size());
      for (size_t i = 0; i < channel_of.size(); ++i)
        place_of[static_cast<size_t>(channel_of[i])] = static_cast<int32_t>(i);
      const Floats x = random_values("deep", deep.count());
      same_for_any_threads([&] {
        TestTensor td(deep, Layout::kBlocked, block, true), tw(wide, Layout::kBlocked, block),
            back(deep, Layout::kBlocked, block);
        td.fill(x);
        CONVOY_KERNEL(block, depth_to_space)(td.view(), channel_of.data(), kR, tw.view());
        CONVOY_KERNEL(block, space_to_depth)(tw.view(), place_of.data(), kR, back.view());
        const Floats y = tw.values();
        int64_t wrong = 0;
        for (int64_t n = 0; n < wide.n; ++n)
          for (int64_t c = 0; c < wide.c; ++c)
            for (int64_t p = 0; p < wide.h * wide.w; ++p) {
              const int64_t row = p / wide.w, column = p % wide.w;
              const int64_t place = (row % kR * kR + column % kR) * wide.c + c;
              wrong += y[at(wide, n, c, p)] !=
                       x[at(deep, n, channel_of[static_cast<size_t>(place)], row / kR * deep.w + column / kR)];
            }
        CHECK(wrong == 0);
        CHECK(back.values() == x);
        CHECK(tw.surroundings_intact());
        CHECK(back.surroundings_intact());
        return bits(y);
      });
    }
}

TEST_CASE("unpooling, and indices outside of the map") {
  for (const int64_t block : channel_blocks()) {
    const Shape pooled{2, 19, 2, 3}, whole{2, 19, 5, 7};
    const Floats z = random_values("z", pooled.count());
    std::vector<int32_t> index;
    for (int64_t i = 0; i < pooled.count(); ++i) index.push_back(static_cast<int32_t>(i * 11 % 35));
    const auto as_floats = [](const std::vector<int32_t>& from) {
      Floats to(from.size());
      std::memcpy(to.data(), from.data(), from.size() * sizeof(float));
      return to;
    };
    TestTensor tz(pooled, Layout::kBlocked, block, true), ti(pooled, Layout::kBlocked, block),
        ty(whole, Layout::kBlocked, block, true), back(pooled, Layout::kBlocked, block);
    tz.fill(z);
    ti.fill(as_floats(index));
    int64_t bad = 0;
    CONVOY_KERNEL(block, max_unpool)(tz.view(), ti.view(), ty.view(), &bad);
    CHECK(bad == -1);
    Floats expected(static_cast<size_t>(whole.count()), 0.0f);
    for (size_t i = 0; i < z.size(); ++i) expected[i / 6 * 35 + static_cast<size_t>(index[i])] = z[i];
    CHECK(ty.values() == expected);
    CHECK(ty.surroundings_intact());
    CONVOY_KERNEL(block, max_unpool_backward)(ty.view(), ti.view(), back.view());
    CHECK(back.values() == z);
    CHECK(back.surroundings_intact());
    index[100] = 35;
    index[57] = -1;
    ti.fill(as_floats(index));
    CONVOY_KERNEL(block, max_unpool)(tz.view(), ti.view(), ty.view(), &bad);
    CHECK(bad == 57);
    CHECK(ty.surroundings_intact());
  }
}

TEST_CASE("sampling at places that are not there") {
  for (const int64_t block : channel_blocks()) {
    const Shape s{1, 3, 2, 2};
    TestTensor x(s, Layout::kBlocked, block), y({1, 3, 1, 6}, Layout::kBlocked, block), dx(s, Layout::kBlocked, block);
    x.fill({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12});
    const float nan = NAN, huge = 1e30f;
    Floats places{nan, 0, 0, nan, huge, 0, 0, -huge, INFINITY, INFINITY, 0, 0};
    View grid;
    grid.data = places.data();
    grid.c = grid.pitch = 1, grid.h = 6, grid.w = 2;
    for (const bool nearest : {false, true}) {
      const GridSampleParams params{.align_corners = true, .nearest = nearest};
      CONVOY_KERNEL(block, grid_sample)(x.view(), grid, params, y.view());
      const Floats v = y.values();
      for (size_t c = 0; c < 3; ++c) {
        for (size_t p = 0; p < 5; ++p) CHECK(v[c * 6 + p] == 0);
        CHECK(v[c * 6 + 5] == Approx(nearest ? 1 + 4 * double(c) : 2.5 + 4 * double(c)));  // halves go to even: pixel 0
      }
      CHECK(y.surroundings_intact());
      CONVOY_KERNEL(block, grid_sample_backward_x)(y.view(), grid, params, dx.view());
      CHECK(dx.surroundings_intact());
      CHECK(dx.values()[0] == Approx(nearest ? 1 : 2.5 / 4));
      Floats places_gradient(12, 7);
      View dgrid = grid;
      dgrid.data = places_gradient.data();
      CONVOY_KERNEL(block, grid_sample_backward_grid)(y.view(), x.view(), grid, params, dgrid);
      for (size_t i = 0; i < 10; ++i) CHECK(places_gradient[i] == 0);
    }
  }
}

TEST_CASE("labels resized to their own size stay as they are") {
  for (const int64_t block : channel_blocks()) {
    std::vector<int32_t> labels, resized(2 * 5 * 7), tiny(2);
    for (int i = 0; i < 2 * 5 * 7; ++i) labels.push_back(i * 13 % 20 - 1);
    View from, to;
    from.data = labels.data(), to.data = resized.data();
    from.dtype = to.dtype = DType::kI32;
    from.n = to.n = 2, from.c = to.c = 5, from.h = to.h = 7;
    CONVOY_KERNEL(block, label_resize)(from, to);
    CHECK(resized == labels);
    to.data = tiny.data(), to.c = to.h = 1;
    CONVOY_KERNEL(block, label_resize)(from, to);
    CHECK(tiny == std::vector<int32_t>{labels[0], labels[35]});
  }
}

}  // namespace convoy::test
