#include "kernels/elementwise.h"

#include "tests/kernels/blocked_tensor.h"

namespace convoy::test {

using Floats = std::vector<float>;
using Doubles = std::vector<double>;

static double act_of(Activation act, double x) {
  if (act == Activation::kSigmoid) return 1 / (1 + std::exp(-x));
  if (act != Activation::kNone) x = std::max(x, 0.0);
  return act == Activation::kRelu6 ? std::min(x, 6.0) : x;
}
static double slope_of(Activation act, double y) {
  if (act == Activation::kRelu) return y > 0;
  if (act == Activation::kRelu6) return y > 0 && y < 6;
  return act == Activation::kSigmoid ? y * (1 - y) : 1;
}

constexpr Activation kAll[] = {Activation::kNone, Activation::kRelu, Activation::kRelu6, Activation::kSigmoid};

/// Runs `kernel(a, b, y)` in every layout, shape and set and compares y with want(a, b) element by element.
template <class Kernel, class Want>
static void check_pointwise(const Kernel& kernel, const Want& want, double tolerance) {
  std::vector<Shape> shapes = image_shapes();
  shapes.push_back({40001, 1, 1, 1});  // a plain array
  for (const int64_t block : channel_blocks())
    for (const Shape s : shapes)
      for (const Layout layout : {Layout::kBlocked, Layout::kNchw, Layout::kNhwc})
        for (const bool sliced : {false, true}) {
          if (s.n > 3 && (layout != Layout::kNchw || sliced)) continue;
          INFO("block " << block << " shape " << s.text() << " " << layout_name(layout) << " sliced " << sliced);
          const Floats a = random_values("pointwise.a", s.count(), 9), b = random_values("pointwise.b", s.count(), 3);
          Doubles expected;
          for (size_t i = 0; i < a.size(); ++i) expected.push_back(want(a[i], b[i]));
          same_for_any_threads([&] {
            TestTensor ta(s, layout, block, sliced), tb(s, layout, block, sliced), ty(s, layout, block, !sliced);
            ta.fill(a), tb.fill(b);
            kernel(block, ta.view(), tb.view(), ty.view());
            CHECK(relative_error(ty.values(), expected) <= tolerance);
            CHECK(ty.surroundings_intact());
            kernel(block, ta.view(), tb.view(), ta.view());
            CHECK(ta.values() == ty.values());
            CHECK(ta.surroundings_intact());
            return bits(ty.values());
          });
        }
}

TEST_CASE("pointwise arithmetic in every layout") {
  check_pointwise(
      [](int64_t block, const View& a, const View& b, const View& y) {
        CONVOY_KERNEL(block, add)
        (a, b, y);
      },
      [](double a, double b) { return a + b; }, 1e-7);
  check_pointwise(
      [](int64_t block, const View& a, const View& b, const View& y) {
        CONVOY_KERNEL(block, mul)
        (a, b, y);
      },
      [](double a, double b) { return a * b; }, 1e-7);
  check_pointwise(
      [](int64_t block, const View& a, const View&, const View& y) {
        CONVOY_KERNEL(block, scale)
        (a, -0.7f, y);
      },
      [](double a, double) { return a * double(-0.7f); }, 1e-7);
  check_pointwise(
      [](int64_t block, const View& a, const View&, const View& y) {
        const float factor = 3;
        CONVOY_KERNEL(block, scale_by_scalar)(a, &factor, y);
      },
      [](double a, double) { return a * 3; }, 1e-7);
  check_pointwise(
      [](int64_t block, const View&, const View&, const View& y) {
        CONVOY_KERNEL(block, fill)
        (y, 2.5f);
      },
      [](double, double) { return 2.5; }, 0);
}

TEST_CASE("accumulate adds to what is there") {
  for (const int64_t block : channel_blocks())
    for (const Shape s : image_shapes())
      for (const Layout layout : {Layout::kBlocked, Layout::kNchw}) {
        const Floats a = random_values("accumulate.a", s.count()), b = random_values("accumulate.b", s.count());
        TestTensor x(s, layout, block, true), y(s, layout, block);
        x.fill(a), y.fill(b);
        CONVOY_KERNEL(block, accumulate)(x.view(), y.view());
        const Floats got = y.values();
        for (size_t i = 0; i < a.size(); ++i) CHECK(got[i] == a[i] + b[i]);
        CHECK(y.surroundings_intact());
      }
}

TEST_CASE("activations and their backward in every layout") {
  for (const Activation act : kAll) {
    INFO("activation " << int(act));
    check_pointwise(
        [act](int64_t block, const View& a, const View&, const View& y) {
          CONVOY_KERNEL(block, activation)
          (a, act, y);
        },
        [act](double a, double) { return act_of(act, a); }, 3e-7);
    check_pointwise(
        [act](int64_t block, const View& a, const View& b, const View& y) {
          CONVOY_KERNEL(block, activation_backward)
          (a, b, act, y);
        },
        [act](double dy, double y) { return dy * slope_of(act, y); }, 3e-7);
  }
}

TEST_CASE("sigmoid is accurate over the whole range; activations pass NaN on") {
  for (const int64_t block : channel_blocks()) {
    Floats x;
    for (int i = -880; i <= 880; ++i) x.push_back(static_cast<float>(i) * 0.1f);
    const Shape s{1, 1, 1, static_cast<int64_t>(x.size())};
    TestTensor tx(s, Layout::kNchw, block), ty(s, Layout::kNchw, block);
    tx.fill(x);
    CONVOY_KERNEL(block, activation)(tx.view(), Activation::kSigmoid, ty.view());
    const Floats y = ty.values();
    for (size_t i = 0; i < x.size(); ++i) {
      const double want = act_of(Activation::kSigmoid, x[i]);
      INFO("sigmoid(" << x[i] << ")");
      CHECK(std::abs(y[i] - want) <= 4e-7 * want);
    }
    const float inf = std::numeric_limits<float>::infinity();
    const Shape three{1, 3, 1, 1};
    for (const Activation act : kAll) {
      TestTensor special(three, Layout::kBlocked, block), out(three, Layout::kBlocked, block);
      special.fill({NAN, inf, -inf});
      CONVOY_KERNEL(block, activation)(special.view(), act, out.view());
      CHECK(std::isnan(out.values()[0]));
      CHECK(out.values()[1] == static_cast<float>(act_of(act, inf)));
      CHECK(out.values()[2] == static_cast<float>(act_of(act, -inf)));
    }
  }
}

TEST_CASE("channel gates agree with plain arithmetic") {
  for (const int64_t block : channel_blocks())
    for (const Shape s : image_shapes())
      for (const Layout gate_layout : {Layout::kBlocked, Layout::kNchw})
        for (const bool sliced : {false, true}) {
          INFO("block " << block << " shape " << s.text() << " sliced " << sliced);
          const Shape per_channel{s.n, s.c, 1, 1};
          const Floats x = random_values("gate.x", s.count()), gate = random_values("gate.g", s.n * s.c),
                       dy = random_values("gate.dy", s.count());
          const size_t pixels = static_cast<size_t>(s.h * s.w);
          Doubles product, sum, dgate(gate.size(), 0);
          for (size_t i = 0; i < x.size(); ++i) {
            product.push_back(double(x[i]) * gate[i / pixels]);
            sum.push_back(double(x[i]) + gate[i / pixels]);
            dgate[i / pixels] += double(x[i]) * dy[i];
          }
          same_for_any_threads([&] {
            TestTensor tx(s, Layout::kBlocked, block, sliced), ty(s, Layout::kBlocked, block, !sliced),
                tdy(s, Layout::kBlocked, block), tg(per_channel, gate_layout, block, sliced),
                tdg(per_channel, gate_layout, block, sliced);
            tx.fill(x), tg.fill(gate), tdy.fill(dy);
            CONVOY_KERNEL(block, mul_channel)(tx.view(), tg.view(), ty.view());
            CHECK(relative_error(ty.values(), product) < 1e-7);
            CHECK(ty.surroundings_intact());
            Floats all = ty.values();
            CONVOY_KERNEL(block, add_channel)(tx.view(), tg.view(), ty.view());
            CHECK(relative_error(ty.values(), sum) < 1e-7);
            CHECK(ty.surroundings_intact());
            CONVOY_KERNEL(block, mul_channel_backward_gate)(tdy.view(), tx.view(), tdg.view());
            CHECK(relative_error(tdg.values(), dgate) < 1e-6);
            CHECK(tdg.surroundings_intact());
            for (const Floats& part : {ty.values(), tdg.values()}) all.insert(all.end(), part.begin(), part.end());
            return bits(all);
          });
        }
}

TEST_CASE("activations agree with the golden cases") {
  const std::pair<const char*, Activation> cases[] = {
      {"relu", Activation::kRelu}, {"relu6", Activation::kRelu6}, {"sigmoid", Activation::kSigmoid}};
  for (const auto& [id, act] : cases)
    for (const int64_t block : channel_blocks()) {
      const golden::OpCase& c = golden::op_case(id);
      const std::vector<int64_t>& e = c.input("x").shape;
      const Shape s{e[0], e[1], e[2], e[3]};
      TestTensor x(s, Layout::kBlocked, block), y(s, Layout::kBlocked, block), dy(s, Layout::kBlocked, block);
      x.fill(c.input("x").values), dy.fill(c.output("y").upstream);
      CONVOY_KERNEL(block, activation)(x.view(), act, y.view());
      CHECK(relative_error(y.values(), c.output("y").values) < 1e-6);
      CONVOY_KERNEL(block, activation_backward)(dy.view(), y.view(), act, dy.view());
      CHECK(relative_error(dy.values(), c.gradient("x").values) < 1e-6);
    }
}

}  // namespace convoy::test
