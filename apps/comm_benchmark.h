// How fast ranks exchange messages and gradients.
#pragma once
#include <nlohmann/json.hpp>

#include "engine/communicator.h"

namespace convoy {

struct CommBenchmarkOptions {
  double gradient_bytes = 0;  ///< of a training step, for the bucket size that follows
  int repeats = 15;           ///< medians are taken over so many
};

/// Measures, every time from a common start to the end of the slowest rank:
///   all_reduce     sums of floats, 4 bytes to 16 MiB
///   gradient_sum   one bucket through start_sum and finish_sums, 4 KiB to 25 MiB
/// The first of each list is the latency, the last gives the bandwidth. A step that sums S bytes of gradients in
/// buckets of b bytes needs about S / b latencies, and the last bucket's b / bandwidth is not hidden behind computing:
/// "best_bucket_bytes" is where the sum of the two is least, sqrt(S * latency * bandwidth). Collective; the same on
/// every rank. Throws Error for fewer than two ranks.
nlohmann::json run_comm_benchmark(const CommBenchmarkOptions& options, Communicator& communicator);

}  // namespace convoy
