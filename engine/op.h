// An operator: what the engine has to know to infer, differentiate, place and run it. Adding one is filling an OpDef.
#pragma once
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "engine/communicator.h"
#include "engine/graph.h"
#include "kernels/cuda_stream.h"
#include "kernels/isa.h"

namespace convoy {

enum class DeviceKind : uint8_t;

/// What a kernel may depend on beside its arguments.
struct StepState {
  uint64_t seed = 0;        ///< of the run
  int64_t global_step = 0;  ///< of the run, not of the process
  int64_t first_slot = 0;   ///< position of the lane's first image in the global batch
  int lane = 0;             ///< of this rank
};

struct KernelArgs {
  std::span<const View> in, out;  ///< data is null for an output that nobody asked for
  void* workspace;
  const StepState& step;
  /// Whether this is a device with memory of its own, where all data lies. The rest is for those alone.
  bool on_device = false;
  cudaStream_t stream = nullptr;  ///< on which the kernel is enqueued
  /// Device memory that holds a number above every position; null where the kernel has no `explain`. A kernel that
  /// finds its data wrong puts the smallest position there (atomicMin); Kernel::explain makes the error of it.
  int64_t* fault = nullptr;
};

/// Calls the CUDA launcher of this name on the device that the arguments belong to, with its stream.
#define CONVOY_CUDA(args, name, ...) ::convoy::emulated::name((args).stream, __VA_ARGS__)
/// Calls whichever twin belongs to the arguments' device, where both take the same arguments.
#define CONVOY_KERNEL(args, name, ...) \
  ((args).on_device ? CONVOY_CUDA(args, name, __VA_ARGS__) : CONVOY_CPU(name, __VA_ARGS__))

/// What a collective has to work with.
struct ExchangeArgs {
  /// Per input the views of this rank's lanes (none where it has no images), or the one view of a value that all share.
  std::span<const std::vector<View>> in;
  std::span<const View> out;  ///< the same values for all lanes
  Communicator& communicator;
  const std::string& name;  ///< of the collective, for messages
};

/// Launches that belong to no node: what CONVOY_CUDA asks of its arguments.
struct OnStream {
  cudaStream_t stream;
};

/// The message of a collective: what it sends, and what it makes of that of all ranks. Messages of independent nodes
/// travel together (engine/plan_messages.cpp).
struct Message {
  enum class Kind : uint8_t { kSum, kGather };
  Kind kind = Kind::kSum;
  size_t floats = 0;  ///< that each rank sends
  /// Writes this rank's contribution; zeros where it has no images.
  std::function<void(std::span<const std::vector<View>> in, float* message)> pack;
  /// kSum: `all` is the sum; kGather: rank r's message starts at all + r * stride.
  std::function<void(const float* all, size_t stride, int ranks, std::span<const View> out)> unpack;
  /// The same by kernels, with everything in device memory.
  std::function<void(OnStream stream, std::span<const std::vector<View>> in, float* message)> pack_on_device;
  std::function<void(OnStream stream, const float* all, size_t stride, int ranks, std::span<const View> out)>
      unpack_on_device;
};

/// A node made ready to run on a device: everything that depends on shapes alone is done. A collective has `message`,
/// or `exchange` where one message is not enough; every other operator has `run`.
struct Kernel {
  std::function<void(const KernelArgs&)> run;
  size_t workspace_bytes = 0;
  std::string implementation;  ///< shown by `convoy plan`
  Message message = {};
  std::function<void(const ExchangeArgs&)> exchange = {};
  /// On a device: throws the Error that the position in KernelArgs::fault stands for. `in` are host copies.
  std::function<void(std::span<const View> in, int64_t fault)> explain = {};
};

struct PrepareArgs {
  const Node& node;
  std::span<const View> in, out;  ///< geometry; data is null
  const Context& context;
};

/// Layouts that a node wants. `in` comes in with the layouts its inputs have and leaves with those it takes.
struct LayoutChoice {
  const Node& node;
  DeviceKind device;
  std::vector<Layout> in, out;
};

/// Everything an operator's gradient rule needs.
class GradContext {
 public:
  GradContext(Graph& graph, NodeId id, std::span<const Value> d_outputs, std::span<const bool> needed,
              std::vector<Value>& d_inputs)
      : graph(graph), id_(id), d_outputs_(d_outputs), needed_(needed), d_inputs_(d_inputs) {}
  Graph& graph;
  const Node& node() const { return graph.node(id_); }
  Value input(int i) const { return node().inputs[static_cast<size_t>(i)]; }
  Value output(int i = 0) const { return {&graph, id_, i}; }
  /// Gradient that arrives at output i; empty when none does.
  Value d_output(int i = 0) const { return d_outputs_[static_cast<size_t>(i)]; }
  /// Whether input i leads to a parameter or to another wanted value.
  bool needs(int i) const { return needed_[static_cast<size_t>(i)]; }
  void set(int i, Value gradient) { d_inputs_[static_cast<size_t>(i)] = gradient; }

