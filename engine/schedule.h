// Which nodes a set of values needs, in the order in which they run.
#pragma once
#include <cstdint>
#include <vector>

#include "engine/graph.h"

namespace convoy {

struct Schedule {
  std::vector<NodeId> nodes;   ///< ascending; leaves included
  std::vector<bool> runs;      ///< per node; one that does not run is read for the outputs that it has already
  std::vector<Value> targets;  ///< what was asked for
  uint64_t hash = 0;           ///< of the structure: operators, attributes, shapes, edges; never of values or ids
};

/// Nodes that `targets` need. A value that evaluate() has computed counts as a leaf. With `with_effects`, effects whose
/// inputs are all computed here join in, unless evaluate() has run them already in this step.
Schedule make_schedule(const Graph& graph, std::vector<Value> targets, bool with_effects);

/// Rewrites nodes of the schedule in place where one kernel does the work of several:
///   activation(add(bn_apply(x), r)), activation(bn_apply(x)), add(bn_apply(x), r)  ->  bn_apply with residual, act
///   softmax_cross_entropy(resize_bilinear(x), t)                                   ->  upsample_softmax_ce(x, t)
/// Only intermediates that nobody else reads disappear; the values of the rewritten nodes are unchanged.
void fuse(Graph& graph, const Schedule& schedule);

/// Whether a value is a leaf of plans: an input, constant, parameter, buffer, or already computed.
bool is_leaf(const Graph& graph, Value v);

}  // namespace convoy
