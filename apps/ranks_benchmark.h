// What exchanges between ranks cost a training step.
#pragma once
#include <memory>
#include <nlohmann/json.hpp>

#include "apps/step_benchmark.h"
#include "engine/communicator.h"

namespace convoy {

struct RanksBenchmarkOptions {
  StepBenchmarkOptions
      step;        ///< batch: images of all ranks; threads: of each rank; peer, warmup and pairs are not used
  int warmup = 2;  ///< steps of each kind before the clock starts
  int rounds = 7;
  int steps = 3;  ///< of each kind in a round
};

/// Three kinds of step take turns, round by round:
///   together       all ranks: their parts of the global batch, statistics and gradients exchanged
///   alone          rank 0 by itself on as many images as it has together, nothing exchanged; the others sleep
///   side by side   all ranks do that at the same time: what shared cores and memory cost without any exchange
/// The result holds this rank's seconds of every step (cpu_seconds: those that its threads had a core, which tell a
/// slow step from a busy machine) and their medians, the ratios together / alone and together / side by side (a round's
/// means, of the slowest rank; then the median over rounds), and what was exchanged. "alone" is there on rank 0 only.
/// Collective. Throws Error for fewer than two ranks and for a batch that they cannot divide evenly.
nlohmann::json run_ranks_benchmark(const RanksBenchmarkOptions& options, std::shared_ptr<Communicator> communicator);

}  // namespace convoy
