#include "kernels/attention.h"

#include "tests/kernels/blocked_tensor.h"

namespace convoy::test {

namespace {

using Floats = std::vector<float>;
using Doubles = std::vector<double>;

// Kernels on shapes that fill no channel block, single rows, columns and pixels, and more than one tile.
std::vector<Shape> attention_shapes() {
  return {{1, 1, 1, 1}, {2, 3, 5, 7}, {1, 19, 1, 9}, {2, 16, 9, 1}, {1, 33, 17, 18}, {3, 8, 2, 3}, {1, 37, 8, 16}};
}

/// x[n][c][p] of a tensor (N,C,H,W) in double.
struct Image {
  Shape s;
  const Floats& values;
  int64_t pixels() const { return s.h * s.w; }
  double at(int64_t n, int64_t c, int64_t p) const {
    return static_cast<double>(values[static_cast<size_t>((n * s.c + c) * pixels() + p)]);
  }
};

struct Output {
  Shape s;
  Doubles values;
  explicit Output(Shape shape) : s(shape), values(static_cast<size_t>(shape.count())) {}
  double& at(int64_t n, int64_t c, int64_t p) { return values[static_cast<size_t>((n * s.c + c) * s.h * s.w + p)]; }
};

Floats scratch(size_t bytes) {
  return Floats(bytes / sizeof(float), std::numeric_limits<float>::quiet_NaN());
}

View plain(Floats& values, int64_t n, int64_t c) {
  return {.data = values.data(), .n = n, .c = c, .pitch = c};
}

Floats joined(std::initializer_list<Floats> parts) {
  Floats all;
  for (const Floats& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

/// Softmax of a row of energies, in place.
void softmax(Doubles& row) {
  const double high = *std::max_element(row.begin(), row.end());
  double sum = 0;
  for (double& e : row) sum += e = std::exp(e - high);
  for (double& e : row) e /= sum;
}
/// Gradient of a softmax's inputs from its outputs and their gradient, in place of the latter.
void softmax_backward(const Doubles& y, Doubles& dy) {
  double mean = 0;
  for (size_t i = 0; i < y.size(); ++i) mean += y[i] * dy[i];
  for (size_t i = 0; i < y.size(); ++i) dy[i] = y[i] * (dy[i] - mean);
}

int64_t attended_pixel(Shape s, int64_t pixel, int64_t channel) {
  const int64_t y = pixel / s.w, x = pixel % s.w;
  if (channel < s.w) return y * s.w + channel;
  const int64_t row = channel - s.w;
  return (row < y ? row : row + 1) * s.w + x;
}

}  // namespace

TEST_CASE("criss-cross kernels agree with plain arithmetic") {
  for (const int64_t block : channel_blocks())
    for (const Shape s : attention_shapes())
      for (const bool sliced : {false, true}) {
        INFO("block " << block << " shape " << s.text() << " sliced " << sliced);
        const Shape ws{s.n, s.h + s.w - 1, s.h, s.w};
        const Floats t = random_values("ca.t", s.count()), f = random_values("ca.f", s.count()),
                     w = random_values("ca.w", ws.count());
        Output weight(ws), map(s), transposed(s);
        const Image it{s, t}, is{s, f}, iw{ws, w};
        for (int64_t n = 0; n < s.n; ++n)
          for (int64_t p = 0; p < s.h * s.w; ++p)
            for (int64_t j = 0; j < ws.c; ++j)
              for (int64_t c = 0; c < s.c; ++c) {
                const int64_t q = attended_pixel(s, p, j);
                weight.at(n, j, p) += it.at(n, c, p) * is.at(n, c, q);
                map.at(n, c, p) += iw.at(n, j, p) * is.at(n, c, q);
                transposed.at(n, c, q) += iw.at(n, j, p) * it.at(n, c, p);
              }
        same_for_any_threads([&] {
          TestTensor tt(s, Layout::kBlocked, block, sliced), tf(s, Layout::kBlocked, block, !sliced),
              tw(ws, Layout::kBlocked, block, sliced);
          tt.fill(t), tf.fill(f), tw.fill(w);
          TestTensor out_w(ws, Layout::kBlocked, block, sliced), out_map(s, Layout::kBlocked, block, sliced),
              out_t(s, Layout::kBlocked, block, sliced);
          Floats space = scratch(CONVOY_KERNEL(block, criss_cross_workspace_bytes)(tt.view()));
          CONVOY_KERNEL(block, ca_weight)(tt.view(), tf.view(), out_w.view(), space.data());
          CONVOY_KERNEL(block, ca_map)(tw.view(), tf.view(), out_map.view(), space.data());
          CONVOY_KERNEL(block, ca_map_transposed)(tw.view(), tt.view(), out_t.view(), space.data());
          CHECK(relative_error(out_w.values(), weight.values) < 2e-6);
          CHECK(relative_error(out_map.values(), map.values) < 2e-6);
          CHECK(relative_error(out_t.values(), transposed.values) < 2e-6);
          for (const TestTensor* out : {&out_w, &out_map, &out_t}) CHECK(out->surroundings_intact());
          return bits(joined({out_w.values(), out_map.values(), out_t.values()}));
        });
      }
}

static void check_position(Shape qs, int64_t channels, double scale, int64_t block, bool sliced) {
  INFO("block " << block << " query " << qs.text() << " channels " << channels << " scale " << scale);
  const Shape vs{qs.n, channels, qs.h, qs.w};
  const int64_t pixels = qs.h * qs.w;
  const Floats q = random_values("pa.q", qs.count(), scale), k = random_values("pa.k", qs.count(), scale),
               v = random_values("pa.v", vs.count()), dy = random_values("pa.dy", vs.count());
  const Image iq{qs, q}, ik{qs, k}, iv{vs, v}, ig{vs, dy};
  Output y(vs), dq(qs), dk(qs), dv(vs);
  Doubles weights(static_cast<size_t>(pixels)), d(weights.size());
  for (int64_t n = 0; n < qs.n; ++n)
    for (int64_t i = 0; i < pixels; ++i) {
      for (int64_t j = 0; j < pixels; ++j) {
        double energy = 0, gradient = 0;
        for (int64_t c = 0; c < qs.c; ++c) energy += iq.at(n, c, i) * ik.at(n, c, j);
        for (int64_t c = 0; c < channels; ++c) gradient += ig.at(n, c, i) * iv.at(n, c, j);
        weights[static_cast<size_t>(j)] = energy, d[static_cast<size_t>(j)] = gradient;
      }
      softmax(weights);
      softmax_backward(weights, d);
      for (int64_t j = 0; j < pixels; ++j) {
        const double weight = weights[static_cast<size_t>(j)], energy = d[static_cast<size_t>(j)];
        for (int64_t c = 0; c < channels; ++c) {
          y.at(n, c, i) += weight * iv.at(n, c, j);
          dv.at(n, c, j) += weight * ig.at(n, c, i);
        }
        for (int64_t c = 0; c < qs.c; ++c) {
          dq.at(n, c, i) += energy * ik.at(n, c, j);
          dk.at(n, c, j) += energy * iq.at(n, c, i);
        }
      }
    }
  same_for_any_threads([&] {
    const auto tensor = [&](Shape s, bool slice) { return TestTensor(s, Layout::kBlocked, block, slice); };
    TestTensor tq = tensor(qs, sliced), tk = tensor(qs, !sliced), tv = tensor(vs, sliced), ty = tensor(vs, sliced),
               tdy = tensor(vs, !sliced), tdq = tensor(qs, sliced), tdk = tensor(qs, sliced), tdv = tensor(vs, sliced);
    tq.fill(q), tk.fill(k), tv.fill(v), tdy.fill(dy);
    Floats sums(static_cast<size_t>(qs.n * pixels));
    const View lse = plain(sums, qs.n, pixels);
    Floats space = scratch(CONVOY_KERNEL(block, position_attention_workspace_bytes)(tq.view()));
    CONVOY_KERNEL(block, position_attention)(tq.view(), tk.view(), tv.view(), ty.view(), lse, space.data());
    space = scratch(CONVOY_KERNEL(block, position_attention_backward_workspace_bytes)(tq.view(), tv.view()));
    CONVOY_KERNEL(block, position_attention_backward)
    (tdy.view(), tq.view(), tk.view(), tv.view(), ty.view(), lse, tdq.view(), tdk.view(), tdv.view(), space.data());
    CHECK(relative_error(ty.values(), y.values) < 5e-6);
    CHECK(relative_error(tdv.values(), dv.values) < 1e-5);
    if (pixels > 1) {
      CHECK(relative_error(tdq.values(), dq.values) < 2e-5);
      CHECK(relative_error(tdk.values(), dk.values) < 2e-5);
    }
    for (const TestTensor* out : {&ty, &tdq, &tdk, &tdv}) CHECK(out->surroundings_intact());
    return bits(joined({ty.values(), sums, tdq.values(), tdk.values(), tdv.values()}));
  });
}

TEST_CASE("position attention agrees with plain arithmetic") {
  for (const int64_t block : channel_blocks()) {
    for (const Shape s : attention_shapes()) check_position(s, 19, 0.5, block, s.c % 2 == 1);
    check_position({1, 4, 12, 11}, 33, 6, block, false);  // energies up to 100: maxima move from tile to tile
    check_position({40, 2, 3, 3}, 1, 1, block, true);     // more images than tasks
  }
}

TEST_CASE("channel attention agrees with plain arithmetic") {
  for (const int64_t block : channel_blocks())
    for (const Shape s :
         {Shape{1, 1, 1, 1}, Shape{2, 3, 5, 7}, Shape{3, 19, 4, 4}, Shape{1, 33, 9, 15}, Shape{1, 150, 3, 5}})
      for (const bool sliced : {false, true}) {
        INFO("block " << block << " shape " << s.text() << " sliced " << sliced);
        const int64_t pixels = s.h * s.w;
        const Floats x = random_values("cam.x", s.count(), 0.5), dy = random_values("cam.dy", s.count());
        const Image ix{s, x}, ig{s, dy};
        Output y(s), dx(s);
        Doubles weights(static_cast<size_t>(s.c)), d(weights.size());
        for (int64_t n = 0; n < s.n; ++n)
          for (int64_t c = 0; c < s.c; ++c) {
            for (int64_t o = 0; o < s.c; ++o) {
              double energy = 0, gradient = 0;
              for (int64_t p = 0; p < pixels; ++p) {
                energy += ix.at(n, c, p) * ix.at(n, o, p);
                gradient += ig.at(n, c, p) * ix.at(n, o, p);
              }
              weights[static_cast<size_t>(o)] = -energy, d[static_cast<size_t>(o)] = gradient;
            }
            softmax(weights);
            softmax_backward(weights, d);
            for (int64_t o = 0; o < s.c; ++o)
              for (int64_t p = 0; p < pixels; ++p) {
                const double weight = weights[static_cast<size_t>(o)], energy = -d[static_cast<size_t>(o)];
                y.at(n, c, p) += weight * ix.at(n, o, p);
                dx.at(n, o, p) += weight * ig.at(n, c, p) + energy * ix.at(n, c, p);
                dx.at(n, c, p) += energy * ix.at(n, o, p);
              }
          }
        same_for_any_threads([&] {
          TestTensor tx(s, Layout::kBlocked, block, sliced), ty(s, Layout::kBlocked, block, sliced),
              tdy(s, Layout::kBlocked, block, !sliced), tdx(s, Layout::kBlocked, block, sliced),
              tw({s.n, s.c, s.c, 1}, Layout::kBlocked, block, sliced);
          tx.fill(x), tdy.fill(dy);
          CONVOY_KERNEL(block, channel_attention)(tx.view(), ty.view(), tw.view());
          Floats space = scratch(CONVOY_KERNEL(block, channel_attention_backward_workspace_bytes)(tx.view()));
          CONVOY_KERNEL(block, channel_attention_backward)
          (tdy.view(), tx.view(), tw.view(), tdx.view(), space.data());
          CHECK(relative_error(ty.values(), y.values) < 5e-6);
          CHECK(relative_error(tdx.values(), dx.values) < 2e-5);
          for (const TestTensor* out : {&ty, &tw, &tdx}) CHECK(out->surroundings_intact());
          return bits(joined({ty.values(), tw.values(), tdx.values()}));
        });
      }
}

TEST_CASE("weights of attention are zero or normal numbers") {
  for (const int64_t block : channel_blocks()) {
    const Shape s{1, 40, 12, 13};
    TestTensor x(s, Layout::kBlocked, block), y(s, Layout::kBlocked, block),
        weights({1, s.c, s.c, 1}, Layout::kBlocked, block);
    x.fill(random_values("cam.wide", s.count(), 1.3));  // energies from -60 to 100
    CONVOY_KERNEL(block, channel_attention)(x.view(), y.view(), weights.view());
    int64_t zeros = 0;
    for (const float w : weights.values()) {
      zeros += w == 0;
      CHECK((w == 0 || w > 1e-32f));
    }
    CHECK(zeros >= s.c);  // each channel with itself, at least
  }
}

TEST_CASE("encoding by codewords agrees with plain arithmetic") {
  for (const int64_t block : channel_blocks())
    for (const Shape s : attention_shapes())
      for (const int64_t count : {1, 4, 32, 37}) {
        const bool sliced = count == 4;
        INFO("block " << block << " shape " << s.text() << " codewords " << count);
        const int64_t pixels = s.h * s.w;
        const auto words = static_cast<size_t>(count);
        const Floats x = random_values("enc.x", s.count()), dy = random_values("enc.dy", s.n * count * s.c);
        Floats codes = random_values("enc.c", count * s.c, 0.5), scale = random_values("enc.s", count, 0.2, -0.3);
        const Image ix{s, x};
        Output distances({s.n, count, s.h, s.w}), dx(s);
        Doubles y(dy.size()), dcodes(codes.size()), dscale(words), a(words), d(words);
        for (int64_t n = 0; n < s.n; ++n)
          for (int64_t p = 0; p < pixels; ++p) {
            const auto residual = [&](size_t k, int64_t c) {
              return ix.at(n, c, p) - static_cast<double>(codes[k * static_cast<size_t>(s.c) + static_cast<size_t>(c)]);
            };
            const auto at = [&](size_t k, int64_t c) {
              return (static_cast<size_t>(n) * words + k) * static_cast<size_t>(s.c) + static_cast<size_t>(c);
            };
            for (size_t k = 0; k < words; ++k) {
              double distance = 0;
              d[k] = 0;
              for (int64_t c = 0; c < s.c; ++c) {
                distance += residual(k, c) * residual(k, c);
                d[k] += static_cast<double>(dy[at(k, c)]) * residual(k, c);
              }
              distances.at(n, static_cast<int64_t>(k), p) = distance;
              a[k] = static_cast<double>(scale[k]) * static_cast<double>(scale[k]) * distance;
            }
            softmax(a);
            softmax_backward(a, d);
            for (size_t k = 0; k < words; ++k) {
              const double factor = static_cast<double>(scale[k]);
              dscale[k] += 2 * factor * d[k] * distances.at(n, static_cast<int64_t>(k), p);
              for (int64_t c = 0; c < s.c; ++c) {
                y[at(k, c)] += a[k] * residual(k, c);
                const double g = a[k] * static_cast<double>(dy[at(k, c)]) + 2 * factor * factor * d[k] * residual(k, c);
                dx.at(n, c, p) += g;
                dcodes[k * static_cast<size_t>(s.c) + static_cast<size_t>(c)] -= g;
              }
            }
          }
        same_for_any_threads([&] {
          TestTensor tx(s, Layout::kBlocked, block, sliced), tdx(s, Layout::kBlocked, block, sliced),
              td({s.n, count, s.h, s.w}, Layout::kBlocked, block, sliced);
          tx.fill(x);
          Floats out(y.size()), out_codes(codes.size()), out_scale(scale.size()), upstream = dy;
          const View c = plain(codes, count, s.c);
          const auto codes_view = [&](Floats& values) {
            return View{.data = values.data(), .n = s.n, .c = count, .h = s.c, .pitch = count};
          };
          Floats space = scratch(CONVOY_KERNEL(block, encoding_workspace_bytes)(tx.view(), count));
          CONVOY_KERNEL(block, encoding)
          (tx.view(), c, scale.data(), codes_view(out), td.view(), space.data());
          space = scratch(CONVOY_KERNEL(block, encoding_backward_workspace_bytes)(tx.view(), count));
          CONVOY_KERNEL(block, encoding_backward)
          (codes_view(upstream), tx.view(), c, scale.data(), td.view(), tdx.view(), out_codes.data(), out_scale.data(),
           space.data());
          CHECK(relative_error(out, y) < 2e-5);
          CHECK(relative_error(td.values(), distances.values) < 2e-6);
          CHECK(relative_error(tdx.values(), dx.values) < 2e-5);
          CHECK(relative_error(out_codes, dcodes) < 2e-5);
          if (count > 1) CHECK(relative_error(out_scale, dscale) < 2e-5);
          for (const TestTensor* t : {&td, &tdx}) CHECK(t->surroundings_intact());
          return bits(joined({out, td.values(), tdx.values(), out_codes, out_scale}));
        });
      }
}

}  // namespace convoy::test
