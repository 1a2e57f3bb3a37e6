#include "apps/comm_benchmark.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <vector>

#include "apps/step_benchmark.h"
#include "engine/error.h"

namespace convoy {

namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

constexpr size_t kKiB = 1024, kMiB = 1024 * kKiB;

/// Median over repeats of the slowest rank's seconds for one call; short calls are timed several at a time.
double time_calls(Communicator& communicator, size_t bytes, int repeats, const std::function<void()>& call) {
  const int calls = bytes <= 64 * kKiB ? 50 : bytes <= kMiB ? 5 : 1;
  std::vector<double> of_repeats;
  for (int i = -1; i < repeats; ++i) {  // the first warms up
    communicator.set_activity("measuring exchanges");
    communicator.barrier("start of a measurement");
    const auto start = Clock::now();
    for (int k = 0; k < calls; ++k) call();
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count() / calls;
    std::vector<double> all(static_cast<size_t>(communicator.size()));
    communicator.all_gather(&seconds, sizeof seconds, all.data(), "end of a measurement");
    if (i >= 0) of_repeats.push_back(*std::max_element(all.begin(), all.end()));
  }
  return median(of_repeats);
}

struct Measurement {
  std::vector<size_t> bytes;
  std::vector<double> seconds;

  double latency() const { return seconds.front(); }
  double bandwidth() const { return static_cast<double>(bytes.back()) / std::max(seconds.back() - latency(), 1e-9); }
  json summary() const {
    json sizes = json::array();
    for (size_t i = 0; i < bytes.size(); ++i)
      sizes.push_back({{"bytes", bytes[i]},
                       {"seconds", seconds[i]},
                       {"bytes_per_second", static_cast<double>(bytes[i]) / seconds[i]}});
    return {{"sizes", sizes}, {"latency_seconds", latency()}, {"bandwidth_bytes_per_second", bandwidth()}};
  }
};

Measurement measure_all_reduce(Communicator& communicator, int repeats) {
  Measurement result{.bytes = {4, 256, 4 * kKiB, 64 * kKiB, kMiB, 16 * kMiB}, .seconds = {}};
  std::vector<float> data(result.bytes.back() / sizeof(float), 0.0f);
  for (const size_t bytes : result.bytes) {
    const std::span<float> part(data.data(), bytes / sizeof(float));
    result.seconds.push_back(time_calls(communicator, bytes, repeats,
                                        [&] { communicator.all_reduce(part, ReduceOp::kSum, "benchmark sum"); }));
  }
  return result;
}

Measurement measure_gradient_sum(Communicator& communicator, int repeats) {
  Measurement result{.bytes = {4 * kKiB, 64 * kKiB, kMiB, 4 * kMiB, 25 * kMiB}, .seconds = {}};
  const auto memory = communicator.exchange_memory(result.bytes.back());
  for (const size_t bytes : result.bytes) {
    const std::span<float> bucket(static_cast<float*>(memory->data), bytes / sizeof(float));
    result.seconds.push_back(time_calls(communicator, bytes, repeats, [&] {
      communicator.start_sum({bucket}, "benchmark bucket");
      communicator.finish_sums();
    }));
  }
  return result;
}

}  // namespace

json run_comm_benchmark(const CommBenchmarkOptions& options, Communicator& communicator) {
  CONVOY_CHECK(communicator.size() >= 2,
               "exchanges are measured between at least two ranks, this is one; use --ranks 2");
  const Measurement all_reduce = measure_all_reduce(communicator, options.repeats);
  const Measurement sum = measure_gradient_sum(communicator, options.repeats);
  return {{"ranks", communicator.size()},
          {"all_reduce", all_reduce.summary()},
          {"gradient_sum", sum.summary()},
          {"gradient_bytes", options.gradient_bytes},
          {"best_bucket_bytes", std::sqrt(options.gradient_bytes * sum.latency() * sum.bandwidth())}};
}

}  // namespace convoy
