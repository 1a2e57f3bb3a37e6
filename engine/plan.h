// A plan: the list of kernel launches that computes the targets of a schedule, with every tensor's place in memory.
//
// Passes, in order (each a function in plan_*.cpp):
//   layout    which layout each value has; reorders where a node wants another one
//   views     concat parts that are produced where the concat wants them; slices that need no copy; gradients that are
//             produced in the gradient store
//   in place  outputs that take over the memory of an input nobody reads any more
//   phases    what runs before, in and after the lanes, where they run one after the other
//   messages  collectives of independent nodes that travel together
//   buckets   groups of gradients that are exchanged together, in order of completion
//   memory    liveness over the launch list, then offset packing into one arena
// `convoy plan` prints the result.
#pragma once
#include <string>
#include <vector>

#include "engine/op.h"
#include "engine/schedule.h"

namespace convoy {

class Context;
class ParamStore;

/// A tensor of the plan.
struct PlanValue {
  enum class Place : uint8_t { kArena, kLeaf, kGradient };
  std::string name;
  TensorInfo info;
  View geometry;  ///< data is null
  Place place = Place::kArena;
  int buffer = -1;             ///< arena: which PlanBuffer
  int64_t channel_offset = 0;  ///< arena: first channel inside the buffer's tensor
  int64_t slot = -1;           ///< gradient: parameter index
  int leaf = -1;               ///< leaf: index into Plan::leaves
  int producer = -1;           ///< launch that writes it, -1 for leaves
  int last_use = -1;           ///< last launch that reads or writes it
  bool shared = false;         ///< one value for all lanes of a session
  bool is_target = false;
};

/// A piece of the arena; values that share one are slices of it or follow each other in place.
struct PlanBuffer {
  size_t bytes = 0;
  int first = 0, last = 0;  ///< launches between which it is alive
  size_t offset = 0;
  bool kept = false;  ///< has a place for every lane, although lanes run one after the other
};

/// Where a leaf's memory comes from at run time.
struct PlanLeaf {
  enum class Kind : uint8_t { kInput, kConstant, kParameter, kBuffer };
  Kind kind = Kind::kInput;
  std::string name;         ///< of an input
  int64_t slot = -1;        ///< of a parameter or buffer
  int schedule_index = -1;  ///< of a constant: position in Schedule::nodes
  int32_t output = 0;
  int value = -1;
};

/// A node's part of a collective launch.
struct ExchangePart {
  int schedule_index = -1;
  std::string name;  ///< module path
  Message message;
  size_t inputs = 0, outputs = 0;  ///< how many of the launch's are this part's
};

struct Launch {
  enum class Kind : uint8_t {
    kKernel,     ///< once per lane, or once where all its inputs are shared
    kExchange,   ///< a collective of the inline channel, once for all lanes
    kStartSum,   ///< hands a bucket of gradients to the gradient channel
    kFinishSums  ///< waits for all of them
  };
  /// When a launch runs where lanes run one after the other in the same memory.
  enum class Phase : uint8_t { kBefore, kLanes, kAfter };
  std::string op, name;  ///< operator and module path
  std::string attrs;
  Kernel kernel;
  std::vector<int> in, out;  ///< plan values; -1 for an output that nobody reads
  int workspace = -1;        ///< PlanBuffer
  Cost cost;
  int schedule_index = -1;  ///< node it came from; -1 for reorders
  size_t copied_bytes = 0;  ///< reorders, concat parts and slices that had to be copied
  Kind kind = Kind::kKernel;
  Phase phase = Phase::kLanes;
  bool shared = false;              ///< a kernel that runs once for all lanes
  std::vector<ExchangePart> parts;  ///< of a collective
  int bucket = -1;                  ///< of a kStartSum
};

/// Gradients exchanged in one all-reduce.
struct GradientBucket {
  std::vector<int64_t> parameters;
  size_t bytes = 0;
  int ready_after = -1;  ///< launch that completes it
};

struct PlanOptions {
  /// Bytes behind every arena buffer that no kernel may touch: the debug interpreter watches them.
  size_t guard_bytes = 0;
  size_t first_bucket_bytes = size_t{1} << 20;
  size_t bucket_bytes = size_t{25} << 20;
  /// The session has more than one lane: gradients add up instead of being produced in the gradient store.
  bool several_lanes = false;
};

class Plan {
 public:
  std::vector<PlanValue> values;
  std::vector<PlanBuffer> buffers;
  std::vector<PlanLeaf> leaves;
  std::vector<Launch> launches;
  std::vector<GradientBucket> buckets;
  std::vector<int> targets;  ///< plan values, in the schedule's order
  /// Lanes run one after the other (micro-batches): no lane needs what another one makes. Else side by side, launch by
  /// launch.
  bool sequential = false;
  size_t arena_bytes = 0;
  size_t kept_bytes = 0;  ///< beside the arena, per lane: what is exchanged after the lanes
  size_t guard_bytes = 0;
  size_t lower_bound_bytes = 0;  ///< most bytes alive at once: what perfect packing would need
  uint64_t hash = 0;

  /// One line per launch: number, operator, module path, shapes and layouts, implementation, bytes, FLOPs; then memory,
  /// buckets and copies. Deterministic. Without implementations it is also free of all that the convolution library
  /// decides (names, workspaces): that text is a test golden.
  std::string dump(bool with_implementations = true) const;
  double total_flops() const;
  /// One line per exchange with other ranks, in order: what all ranks must agree on, whatever their share of the batch.
  std::string exchanges() const;
  /// Floats that a collective launch sends.
  static size_t message_floats(const Launch& launch);
};

/// Compiles a schedule. Throws Error naming the node when the device has no kernel for it.
Plan compile(const Graph& graph, const Schedule& schedule, const Context& context, const PlanOptions& options = {});

// The passes, exposed for their tests.
void choose_layouts(Plan& plan, const Graph& graph, const Schedule& schedule, const Context& context);
void order_phases(Plan& plan);
void merge_messages(Plan& plan);
void make_views(Plan& plan, const Graph& graph, const Schedule& schedule, const PlanOptions& options);
void share_in_place(Plan& plan, const Graph& graph, const Schedule& schedule);
void assign_buckets(Plan& plan, const ParamStore& parameters, const PlanOptions& options);
void exchange_buckets(Plan& plan);
void pack_memory(Plan& plan, const PlanOptions& options);

}  // namespace convoy
