#include "kernels/pool.h"

#include "tests/kernels/blocked_tensor.h"

namespace convoy::test {

using Floats = std::vector<float>;
using Doubles = std::vector<double>;

/// One window or bin in plain arithmetic: the rows and columns it covers and what an average divides by.
struct PoolCells {
  int64_t top, bottom, left, right;
  double divisor;
};

/// Pooling forward and backward over the given cells, plane by plane.
struct PoolReference {
  Doubles max, average, max_dx, average_dx;
  std::vector<int32_t> index;

  template <class CellsOf>
  PoolReference(const Shape& in, const Shape& out, const Floats& x, const Floats& dy, const CellsOf& cells_of) {
    max_dx.assign(x.size(), 0), average_dx = max_dx;
    for (int64_t plane = 0; plane < in.n * in.c; ++plane)
      for (int64_t oy = 0; oy < out.h; ++oy)
        for (int64_t ox = 0; ox < out.w; ++ox) {
          const PoolCells cells = cells_of(oy, ox);
          const auto at = [&](int64_t h, int64_t w) { return static_cast<size_t>((plane * in.h + h) * in.w + w); };
          const double g = dy[max.size()];
          int64_t best_h = cells.top, best_w = cells.left;
          double sum = 0;
          for (int64_t h = cells.top; h < cells.bottom; ++h)
            for (int64_t w = cells.left; w < cells.right; ++w) {
              if (x[at(h, w)] > x[at(best_h, best_w)]) best_h = h, best_w = w;
              sum += x[at(h, w)];
              average_dx[at(h, w)] += g / cells.divisor;
            }
          max.push_back(x[at(best_h, best_w)]);
          index.push_back(static_cast<int32_t>(best_h * in.w + best_w));
          max_dx[at(best_h, best_w)] += g;
          average.push_back(sum / cells.divisor);
        }
  }
};

static PoolCells window_cells(const Shape& in, const Pool2d& p, int64_t oy, int64_t ox) {
  const int64_t top = oy * p.stride_h - p.pad_h, left = ox * p.stride_w - p.pad_w;
  const int64_t bottom = std::min(top + p.kernel_h, in.h + p.pad_h),
                right = std::min(left + p.kernel_w, in.w + p.pad_w);
  PoolCells c{std::max<int64_t>(top, 0), std::min(bottom, in.h), std::max<int64_t>(left, 0), std::min(right, in.w), 0};
  c.divisor =
      p.count_include_pad ? double((bottom - top) * (right - left)) : double((c.bottom - c.top) * (c.right - c.left));
  return c;
}

static int64_t pooled(int64_t extent, int kernel, int stride, int pad, bool ceil_mode) {
  int64_t windows = (extent + 2 * pad - kernel + (ceil_mode ? stride - 1 : 0)) / stride + 1;
  if (ceil_mode && (windows - 1) * stride >= extent + pad) --windows;
  return windows;
}

static void check_windows(const Shape& in, const Pool2d& pool, bool ceil_mode, int64_t block, bool sliced) {
  const Shape out{in.n, in.c, pooled(in.h, pool.kernel_h, pool.stride_h, pool.pad_h, ceil_mode),
                  pooled(in.w, pool.kernel_w, pool.stride_w, pool.pad_w, ceil_mode)};
  INFO("block " << block << " shape " << in.text() << " kernel " << pool.kernel_h << "x" << pool.kernel_w << " stride "
                << pool.stride_h << " pad " << pool.pad_h << " ceil " << ceil_mode);
  // Coarse values, so that equal maxima occur.
  Floats x = random_values("pool.x", in.count(), 4);
  for (float& v : x) v = std::round(v);
  const Floats dy = random_values("pool.dy", out.count());
  const PoolReference want(in, out, x, dy, [&](int64_t oy, int64_t ox) { return window_cells(in, pool, oy, ox); });
  same_for_any_threads([&] {
    TestTensor tx(in, Layout::kBlocked, block, sliced), tdx(in, Layout::kBlocked, block, sliced);
    TestTensor ty(out, Layout::kBlocked, block, sliced), tdy(out, Layout::kBlocked, block, !sliced);
    TestTensor index(out, Layout::kBlocked, block, sliced);
    tx.fill(x), tdy.fill(dy);
    CONVOY_KERNEL(block, max_pool)(tx.view(), pool, ty.view(), &index.view());
    CHECK(relative_error(ty.values(), want.max) == 0);
    CHECK(index.integers() == want.index);
    CHECK(ty.surroundings_intact());
    CHECK(index.surroundings_intact());
    Floats all = ty.values();
    TestTensor without_index(out, Layout::kBlocked, block, sliced);
    CONVOY_KERNEL(block, max_pool)(tx.view(), pool, without_index.view(), nullptr);
    CHECK(without_index.same_bits(ty));
    CONVOY_KERNEL(block, max_pool_backward)(tdy.view(), index.view(), pool, tdx.view());
    CHECK(relative_error(tdx.values(), want.max_dx) < 1e-6);
    CHECK(tdx.surroundings_intact());
    const Floats max_dx = tdx.values();
    CONVOY_KERNEL(block, avg_pool)(tx.view(), pool, ty.view());
    CHECK(relative_error(ty.values(), want.average) < 1e-6);
    CHECK(ty.surroundings_intact());
    CONVOY_KERNEL(block, avg_pool_backward)(tdy.view(), pool, tdx.view());
    CHECK(relative_error(tdx.values(), want.average_dx) < 1e-6);
    CHECK(tdx.surroundings_intact());
    for (const Floats& part : {max_dx, ty.values(), tdx.values()}) all.insert(all.end(), part.begin(), part.end());
    return bits(all);
  });
}

TEST_CASE("pooling over windows agrees with plain arithmetic") {
  const std::vector<Pool2d> pools = {{2, 2, 2, 2, 0, 0, true}, {3, 3, 2, 2, 1, 1, true},  {3, 3, 2, 2, 1, 1, false},
                                     {3, 3, 1, 1, 1, 1, true}, {2, 2, 1, 1, 0, 0, true},  {5, 5, 1, 1, 2, 2, false},
                                     {3, 2, 2, 1, 1, 0, true}, {2, 2, 3, 3, 0, 0, false}, {1, 1, 2, 2, 0, 0, true}};
  for (const int64_t block : channel_blocks())
    for (const Shape s : {Shape{2, 3, 7, 9}, Shape{1, 19, 8, 5}, Shape{3, 33, 5, 5}, Shape{2, 64, 33, 40}})
      for (const Pool2d& pool : pools)
        for (const bool ceil_mode : {false, true}) check_windows(s, pool, ceil_mode, block, pool.stride_h == 2);
}

TEST_CASE("adaptive average pooling agrees with plain arithmetic") {
  for (const int64_t block : channel_blocks()) {
    for (const Shape in : image_shapes()) {
      for (const Shape size : {Shape{0, 0, 1, 1}, Shape{0, 0, 2, 3}, Shape{0, 0, 6, 6}, Shape{0, 0, 5, 1}}) {
        const Shape out{in.n, in.c, size.h, size.w};
        INFO("block " << block << " shape " << in.text() << " to " << out.text());
        const Floats x = random_values("aap.x", in.count()), dy = random_values("aap.dy", out.count());
        const auto cells_of = [&](int64_t oy, int64_t ox) {
          PoolCells c{oy * in.h / out.h, ((oy + 1) * in.h + out.h - 1) / out.h, ox * in.w / out.w,
                      ((ox + 1) * in.w + out.w - 1) / out.w, 0};
          c.divisor = double((c.bottom - c.top) * (c.right - c.left));
          return c;
        };
        const PoolReference want(in, out, x, dy, cells_of);
        same_for_any_threads([&] {
          const bool sliced = size.h == 6;
          TestTensor tx(in, Layout::kBlocked, block, sliced), tdx(in, Layout::kBlocked, block, sliced);
          TestTensor ty(out, Layout::kBlocked, block, sliced), tdy(out, Layout::kBlocked, block);
          tx.fill(x), tdy.fill(dy);
          CONVOY_KERNEL(block, adaptive_avg_pool)(tx.view(), ty.view());
          CHECK(relative_error(ty.values(), want.average) < 1e-6);
          CHECK(ty.surroundings_intact());
          CONVOY_KERNEL(block, adaptive_avg_pool_backward)(tdy.view(), tdx.view());
          CHECK(relative_error(tdx.values(), want.average_dx) < 1e-6);
          CHECK(tdx.surroundings_intact());
          Floats all = ty.values(), dx = tdx.values();
          all.insert(all.end(), dx.begin(), dx.end());
          return bits(all);
        });
      }
    }
  }
}

TEST_CASE("max pooling passes NaN and infinities on") {
  for (const int64_t block : channel_blocks()) {
    const Shape in{1, 1, 2, 4}, out{1, 1, 1, 2};
    const float low = -std::numeric_limits<float>::infinity();
    TestTensor x(in, Layout::kBlocked, block), y(out, Layout::kBlocked, block), index(out, Layout::kBlocked, block);
    x.fill({1, 2, low, low, NAN, 3, low, low});
    CONVOY_KERNEL(block, max_pool)(x.view(), Pool2d{2, 2, 2, 2, 0, 0, true}, y.view(), &index.view());
    CHECK(std::isnan(y.values()[0]));
    CHECK(y.values()[1] == low);
    CHECK(index.integers() == std::vector<int32_t>{4, 2});
  }
}

static Shape shape_of(const golden::Array& a) {
  return {a.shape[0], a.shape[1], a.shape[2], a.shape[3]};
}

TEST_CASE("pooling agrees with the golden cases") {
  for (const int64_t block : channel_blocks()) {
    for (const std::string op : {"max_pool2d", "avg_pool2d", "adaptive_avg_pool2d"}) {
      for (const golden::OpCase& c : golden::op_cases_of(op)) {
        if (c.attrs.value("unpool", false)) continue;  // its gradient includes that of the unpooling
        INFO(c.id << " block " << block);
        const Shape in = shape_of(c.input("x")), out = shape_of(c.output("y"));
        TestTensor x(in, Layout::kBlocked, block), dx(in, Layout::kBlocked, block), y(out, Layout::kBlocked, block),
            dy(out, Layout::kBlocked, block), index(out, Layout::kBlocked, block);
        x.fill(c.input("x").values), dy.fill(c.output("y").upstream);
        const int kernel = c.attrs.value("kernel", 1), stride = c.attrs.value("stride", 1),
                  pad = c.attrs.value("padding", 0);
        const Pool2d pool{kernel, kernel, stride, stride, pad, pad, c.attrs.value("count_include_pad", true)};
        if (op == "max_pool2d") {
          CONVOY_KERNEL(block, max_pool)(x.view(), pool, y.view(), &index.view());
          CONVOY_KERNEL(block, max_pool_backward)(dy.view(), index.view(), pool, dx.view());
          const Floats& positions = c.output("index").values;
          CHECK(index.integers() == std::vector<int32_t>(positions.begin(), positions.end()));
        } else if (op == "avg_pool2d") {
          CONVOY_KERNEL(block, avg_pool)(x.view(), pool, y.view());
          CONVOY_KERNEL(block, avg_pool_backward)(dy.view(), pool, dx.view());
        } else {
          CONVOY_KERNEL(block, adaptive_avg_pool)(x.view(), y.view());
          CONVOY_KERNEL(block, adaptive_avg_pool_backward)(dy.view(), dx.view());
        }
        CHECK(relative_error(y.values(), c.output("y").values) < 1e-6);
        CHECK(relative_error(dx.values(), c.gradient("x").values) < 1e-6);
      }
    }
  }
}

}  // namespace convoy::test