 private:
  NodeId id_;
  std::span<const Value> d_outputs_;
  std::span<const bool> needed_;
  std::vector<Value>& d_inputs_;
};

/// Arithmetic and memory traffic of a node, for `convoy plan` and the benches.
struct Cost {
  double flops = 0;
  double bytes = 0;
};

struct OpDef {
  std::string name;
  /// Shapes and types of the outputs. Throws Error on inputs that do not fit; the graph adds the module path.
  std::vector<TensorInfo> (*infer)(const Node&) = nullptr;
  /// Gradients of the inputs by appended nodes; null for operators that have none.
  void (*grad)(GradContext&) = nullptr;
  /// Floating-point operations; null means one per output element.
  double (*flops)(const Node&) = nullptr;
  /// Null means that every f32 image tensor is blocked and all else plain. On a device `blocked` stands for its image
  /// layout, nhwc with channels padded to 8.
  void (*layout)(LayoutChoice&) = nullptr;
  /// Makes the node ready on `cpu`. A missing entry is an error at plan time that names the node.
  Kernel (*prepare_cpu)(const PrepareArgs&) = nullptr;
  /// The same on devices with memory of their own (`cuda`, `emulated`), often the same function: it launches by
  /// CONVOY_KERNEL or CONVOY_CUDA. Collectives have none: prepare_cpu gives their messages for host and device.
  Kernel (*prepare_cuda)(const PrepareArgs&) = nullptr;
  /// Inputs whose memory output 0 may take over when it has the same geometry and nobody reads them later.
  std::vector<int> in_place = {};
  /// Kernels take slices of wider tensors (a concat part) as inputs and outputs.
  bool takes_slices = true;
  /// Outputs after the first that nobody reads may be left out (their data is null then).
  bool optional_outputs = false;
  /// Writes something beside its outputs (running statistics, gradient store): runs exactly once a step.
  bool effect = false;
  /// Exchanges with the other ranks: runs once a step, for all lanes, on every rank; its outputs are the same
  /// everywhere.
  bool collective = false;
  /// A collective whose kernel has `exchange` on any number of ranks: it is never made one message with others.
  bool several_messages = false;
};

/// The operator of this name. Throws Error when there is none.
const OpDef& find_op(const std::string& name);
/// Adds an operator, also one of a user's own. Throws Error when the name is taken.
void register_op(OpDef op);
Cost cost_of(const Node& node);

/// Whether the operator has a kernel for the device, and that kernel. Those of collectives serve every device.
bool has_kernel(const OpDef& op, DeviceKind device);
Kernel prepare(const OpDef& op, const PrepareArgs& args);

/// Layout rules shared by many operators.
void layout_plain(LayoutChoice& choice);         ///< everything plain row-major
void layout_follow_first(LayoutChoice& choice);  ///< all as input 0 is

}  // namespace convoy
