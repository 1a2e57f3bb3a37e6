// Whether this machine's ranks compute what one rank computes, bit for bit.
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "apps/verify.h"
#include "engine/communicator.h"
#include "nets/network.h"

namespace convoy {

struct VerifyRanksOptions {
  std::string network;   ///< as in a recipe
  std::string backbone;  ///< of networks that have one; empty: the lightest that they are checked with
  int64_t height = 64, width = 128;
  int64_t batch = 0;  ///< global; 0: two images per rank and one more, so that shards are uneven
  int steps = 3;
  int64_t seed = 1;
  int threads = 0;  ///< of each rank
};

/// Trains the network (light_options) on random images with exact sums and dropout, once on all ranks together and once
/// by each rank alone on the whole global batch. A line per group of figures that must be equal: loss of every step,
/// gradients of the first step, weights and running statistics of the last; it names the first difference. Collective;
/// every rank returns the same lines.
std::vector<VerifyLine> verify_ranks(const std::shared_ptr<Communicator>& communicator,
                                     const VerifyRanksOptions& options);

}  // namespace convoy
