#include "kernels/optimizer.h"

#include <fmt/format.h>

#include "tests/kernels/blocked_tensor.h"

namespace convoy::test {

using Floats = std::vector<float>;

namespace {

/// The update of one element in double precision.
void update_element(const UpdateRule& r, double wd, double g, double& p, double& a, double& b) {
  const double t = static_cast<double>(r.step);
  if (r.kind == UpdateKind::kAdamW)
    p *= 1 - r.lr * wd;
  else
    g += wd * p;
  switch (r.kind) {
    case UpdateKind::kSgd:
      a = r.step == 1 ? g : r.momentum * a + g;
      p -= r.lr * (r.nesterov ? g + r.momentum * a : a);
      break;
    case UpdateKind::kAdam:
    case UpdateKind::kAdamW:
      a = r.beta1 * a + (1 - r.beta1) * g;
      b = r.beta2 * b + (1 - r.beta2) * g * g;
      p -= r.lr * (a / (1 - std::pow(r.beta1, t))) / (std::sqrt(b / (1 - std::pow(r.beta2, t))) + r.eps);
      break;
    case UpdateKind::kRmsprop:
      a = r.alpha * a + (1 - r.alpha) * g * g;
      if (r.momentum > 0) b = r.momentum * b + g / (std::sqrt(a) + r.eps);
      p -= r.lr * (r.momentum > 0 ? b : g / (std::sqrt(a) + r.eps));
      break;
    case UpdateKind::kAdadelta: {
      a = r.alpha * a + (1 - r.alpha) * g * g;
      const double d = std::sqrt(b + r.eps) / std::sqrt(a + r.eps) * g;
      p -= r.lr * d;
      b = r.alpha * b + (1 - r.alpha) * d * d;
    }
  }
}

}  // namespace

TEST_CASE("updates follow their rules in double precision, each run by its own rate and decay") {
  const std::vector<UpdateRule> rules = {
      {.kind = UpdateKind::kSgd, .lr = 0.1},
      {.kind = UpdateKind::kSgd, .lr = 0.1, .momentum = 0.9},
      {.kind = UpdateKind::kSgd, .lr = 0.1, .momentum = 0.9, .nesterov = true},
      {.kind = UpdateKind::kAdam, .lr = 0.1, .eps = 1e-4},
      {.kind = UpdateKind::kAdamW, .lr = 0.1, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-4},
      {.kind = UpdateKind::kRmsprop, .lr = 0.1, .momentum = 0.9, .eps = 1e-4},
      {.kind = UpdateKind::kRmsprop, .lr = 0.1, .eps = 1e-4},
      {.kind = UpdateKind::kAdadelta, .lr = 0.1, .alpha = 0.95, .eps = 1e-4},
  };
  for (const int64_t block : channel_blocks())
    for (const int64_t count : {1, 7, 16, 33, 100003})
      for (size_t k = 0; k < rules.size(); ++k) {
        if (count > 33 && k % 3) continue;
        INFO("block " << block << " count " << count << " rule " << k);
        const std::vector<UpdateRun> runs = {{0, count, 1, 0.01}, {count + 4 - count % 4, count, 2, 0.2}};
        const int64_t total = runs[1].offset + count;
        const Floats start = random_values("update.p", total);
        const bool scaled = k % 2;
        const float factor = 0.75f;
        std::vector<double> p(start.begin(), start.end()), a(start.size(), 0), b(start.size(), 0);
        for (int step = 1; step <= 3; ++step) {
          const Floats grad = random_values(fmt::format("update.g{}", step), total);
          for (const UpdateRun& run : runs)
            for (int64_t i = run.offset; i < run.offset + run.count; ++i) {
              const auto at = static_cast<size_t>(i);
              UpdateRule rule = rules[k];
              rule.step = step;
              rule.lr *= run.lr_factor;
              update_element(rule, run.weight_decay, grad[at] * (scaled ? double(factor) : 1), p[at], a[at], b[at]);
            }
        }
        const float poison = rules[k].kind == UpdateKind::kSgd ? NAN : 0.0f;
        same_for_any_threads([&] {
          Floats param = start, first(start.size(), poison), second(start.size(), 0);
          for (const UpdateRun& run : runs)
            for (int64_t i = run.offset; i < run.offset + run.count; ++i) first[static_cast<size_t>(i)] = poison;
          for (int step = 1; step <= 3; ++step) {
            const Floats grad = random_values(fmt::format("update.g{}", step), total);
            UpdateRule rule = rules[k];
            rule.step = step;
            CONVOY_KERNEL(block, update_parameters)
            ({param.data(), grad.data(), {first.data(), second.data()}}, runs.data(), 2, rule,
             scaled ? &factor : nullptr);
          }
          for (int64_t i = count; i < runs[1].offset; ++i) {  // between the runs
            const auto at = static_cast<size_t>(i);
            CHECK(param[at] == start[at]);
            first[at] = 0;
          }
          // Where decay and gradient nearly cancel, adam divides a rounding error by its own size.
          CHECK(relative_error(param, p) < 1e-5);
          CHECK(relative_error(first, a) < 2e-6);
          CHECK(relative_error(second, b) < 2e-6);
          param.insert(param.end(), first.begin(), first.end());
          return bits(param);
        });
      }
}

TEST_CASE("SGD agrees with the golden case") {
  const golden::OpCase& c = golden::op_case("sgd");
  for (const int64_t block : channel_blocks()) {
    Floats param = c.input("p").values, velocity(param.size(), NAN);
    const UpdateRun run{0, static_cast<int64_t>(param.size()), 1, c.attrs.at("weight_decay")};
    for (int step = 0; step < 3; ++step) {
      const Floats& grad = c.input(fmt::format("g{}", step)).values;
      const UpdateRule rule{.lr = c.attrs.at("lr"),
                            .momentum = c.attrs.at("momentum"),
                            .nesterov = c.attrs.at("nesterov"),
                            .step = step + 1};
      CONVOY_KERNEL(block, update_parameters)
      ({param.data(), grad.data(), {velocity.data(), nullptr}}, &run, 1, rule, nullptr);
      CHECK(relative_error(param, c.output(fmt::format("p{}", step + 1)).values) < 1e-6);
    }
  }
}

TEST_CASE("the factor undoes a loss scale and limits the norm") {
  for (const int64_t block : channel_blocks()) {
    const auto factor = [&](double sum, float unscale, float max_norm) {
      float result = 0;
      CONVOY_KERNEL(block, gradient_factor)(&sum, unscale, max_norm, &result);
      return result;
    };
    CHECK(factor(100, 1, 0) == 1);
    CHECK(factor(100, 0.5, 0) == 0.5f);
    CHECK(factor(100, 0.5, 6) == 0.5f);
    CHECK(factor(100, 0.5, 4) == Approx(0.5 * 4 / (5 + 1e-6)).epsilon(1e-6));
    CHECK(factor(0, 1, 4) == 1);
    CHECK(std::isnan(factor(INFINITY, 1, 4)));
    CHECK(std::isnan(factor(NAN, 1, 0)));
  }
}

TEST_CASE("sum of squares and the finiteness check see every element") {
  for (const int64_t block : channel_blocks())
    for (const int64_t count : {0, 1, 7, 16, 4097, 100003}) {
      INFO("block " << block << " count " << count);
      const Floats x = random_values("squares", count);
      double want = 0;
      for (const float v : x) want += double(v) * v;
      const double got = same_for_any_threads([&] { return CONVOY_KERNEL(block, sum_of_squares)(x.data(), count); });
      CHECK(got == Approx(want).epsilon(1e-12));
      CHECK(CONVOY_KERNEL(block, all_finite)(x.data(), count));
      for (const int64_t at : {int64_t{0}, count / 2, count - 1}) {
        for (const float poison : {NAN, INFINITY, -INFINITY}) {
          if (count == 0) continue;
          Floats bad = x;
          bad[static_cast<size_t>(at)] = poison;
          CHECK_FALSE(same_for_any_threads([&] { return CONVOY_KERNEL(block, all_finite)(bad.data(), count); }));
        }
      }
    }
}

}  // namespace convoy::test
