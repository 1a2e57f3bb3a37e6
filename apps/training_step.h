// One training step of one rank: its part of the global batch to loss and summed gradients, by a session's plan.
#pragma once
#include <memory>
#include <string>

#include "engine/session.h"
#include "io/config.h"
#include "io/loader.h"
#include "nets/network.h"

namespace convoy {

/// Appends one training step to the graph: input "image" (N,3,H,W) f32 and "target" (N,H,W) i32, the network in
/// training mode, the configured loss and its backward pass. Returns the loss; with a global batch
/// (Graph::set_global_batch) the part of it that the graph's images have.
SegmentationLoss build_training_step(Graph& graph, const Network& network, const Config& config, int64_t batch,
                                     SizeHW size);

/// Whose images a batch norm takes together, and how a rank's images are cut into lanes, as configured.
struct BatchPlan {
  GlobalBatch::Statistics statistics = GlobalBatch::Statistics::kAll;
  int64_t lane_images = 0;  ///< images that run together; 0: all of a rank
  int64_t unit = 1;         ///< shards are multiples of it

  /// This rank's part of the global batch: as even as it can be.
  BatchShard shard(int64_t global_batch, int rank, int ranks) const;
  /// "over the global batch (sync-BN)"
  std::string describe() const;
};
/// Throws Error where the configuration contradicts itself (a statistics group that does not divide the global batch or
/// would be split; per-rank statistics with exact sums).
BatchPlan plan_batch(const Config& config, int64_t global_batch, int ranks, bool exact_ranks);

/// Bits of stop flags that travel between ranks.
constexpr int kStopFlags = 16;

/// A graph of a rank's part of a training step: what a Session over it needs.
struct ShardedStep {
  std::vector<Value> targets;  ///< loss of the global batch; where there are several ranks or lanes also the stop flags
  size_t keeps_all = 0;        ///< the target that is SegmentationLoss::keeps_all, if any
  Lanes lanes;
};
/// build_training_step for one rank's shard of a global batch, with all exchanges. The graph must be new.
ShardedStep build_sharded_step(Graph& graph, const Network& network, const Config& config, const BatchShard& shard,
                               SizeHW size);

class TrainingStep {
 public:
  /// Builds the graph of the step and its plan for this rank's shard of the global batch. Collective: every rank of the
  /// context's communicator builds the same step. Throws Error naming the layer where the batch is too small for its
  /// statistics.
  TrainingStep(Context& context, ParamStore& store, const Network& network, const Config& config,
               const BatchShard& shard);

  struct Result {
    float loss = 0;           ///< over the global batch, the same on every rank
    uint32_t stop_flags = 0;  ///< those that any rank gave, the same on every rank
    bool keeps_all = false;   ///< OHEM found fewer labelled pixels than it is to keep
    double comm_seconds = 0;  ///< spent in exchanges with other ranks, waiting included
  };
  /// Runs forward, loss and backward for `batch` (this rank's images of step `step`, perhaps none). Afterwards the
  /// gradients are the sums over all ranks. `stop_flags` tells the other ranks that this one wants to stop, and why;
  /// they travel with the loss count.
  Result run(const Batch& batch, int64_t step, uint32_t stop_flags = 0);

  const Plan& plan() const { return session_->plan(); }

 private:
  BatchShard shard_;
  uint64_t seed_;
  Graph graph_;
  size_t keeps_all_ = 0;
  Tensor flags_;  ///< (kStopFlags): one where a flag is set
  std::unique_ptr<Session> session_;
};

}  // namespace convoy
