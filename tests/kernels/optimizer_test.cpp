#include "kernels/optimizer.h"

#include <fmt/format.h>

#include "tests/kernels/blocked_tensor.h"

namespace convoy::test {

using Floats = std::vector<float>;

TEST_CASE("SGD follows its rule in double precision") {
  for (const int64_t block : channel_blocks())
    for (const int64_t count : {1, 7, 16, 33, 100003})
      for (const bool nesterov : {false, true})
        for (const float momentum : {0.0f, 0.9f}) {
          INFO("block " << block << " count " << count << " nesterov " << nesterov << " momentum " << momentum);
          const size_t size = static_cast<size_t>(count);
          const float lr = 0.1f, decay = 0.01f;
          const Floats start = random_values("sgd.p", count);
          std::vector<double> p(start.begin(), start.end()), v(size, 0);
          for (int step = 0; step < 3; ++step) {
            const Floats grad = random_values(fmt::format("sgd.g{}", step), count);
            for (size_t i = 0; i < size; ++i) {
              const double g = grad[i] + double(decay) * p[i];
              v[i] = step == 0 ? g : double(momentum) * v[i] + g;
              p[i] -= double(lr) * (nesterov ? g + double(momentum) * v[i] : v[i]);
            }
          }
          same_for_any_threads([&] {
            Floats param = start, velocity(size, NAN);
            for (int step = 0; step < 3; ++step) {
              const Floats grad = random_values(fmt::format("sgd.g{}", step), count);
              CONVOY_KERNEL(block, sgd_momentum)
              (param.data(), grad.data(), velocity.data(), count, lr, momentum, decay, nesterov, step == 0);
            }
            CHECK(relative_error(param, p) < 5e-7);
            CHECK(relative_error(velocity, v) < 5e-7);
            param.insert(param.end(), velocity.begin(), velocity.end());
            return bits(param);
          });
        }
}

TEST_CASE("SGD agrees with the golden case") {
  const golden::OpCase& c = golden::op_case("sgd");
  for (const int64_t block : channel_blocks()) {
    Floats param = c.input("p").values, velocity(param.size(), NAN);
    for (int step = 0; step < 3; ++step) {
      const Floats& grad = c.input(fmt::format("g{}", step)).values;
      CONVOY_KERNEL(block, sgd_momentum)
      (param.data(), grad.data(), velocity.data(), static_cast<int64_t>(param.size()), c.attrs.at("lr"),
       c.attrs.at("momentum"), c.attrs.at("weight_decay"), c.attrs.at("nesterov"), step == 0);
      CHECK(relative_error(param, c.output(fmt::format("p{}", step + 1)).values) < 1e-6);
    }
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
