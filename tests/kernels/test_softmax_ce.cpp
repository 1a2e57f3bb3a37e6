#include <algorithm>

#include "kernels/softmax_ce.h"
#include "tests/golden_ops.h"
#include "tests/kernels/image_tensor.h"

namespace convoy::test {
namespace {

struct Problem {
  int64_t n, c, h, w, out_h, out_w;
  bool align_corners;
};

struct Results {
  float loss = NAN;
  std::vector<float> gradient;
  int64_t bad_index = -2;
};

Results run_loss(bool avx512, const Problem& k, const std::vector<float>& logits, const std::vector<int32_t>& target,
                 int32_t ignore, const float* class_weight, float normalizer, bool wants_gradient, int64_t extra = 0) {
  const int64_t block = avx512 ? 16 : 8;
  ImageTensor x(k.n, k.c, k.h, k.w, block, extra), dx(k.n, k.c, k.h, k.w, block, extra);
  x.fill(logits);
  View d_logits = dx.view();
  if (!wants_gradient) d_logits.data = nullptr;
  std::vector<float> workspace(softmax_ce_workspace_bytes(x.view()) / sizeof(float), NAN);
  Results r;
  CONVOY_TEST_KERNEL(avx512, upsample_softmax_ce)
  (x.view(), target.data(), k.out_h, k.out_w, k.align_corners, ignore, class_weight, &normalizer, &r.loss, d_logits,
   &r.bad_index, workspace.data());
  if (wants_gradient) r.gradient = dx.plain();
  return r;
}

struct Source {
  int64_t i0, i1;
  double weight;
};

Source source_of(int64_t o, int64_t in, int64_t out, bool align_corners) {
  const double position = static_cast<double>(o), in_d = static_cast<double>(in), out_d = static_cast<double>(out);
  const double at = align_corners ? (out > 1 ? position * (in_d - 1) / (out_d - 1) : 0.0)
                                  : std::max((position + 0.5) * in_d / out_d - 0.5, 0.0);
  const int64_t i = std::min(static_cast<int64_t>(at), in - 1);
  return {i, std::min(i + 1, in - 1), i + 1 < in ? at - static_cast<double>(i) : 0.0};
}

double loss_reference(const Problem& k, const std::vector<float>& logits, const std::vector<int32_t>& target,
                      int32_t ignore, const float* class_weight, double normalizer, std::vector<double>& gradient) {
  gradient.assign(logits.size(), 0);
  double loss = 0;
  std::vector<double> v(static_cast<size_t>(k.c));
  for (int64_t n = 0; n < k.n; ++n)
    for (int64_t oh = 0; oh < k.out_h; ++oh)
      for (int64_t ow = 0; ow < k.out_w; ++ow) {
        const int32_t t = target[static_cast<size_t>((n * k.out_h + oh) * k.out_w + ow)];
        if (t == ignore || t < 0 || t >= k.c) continue;
        const Source a = source_of(oh, k.h, k.out_h, k.align_corners), b = source_of(ow, k.w, k.out_w, k.align_corners);
        const auto each_corner = [&](int64_t c, auto f) {
          for (int i = 0; i < 4; ++i)
            f(static_cast<size_t>(((n * k.c + c) * k.h + (i & 2 ? a.i1 : a.i0)) * k.w + (i & 1 ? b.i1 : b.i0)),
              (i & 2 ? a.weight : 1 - a.weight) * (i & 1 ? b.weight : 1 - b.weight));
        };
        for (int64_t c = 0; c < k.c; ++c) {
          v[static_cast<size_t>(c)] = 0;
          each_corner(c, [&](size_t i, double w) { v[static_cast<size_t>(c)] += w * static_cast<double>(logits[i]); });
        }
        const double highest = *std::max_element(v.begin(), v.end());
        double sum = 0;
        for (const double e : v) sum += std::exp(e - highest);
        const double weight = class_weight ? static_cast<double>(class_weight[t]) : 1.0;
        loss += weight * (std::log(sum) + highest - v[static_cast<size_t>(t)]);
        for (int64_t c = 0; c < k.c; ++c) {
          const double g = std::exp(v[static_cast<size_t>(c)] - highest) / sum - (c == t);
          each_corner(c, [&](size_t i, double w) { gradient[i] += w * g * weight / normalizer; });
        }
      }
  return loss / normalizer;
}

std::vector<int32_t> random_labels(const Problem& k, int32_t ignore, uint32_t seed) {
  std::mt19937 engine(seed);
  std::vector<int32_t> labels(static_cast<size_t>(k.n * k.out_h * k.out_w));
  for (int32_t& t : labels)
    t = engine() % 10 == 0 ? ignore : static_cast<int32_t>(engine() % static_cast<uint32_t>(k.c));
  return labels;
}

}  // namespace

TEST_CASE("fused loss agrees with double precision and gives equal bits for 1, 2 and 3 threads") {
  const Problem cases[] = {
      {2, 19, 5, 7, 40, 56, true},    {2, 19, 5, 7, 40, 56, false},  {1, 3, 17, 9, 68, 36, false},
      {1, 33, 6, 5, 13, 11, true},    {1, 64, 3, 4, 24, 32, false},  {1, 70, 4, 9, 9, 30, true},
      {3, 1, 4, 4, 9, 9, true},       {2, 19, 7, 9, 7, 9, true},     {1, 8, 7, 9, 7, 9, false},
      {1, 19, 1, 1, 6, 5, true},      {1, 19, 1, 1, 1, 1, false},    {2, 19, 33, 20, 16, 150, false},
      {1, 2, 40, 100, 10, 33, false}, {1, 12, 40, 3, 321, 24, true}, {1, 150, 5, 6, 20, 24, false},
  };
  uint32_t seed = 1;
  for (const Problem& k : cases) {
    const auto logits = random_values(k.n * k.c * k.h * k.w, seed, seed % 2 ? 3.0f : 30.0f);
    const int32_t ignore = seed % 3 ? -1 : 255;
    const auto target = random_labels(k, ignore, seed + 50);
    auto weight_values = random_values(k.c, seed + 90);
    for (float& w : weight_values) w = 1.0f + w * 0.5f;
    const float* class_weight = seed % 2 ? weight_values.data() : nullptr;
    ++seed;
    for (int avx512 = 0; avx512 <= static_cast<int>(has_avx512()); ++avx512) {
      INFO("C " << k.c << ", " << k.h << "x" << k.w << " to " << k.out_h << "x" << k.out_w << ", align_corners "
                << k.align_corners << ", avx512 " << avx512);
      Threads scope(1);
      float normalizer = NAN;
      CONVOY_TEST_KERNEL(avx512, label_weight_sum)
      (target.data(), static_cast<int64_t>(target.size()), k.c, ignore, class_weight, &normalizer);
      double weight_sum = 0;
      for (const int32_t t : target)
        if (t != ignore) weight_sum += class_weight ? static_cast<double>(class_weight[t]) : 1.0;
      CHECK(static_cast<double>(normalizer) == Approx(weight_sum).epsilon(1e-7));
      if (normalizer == 0) continue;
      std::vector<double> gradient;
      const double loss =
          loss_reference(k, logits, target, ignore, class_weight, static_cast<double>(normalizer), gradient);
      const Results one = run_loss(avx512, k, logits, target, ignore, class_weight, normalizer, true);
      // Coordinates are float32; a weight that is off by 1e-6 moves logits of 30 by as much times their difference.
      CHECK(static_cast<double>(one.loss) == Approx(loss).epsilon(2e-6).margin(1e-7));
      CHECK(relative_error(one.gradient, gradient) < 2e-5);
      CHECK(one.bad_index == -1);
      CHECK(run_loss(avx512, k, logits, target, ignore, class_weight, normalizer, false).loss == one.loss);
      for (const int threads : {2, 3}) {
        omp_set_num_threads(threads);
        const Results more = run_loss(avx512, k, logits, target, ignore, class_weight, normalizer, true, 1);
        CHECK(same_bits({more.loss}, {one.loss}));
        CHECK(same_bits(more.gradient, one.gradient));
      }
    }
  }
}

TEST_CASE("fused loss: no labelled pixel, wrong labels, extreme logits and NaN") {
  const Problem k{1, 19, 3, 4, 12, 16, false};
  for (int avx512 = 0; avx512 <= static_cast<int>(has_avx512()); ++avx512) {
    auto logits = random_values(k.c * k.h * k.w, 3);
    std::vector<int32_t> target(static_cast<size_t>(k.out_h * k.out_w), -1);
    Results r = run_loss(avx512, k, logits, target, -1, nullptr, 0.0f, true);
    CHECK(r.loss == 0.0f);
    CHECK(std::all_of(r.gradient.begin(), r.gradient.end(), [](float g) { return g == 0.0f; }));

    target = random_labels(k, -1, 4);
    const Results good = run_loss(avx512, k, logits, target, -1, nullptr, 100.0f, true);
    target[37] = -1;
    const Results without = run_loss(avx512, k, logits, target, -1, nullptr, 100.0f, true);
    for (const int32_t wrong :
         {19, 255, -7, std::numeric_limits<int32_t>::max(), std::numeric_limits<int32_t>::min()}) {
      target[37] = wrong;
      target[150] = wrong;
      r = run_loss(avx512, k, logits, target, -1, nullptr, 100.0f, true);
      CHECK(r.bad_index == 37);
      target[150] = -1;
    }
    CHECK(without.loss < good.loss);

    target = random_labels(k, -1, 5);
    for (float& v : logits) v *= 1e6f;
    std::vector<double> gradient;
    const double loss = loss_reference(k, logits, target, -1, nullptr, 100.0, gradient);
    r = run_loss(avx512, k, logits, target, -1, nullptr, 100.0f, true);
    CHECK(static_cast<double>(r.loss) == Approx(loss).epsilon(1e-5));
    logits[5] = NAN;
    CHECK(std::isnan(run_loss(avx512, k, logits, target, -1, nullptr, 100.0f, true).loss));
  }
}

TEST_CASE("fused loss agrees with the golden cases") {
  int seen = 0;
  for (const char* id : {"ce.ignore", "ce.weight", "ce.ignore255"}) {
    const golden::OpCase& c = golden::op_case(id);
    INFO(id);
    const auto& s = c.input("x").shape;
    const Problem k{s[0], s[1], s[2], s[3], s[2], s[3], true};
    std::vector<int32_t> target;
    for (const float t : c.input("t").values) target.push_back(static_cast<int32_t>(t));
    const int32_t ignore = c.attrs.at("ignore_index");
    const float* class_weight = c.inputs.size() > 2 ? c.input("class_weight").values.data() : nullptr;
    for (int avx512 = 0; avx512 <= static_cast<int>(has_avx512()); ++avx512) {
      float normalizer = 0;
      CONVOY_TEST_KERNEL(avx512, label_weight_sum)
      (target.data(), static_cast<int64_t>(target.size()), k.c, ignore, class_weight, &normalizer);
      Results r = run_loss(avx512, k, c.input("x").values, target, ignore, class_weight, normalizer, true);
      CHECK(r.loss == Approx(c.output("loss").values[0]).epsilon(1e-6));
      for (float& g : r.gradient) g *= c.output("loss").upstream[0];
      CHECK(relative_error(r.gradient, c.gradient("x").values) < 1e-6);
    }
    ++seen;
  }
  CHECK(seen == 3);
}

}  // namespace convoy::test
