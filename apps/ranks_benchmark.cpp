#include "apps/ranks_benchmark.h"

#include <algorithm>
#include <ctime>
#include <numeric>

#include "apps/measured_communicator.h"
#include "apps/ranks.h"
#include "engine/plan.h"
#include "engine/session.h"
#include "kernels/isa.h"

namespace convoy {

namespace {

using nlohmann::json;

double mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

/// Of all threads of this process.
double cpu_seconds() {
  timespec time;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

/// Steps of one kind.
struct Kind {
  std::vector<double> seconds, cpu;  // of every step of this rank
  std::vector<double> round_means;   // of the slowest rank

  json summary() const {
    return {{"seconds", seconds},
            {"median_seconds", median(seconds)},
            {"cpu_seconds", cpu},
            {"median_cpu_seconds", median(cpu)}};
  }
};

/// Round by round, this kind's time / the other's.
std::vector<double> quotients(const Kind& kind, const Kind& other) {
  std::vector<double> result;
  for (size_t i = 0; i < kind.round_means.size(); ++i) result.push_back(kind.round_means[i] / other.round_means[i]);
  return result;
}

struct ChannelFigures {
  std::vector<double> seconds, last_seconds;  // by step
  ExchangeAccount::Channel last;

  /// A call takes the rank that comes to it last the least time: it waits for nobody.
  void add(const ExchangeAccount::Channel& step, Communicator& communicator) {
    seconds.push_back(step.seconds);
    last = step;
    const size_t calls = step.calls.size(), ranks = static_cast<size_t>(communicator.size());
    std::vector<double> all(calls * ranks);
    communicator.all_gather(step.calls.data(), calls * sizeof(double), all.data(), "times of exchanges");
    double sum = 0;
    for (size_t call = 0; call < calls; ++call) {
      double least = all[call];
      for (size_t rank = 1; rank < ranks; ++rank) least = std::min(least, all[rank * calls + call]);
      sum += least;
    }
    last_seconds.push_back(sum);
  }
  json summary() const {
    return {{"messages", last.messages},
            {"bytes", last.bytes},
            {"median_seconds", median(seconds)},
            {"median_seconds_without_waiting", median(last_seconds)}};
  }
};

StepBenchmarkOptions part_of(StepBenchmarkOptions step, const Communicator& communicator) {
  const int ranks = communicator.size();
  CONVOY_CHECK(ranks >= 2, "exchanges are measured between at least two ranks, this is one; use --ranks 2");
  CONVOY_CHECK(step.batch % ranks == 0,
               "a batch of {} is not divided evenly among {} ranks, so one rank alone would have other work",
               step.batch, ranks);
  step.batch /= ranks;
  return step;
}

}  // namespace

json run_ranks_benchmark(const RanksBenchmarkOptions& options, std::shared_ptr<Communicator> communicator) {
  const StepBenchmarkOptions part = part_of(options.step, *communicator);
  const auto measured = std::make_shared<MeasuredCommunicator>(communicator);
  communicator->set_activity("building the network");
  BenchmarkStep exchanging(part, options.step.batch, measured);
  check_same(*communicator, "sequence of exchanges", exchanging.plan().exchanges());
  // A single image has no statistics behind a global pooling: then the rank alone is told of a larger batch of which
  // it has the only part, so that what it sums over ranks is copied.
  BenchmarkStep own(part, part.batch == 1 ? options.step.batch : 0, nullptr);

  Kind together, alone, side_by_side;
  ChannelFigures messages, sums;
  const bool is_main = communicator->rank() == 0;
  const auto run = [&](BenchmarkStep& step, Kind& kind, int steps, bool here) {
    communicator->barrier("start of benchmark steps");
    std::vector<double> seconds;
    std::vector<ExchangeAccount> accounts;
    for (int i = 0; here && i < steps; ++i) {
      communicator->set_activity("measuring a step");
      measured->take_account();
      const double cpu_before = cpu_seconds();
      seconds.push_back(step.run());
      kind.cpu.push_back(cpu_seconds() - cpu_before);
      if (&step != &exchanging) continue;
      accounts.push_back(measured->take_account());
    }
    for (const ExchangeAccount& account : accounts) {
      messages.add(account.inline_channel, *communicator);
      sums.add(account.gradients, *communicator);
    }
    const double own_mean = here ? mean(seconds) : 0;
    std::vector<double> means(static_cast<size_t>(communicator->size()));
    communicator->all_gather(&own_mean, sizeof own_mean, means.data(), "end of benchmark steps");
    kind.seconds.insert(kind.seconds.end(), seconds.begin(), seconds.end());
    kind.round_means.push_back(*std::max_element(means.begin(), means.end()));
  };
  const auto round = [&](int steps) {
    run(exchanging, together, steps, true);
    run(own, alone, steps, is_main);
    run(own, side_by_side, steps, true);
  };
  if (options.warmup > 0) round(options.warmup);
  together = alone = side_by_side = {};
  messages = sums = {};
  for (int i = 0; i < options.rounds; ++i) round(options.steps);

  const std::vector<double> to_alone = quotients(together, alone), to_side = quotients(together, side_by_side);
  json result{{"net", part.net},
              {"input", fmt::format("{}x3x{}x{}", options.step.batch, part.height, part.width)},
              {"aux", part.aux},
              {"ranks", communicator->size()},
              {"threads_per_rank", part.threads},
              {"isa", cpu::isa_name()},
              {"bucket_bytes", part.bucket_bytes},
              {"together", together.summary()},
              {"side_by_side", side_by_side.summary()},
              {"ratio_to_alone", median(to_alone)},
              {"ratios_to_alone", to_alone},
              {"ratio_to_side_by_side", median(to_side)},
              {"ratios_to_side_by_side", to_side},
              {"statistics_and_counts", messages.summary()},
              {"gradients", sums.summary()}};
  if (is_main) result["alone"] = alone.summary();
  return result;
}

}  // namespace convoy
