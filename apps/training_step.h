// One training step of one rank: its part of the global batch to loss and summed gradients, by a session's plan.
#pragma once
#include <memory>

#include "engine/session.h"
#include "io/config.h"
#include "io/loader.h"
#include "nets/network.h"

namespace convoy {

/// Appends one training step to the graph: input "image" (N,3,H,W) f32 and "target" (N,H,W) i32, the network in
/// training mode, the configured loss and its backward pass. Returns the loss, a scalar.
Value build_training_step(Graph& graph, const Network& network, const Config& config, int64_t batch, SizeHW size);

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
  };
  /// Runs forward, loss and backward for `batch` (this rank's images of step `step`, perhaps none). Afterwards the
  /// gradients are the sums over all ranks. `stop_flags` (up to 16 bits) tells the other ranks that this one wants to
  /// stop, and why.
  Result run(const Batch& batch, int64_t step, uint32_t stop_flags = 0);

  const Plan& plan() const { return session_->plan(); }

 private:
  BatchShard shard_;
  uint64_t seed_;
  Graph graph_;
  Value loss_;
  std::unique_ptr<Session> session_;
};

}  // namespace convoy
