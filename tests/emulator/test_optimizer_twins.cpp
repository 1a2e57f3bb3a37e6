// Updates of flat arrays and reductions over gradients against the CPU twins.
#include "kernels/optimizer.h"
#include "tests/emulator/twins.h"

namespace convoy::test {
namespace {

std::vector<UpdateRule> rules() {
  return {{.kind = UpdateKind::kSgd, .lr = 0.05, .momentum = 0.9, .step = 1},
          {.kind = UpdateKind::kSgd, .lr = 0.05, .momentum = 0.9, .nesterov = true, .step = 2},
          {.kind = UpdateKind::kAdam, .lr = 0.02, .step = 3},
          {.kind = UpdateKind::kAdamW, .lr = 0.02, .beta1 = 0.8, .eps = 1e-3, .step = 1},
          {.kind = UpdateKind::kRmsprop, .lr = 0.01, .momentum = 0.9, .step = 4},
          {.kind = UpdateKind::kRmsprop, .lr = 0.01, .step = 4},
          {.kind = UpdateKind::kAdadelta, .lr = 0.5, .eps = 1e-6, .step = 2}};
}

/// Two neighbours, a gap of parameters that are not trained, and a run of odd length at the end.
const std::vector<UpdateRun> kRuns = {{0, 1040, 1, 0.01}, {1040, 16, 10, 0}, {1072, 1, 1, 0.02}, {1076, 263, 0.5, 0.1}};
constexpr int64_t kTotal = 1344;

bool is_trained(int64_t i) {
  for (const UpdateRun& run : kRuns)
    if (i >= run.offset && i < run.offset + run.count) return true;
  return false;
}

float narrow_value(uint16_t bits, DType type) {
  __half half;
  __nv_bfloat16 brain;
  std::memcpy(static_cast<void*>(&half), &bits, sizeof bits);
  std::memcpy(static_cast<void*>(&brain), &bits, sizeof bits);
  return type == DType::kF16 ? static_cast<float>(half) : static_cast<float>(brain);
}

}  // namespace

TEST_CASE("one launch updates all runs as the CPU does, and nothing beside them", "[optimizer]") {
  const auto values = random_values("optimizer.p", kTotal), gradients = random_values("optimizer.g", kTotal);
  auto first = random_values("optimizer.a", kTotal), second = random_values("optimizer.b", kTotal);
  int which = 0;
  for (const UpdateRule& rule : rules()) {
    const bool signed_first = rule.kind == UpdateKind::kSgd || UpdateScalars::is_adam(rule);
    const bool signed_second = rule.kind == UpdateKind::kRmsprop;
    std::vector<float> start[2] = {first, second};
    for (auto& v : start[0]) v = signed_first ? v : std::abs(v);
    for (auto& v : start[1]) v = signed_second ? v : std::abs(v);
    ++which;
    const DType type = which % 2 ? DType::kBF16 : DType::kF16;
    const bool copied = which % 3 != 0;
    const std::vector<float> factor{0.25f};
    INFO("rule " << which);

    auto want = values, want_first = start[0], want_second = start[1];
    std::vector<uint16_t> want_copy(kTotal, 0xffff);
    const UpdateArrays cpu{want.data(),
                           gradients.data(),
                           {want_first.data(), want_second.data()},
                           copied ? want_copy.data() : nullptr,
                           type};
    CONVOY_CPU(update_parameters, cpu, kRuns.data(), static_cast<int64_t>(kRuns.size()), rule,
               which % 2 ? factor.data() : nullptr);

    const Results got = over_orders([&] {
      const DeviceBuffer<float> v(values), g(gradients), a(start[0]), b(start[1]), f(factor);
      const DeviceBuffer<uint16_t> copy(std::vector<uint16_t>(kTotal, 0xffff));
      const DeviceBuffer<UpdateRun> runs(kRuns);
      const UpdateArrays arrays{v.data(), g.data(), {a.data(), b.data()}, copied ? copy.data() : nullptr, type};
      device::update_parameters(nullptr, arrays, runs.data(), static_cast<int64_t>(kRuns.size()), rule,
                                which % 2 ? f.data() : nullptr);
      std::vector<float> narrow;
      for (const uint16_t bits : copy.host()) narrow.push_back(bits);
      return Results{v.host(), a.host(), b.host(), narrow};
    });
    CHECK(relative_error(got[0], want) < 1e-6);
    CHECK(relative_error(got[1], want_first) < 1e-6);
    CHECK(relative_error(got[2], want_second) < 1e-6);
    int64_t touched = 0, wrong_copies = 0;
    for (int64_t i = 0; i < kTotal; ++i) {
      const auto at = static_cast<size_t>(i);
      const auto bits = static_cast<uint16_t>(got[3][at]);
      if (!is_trained(i) || !copied) touched += bits != 0xffff;
      if (!is_trained(i)) touched += got[0][at] != values[at] || got[1][at] != start[0][at];
      if (is_trained(i) && copied)
        wrong_copies += narrow_value(bits, type) != rounded({got[0][at]}, type)[0] ||
                        std::abs(narrow_value(want_copy[at], type) - narrow_value(bits, type)) >
                            std::abs(want[at]) * (type == DType::kF16 ? 2e-3 : 1.6e-2);
    }
    CHECK(touched == 0);
    CHECK(wrong_copies == 0);
  }
}

TEST_CASE("a factor that is not a number leaves everything as it was", "[optimizer]") {
  const auto values = random_values("optimizer.p", 64);
  const DeviceBuffer<float> v(values), g(values), a(values), b(values), f(std::vector<float>{NAN});
  const DeviceBuffer<UpdateRun> runs(std::vector<UpdateRun>{{0, 64, 1, 0.1}});
  device::update_parameters(nullptr, {v.data(), g.data(), {a.data(), b.data()}}, runs.data(), 1,
                            {.kind = UpdateKind::kAdam, .lr = 0.1}, f.data());
  CHECK(v.host() == values);
  CHECK(a.host() == values);
  auto cpu = values, state = values;
  const float nan = NAN;
  const UpdateRun run{0, 64, 1, 0.1};
  CONVOY_CPU(update_parameters, UpdateArrays{cpu.data(), values.data(), {state.data(), state.data()}}, &run, 1,
             UpdateRule{.kind = UpdateKind::kSgd, .lr = 0.1}, &nan);
  CHECK(cpu == values);
}

TEST_CASE("arrays that lie askew and copies of other types are refused", "[optimizer]") {
  const DeviceBuffer<float> v(std::vector<float>(64, 1));
  const DeviceBuffer<UpdateRun> runs(std::vector<UpdateRun>{{0, 16, 1, 0}});
  const UpdateArrays askew{v.data() + 1, v.data(), {v.data() + 16, nullptr}};
  CHECK_THROWS_AS(device::update_parameters(nullptr, askew, runs.data(), 1, {}, nullptr), std::invalid_argument);
  const UpdateArrays wide{v.data(), v.data() + 16, {v.data() + 32, nullptr}, v.data() + 48, DType::kF32};
  CHECK_THROWS_AS(device::update_parameters(nullptr, wide, runs.data(), 1, {}, nullptr), std::invalid_argument);
}

TEST_CASE("sums of squares, finiteness and the factor that they give", "[optimizer]") {
  for (const auto& [count, askew] : {std::pair<int64_t, int64_t>{0, 0}, {1, 3}, {5003, 3}}) {
    INFO(count << " elements from " << askew);
    std::vector<float> x = random_values("squares", count + askew);
    std::fill_n(x.begin(), askew, NAN);
    const auto size = static_cast<size_t>(count);
    const Results got = over_orders([&] {
      const DeviceBuffer<float> in(x), factors(size_t{3});
      const DeviceBuffer<double> sum(size_t{1}), sums(static_cast<size_t>(kReductionParts));
      const DeviceBuffer<int32_t> finite(size_t{1}), flags(static_cast<size_t>(kReductionParts));
      device::sum_of_squares(nullptr, in.data() + askew, count, sum.data(), sums.data());
      device::all_finite(nullptr, in.data() + askew, count, finite.data(), flags.data());
      device::gradient_factor(nullptr, sum.data(), 0.5f, 2.0f, factors.data());
      device::gradient_factor(nullptr, sum.data(), 0.5f, 1e6f, factors.data() + 1);
      device::gradient_factor(nullptr, sum.data(), 0.5f, 0.f, factors.data() + 2);
      std::vector<float> results = factors.host();
      results.push_back(static_cast<float>(sum.host()[0]));
      results.push_back(static_cast<float>(finite.host()[0]));
      return Results{results};
    });
    const double squares = CONVOY_CPU(sum_of_squares, x.data() + askew, count);
    float clipped;
    CONVOY_CPU(gradient_factor, &squares, 0.5f, 2.0f, &clipped);
    CHECK(got[0][0] == Approx(clipped).epsilon(1e-6));
    CHECK(got[0][1] == 0.5f);
    CHECK(got[0][2] == 0.5f);
    CHECK(got[0][3] == Approx(squares).epsilon(1e-6));
    CHECK(got[0][4] == 1);
    for (const size_t at : {size_t{0}, size / 2, size - 1})
      for (const float poison : {NAN, INFINITY}) {
        if (count == 0) continue;
        std::vector<float> bad = x;
        bad[at + static_cast<size_t>(askew)] = poison;
        const DeviceBuffer<float> in(bad), factor(size_t{1});
        const DeviceBuffer<double> sum(size_t{1}), sums(static_cast<size_t>(kReductionParts));
        const DeviceBuffer<int32_t> finite(size_t{1}), flags(static_cast<size_t>(kReductionParts));
        device::all_finite(nullptr, in.data() + askew, count, finite.data(), flags.data());
        CHECK(finite.host()[0] == 0);
        if (at) continue;
        device::sum_of_squares(nullptr, in.data() + askew, count, sum.data(), sums.data());
        device::gradient_factor(nullptr, sum.data(), 1, 1, factor.data());
        CHECK(std::isnan(factor.host()[0]));
      }
  }
}

}  // namespace convoy::test
