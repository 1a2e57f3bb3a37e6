#include "kernels/batch_norm.h"

#include "tests/kernels/blocked_tensor.h"

namespace convoy::test {

using Floats = std::vector<float>;
using Doubles = std::vector<double>;

static size_t channel_of(const Shape& s, size_t i) {
  return i / static_cast<size_t>(s.h * s.w) % static_cast<size_t>(s.c);
}

/// Batch norm with all its gradients in double precision.
struct BatchNormReference {
  Doubles mean, var, y, sum_dy, sum_dy_xhat, dx, masked_dy;

  BatchNormReference(const Shape& s, const Floats& x, const Floats& residual, const Floats& gamma, const Floats& beta,
                     const Floats& dy, double eps, Activation act) {
    const size_t channels = static_cast<size_t>(s.c);
    const double count = static_cast<double>(s.n * s.h * s.w);
    mean.assign(channels, 0), var = sum_dy = sum_dy_xhat = mean;
    for (size_t i = 0; i < x.size(); ++i) mean[channel_of(s, i)] += x[i] / count;
    for (size_t i = 0; i < x.size(); ++i) var[channel_of(s, i)] += std::pow(x[i] - mean[channel_of(s, i)], 2) / count;
    for (size_t i = 0; i < x.size(); ++i) {
      const size_t c = channel_of(s, i);
      const double xhat = (x[i] - mean[c]) / std::sqrt(var[c] + eps);
      double v = xhat * gamma[c] + beta[c] + (residual.empty() ? 0 : residual[i]);
      const bool open = act == Activation::kNone || (v > 0 && (act == Activation::kRelu || v < 6));
      if (act != Activation::kNone) v = std::max(v, 0.0);
      if (act == Activation::kRelu6) v = std::min(v, 6.0);
      y.push_back(v);
      masked_dy.push_back(open ? dy[i] : 0);
      sum_dy[c] += masked_dy[i];
      sum_dy_xhat[c] += masked_dy[i] * xhat;
    }
    for (size_t i = 0; i < x.size(); ++i) {
      const size_t c = channel_of(s, i);
      const double rstd = 1 / std::sqrt(var[c] + eps), xhat = (x[i] - mean[c]) * rstd;
      dx.push_back(gamma[c] * rstd * (masked_dy[i] - sum_dy[c] / count - xhat * sum_dy_xhat[c] / count));
    }
  }
};

TEST_CASE("batch norm agrees with double precision, forward and backward") {
  for (const int64_t block : channel_blocks()) {
    for (const Shape s : image_shapes()) {
      for (const Activation act : {Activation::kNone, Activation::kRelu, Activation::kRelu6}) {
        for (const bool with_residual : {false, true}) {
          const bool sliced = with_residual;
          INFO("block " << block << " shape " << s.text() << " act " << int(act) << " residual " << with_residual);
          const float eps = 1e-3f;
          const Floats x = random_values("bn.x", s.count(), 3, 1), dy = random_values("bn.dy", s.count());
          const Floats residual = with_residual ? random_values("bn.residual", s.count(), 2) : Floats{};
          const Floats gamma = random_values("bn.gamma", s.c, 1, 2), beta = random_values("bn.beta", s.c, 1, 1);
          const BatchNormReference want(s, x, residual, gamma, beta, dy, eps, act);
          const size_t channels = static_cast<size_t>(s.c);

          same_for_any_threads([&] {
            TestTensor tx(s, Layout::kBlocked, block, sliced), ty(s, Layout::kBlocked, block, !sliced);
            TestTensor tr(s, Layout::kBlocked, block), tdy(s, Layout::kBlocked, block, sliced);
            TestTensor tdx(s, Layout::kBlocked, block, sliced), tdr(s, Layout::kBlocked, block);
            tx.fill(x), tdy.fill(dy);
            if (with_residual) tr.fill(residual);
            Floats mean(channels), var(channels), sum_dy(channels), sum_dy_xhat(channels);
            Floats workspace(static_cast<size_t>(bn_workspace(tx.view())), NAN);
            CONVOY_KERNEL(block, bn_stats)(tx.view(), mean.data(), var.data(), workspace.data());
            CHECK(relative_error(mean, want.mean) < 2e-7);
            CHECK((s.n * s.h * s.w == 1 || relative_error(var, want.var) < 3e-7));
            CONVOY_KERNEL(block, bn_apply)
            (tx.view(), with_residual ? &tr.view() : nullptr, mean.data(), var.data(), gamma.data(), beta.data(), eps,
             act, ty.view());
            CHECK(relative_error(ty.values(), want.y) < 1e-6);
            CHECK(ty.surroundings_intact());
            const View* y = act == Activation::kNone ? nullptr : &ty.view();
            CONVOY_KERNEL(block, bn_backward_reduce)
            (tdy.view(), y, tx.view(), mean.data(), var.data(), eps, act, sum_dy.data(), sum_dy_xhat.data(),
             workspace.data());
            const double terms = std::sqrt(static_cast<double>(s.n * s.h * s.w));
            for (size_t c = 0; c < channels; ++c) {
              CHECK(std::abs(sum_dy[c] - want.sum_dy[c]) < 1e-6 * terms);
              CHECK(std::abs(sum_dy_xhat[c] - want.sum_dy_xhat[c]) < 1e-6 * terms);
            }
            CONVOY_KERNEL(block, bn_backward_apply)
            (tdy.view(), y, tx.view(), mean.data(), var.data(), gamma.data(), eps, act, sum_dy.data(),
             sum_dy_xhat.data(), s.n * s.h * s.w, tdx.view(), with_residual ? &tdr.view() : nullptr);
            if (s.n * s.h * s.w > 1) CHECK(relative_error(tdx.values(), want.dx) < 2e-6);
            CHECK(tdx.surroundings_intact());
            if (with_residual) {
              CHECK(relative_error(tdr.values(), want.masked_dy) == 0);
              CHECK(tdr.surroundings_intact());
            }
            Floats all = ty.values();
            for (const Floats& part : {mean, var, sum_dy, sum_dy_xhat, tdx.values()})
              all.insert(all.end(), part.begin(), part.end());
            return bits(all);
          });
        }
      }
    }
  }
}

TEST_CASE("batch norm works in place") {
  for (const int64_t block : channel_blocks()) {
    const Shape s{2, 19, 5, 6};
    const Floats x = random_values("inplace.x", s.count()), ones(19, 1.0f), zeros(19, 0.0f);
    TestTensor a(s, Layout::kBlocked, block), b(s, Layout::kBlocked, block), out(s, Layout::kBlocked, block);
    a.fill(x), b.fill(x);
    CONVOY_KERNEL(block, bn_apply)
    (a.view(), &b.view(), zeros.data(), ones.data(), ones.data(), zeros.data(), 1e-5f, Activation::kRelu, out.view());
    CONVOY_KERNEL(block, bn_apply)
    (a.view(), &b.view(), zeros.data(), ones.data(), ones.data(), zeros.data(), 1e-5f, Activation::kRelu, a.view());
    CHECK(a.same_bits(out));
    CONVOY_KERNEL(block, bn_apply)
    (b.view(), &b.view(), zeros.data(), ones.data(), ones.data(), zeros.data(), 1e-5f, Activation::kRelu, b.view());
    CHECK(b.same_bits(out));
  }
}

TEST_CASE("batch statistics keep their digits under a large mean") {
  for (const int64_t block : channel_blocks()) {
    const Shape s{2, 5, 64, 65};
    const Floats x = random_values("bn.large", s.count(), 1, 1000);
    const BatchNormReference want(s, x, {}, Floats(5, 1.0f), Floats(5, 0.0f), x, 0, Activation::kNone);
    TestTensor tx(s, Layout::kBlocked, block);
    tx.fill(x);
    Floats mean(5), var(5), workspace(static_cast<size_t>(bn_workspace(tx.view())));
    CONVOY_KERNEL(block, bn_stats)(tx.view(), mean.data(), var.data(), workspace.data());
    CHECK(relative_error(mean, want.mean) < 1e-7);
    CHECK(relative_error(var, want.var) < 1e-6);
  }
}

TEST_CASE("batch norm passes NaN on") {
  for (const int64_t block : channel_blocks()) {
    const Shape s{1, 2, 1, 3};
    TestTensor x(s, Layout::kBlocked, block), y(s, Layout::kBlocked, block);
    x.fill({1, NAN, 2, 3, 4, 5});
    const Floats zeros(2, 0.0f), ones(2, 1.0f);
    for (const Activation act : {Activation::kNone, Activation::kRelu, Activation::kRelu6}) {
      CONVOY_KERNEL(block, bn_apply)
      (x.view(), nullptr, zeros.data(), ones.data(), ones.data(), zeros.data(), 0, act, y.view());
      CHECK(std::isnan(y.values()[1]));
      CHECK(y.values()[2] == 2);
    }
    Floats mean(2), var(2), workspace(static_cast<size_t>(bn_workspace(x.view())));
    CONVOY_KERNEL(block, bn_stats)(x.view(), mean.data(), var.data(), workspace.data());
    CHECK(std::isnan(mean[0]));
    CHECK(std::isnan(var[0]));
    CHECK(mean[1] == 4);
  }
}

TEST_CASE("batch norm agrees with the golden cases") {
  for (const golden::OpCase& c : golden::op_cases_of("batch_norm")) {
    for (const int64_t block : channel_blocks()) {
      INFO(c.id << " block " << block);
      const std::vector<int64_t>& extents = c.input("x").shape;
      const Shape s{extents[0], extents[1], extents[2], extents.size() > 3 ? extents[3] : 1};
      const bool train = c.attrs.at("train");
      const float eps = c.attrs.at("eps"), momentum = c.attrs.at("momentum");
      const Floats &gamma = c.input("weight").values, &beta = c.input("bias").values;
      Floats running_mean = c.input("running_mean").values, running_var = c.input("running_var").values;
      Floats mean = running_mean, var = running_var, d_beta(mean.size()), d_gamma(mean.size());
      const int64_t count = s.n * s.h * s.w;
      TestTensor x(s, Layout::kBlocked, block), y(s, Layout::kBlocked, block), dy(s, Layout::kBlocked, block),
          dx(s, Layout::kBlocked, block);
      x.fill(c.input("x").values), dy.fill(c.output("y").upstream);
      Floats workspace(static_cast<size_t>(bn_workspace(x.view())));
      if (train) CONVOY_KERNEL(block, bn_stats)(x.view(), mean.data(), var.data(), workspace.data());
      CONVOY_KERNEL(block, bn_apply)
      (x.view(), nullptr, mean.data(), var.data(), gamma.data(), beta.data(), eps, Activation::kNone, y.view());
      CHECK(relative_error(y.values(), c.output("y").values) < 1e-6);
      CONVOY_KERNEL(block, bn_backward_reduce)
      (dy.view(), nullptr, x.view(), mean.data(), var.data(), eps, Activation::kNone, d_beta.data(), d_gamma.data(),
       workspace.data());
      CHECK(relative_error(d_gamma, c.gradient("weight").values) < 1e-6);
      CHECK(relative_error(d_beta, c.gradient("bias").values) < 1e-6);
      CONVOY_KERNEL(block, bn_backward_apply)
      (dy.view(), nullptr, x.view(), mean.data(), var.data(), gamma.data(), eps, Activation::kNone,
       train ? d_beta.data() : nullptr, train ? d_gamma.data() : nullptr, count, dx.view(), nullptr);
      CHECK(relative_error(dx.values(), c.gradient("x").values) < 1e-6);
      if (train) {
        int64_t tracked = 7;
        CONVOY_KERNEL(block, bn_update_running)
        (mean.data(), var.data(), count, momentum, running_mean.data(), running_var.data(), &tracked, s.c);
        CHECK(relative_error(running_mean, c.output("new_running_mean").values) < 1e-6);
        CHECK(relative_error(running_var, c.output("new_running_var").values) < 1e-6);
        CHECK(tracked == 8);
      }
    }
  }
}

}  // namespace convoy::test
