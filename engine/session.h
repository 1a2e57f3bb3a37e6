// Running plans: line by line with evaluate(), or step after step with a Session.
#pragma once
#include <algorithm>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/context.h"
#include "engine/graph.h"
#include "engine/plan.h"
#include "engine/session_device.h"

namespace convoy {

/// Builds and runs the smallest plan for `v`, copies the value out and makes it a constant of the graph: asking again
/// costs nothing. Effects on the way (running statistics) run once, however often values behind them are asked for.
/// Effects themselves may be asked for, as in evaluate(graph.gradient_effects()); their tensors are undefined.
/// Parameters and buffers are read anew at every call.
Tensor evaluate(Value v, const StepState& step = {});
std::vector<Tensor> evaluate(const std::vector<Value>& values, const StepState& step = {});

/// Lanes of a session: runs of one plan, each with its own inputs. Exchanges between launches (sync-BN, loss counts)
/// are made once for all lanes; a rank without images has no lane and makes the exchanges alone. Lanes run side by
/// side, launch by launch, each in its own memory, or, where no batch statistics join them, one after the other in the
/// same memory (micro-batches).
struct Lanes {
  int count = 1;
  int64_t images = 0;  ///< of a lane; lane l's first image is images * l slots behind StepState::first_slot
};

/// One graph run step after step: the plan is made once. All sessions of a context run in the same arena.
///
///   Session session(graph, {loss});
///   session.bind("image", batch.images.data());
///   session.run({.seed = 1, .global_step = step});
///   float l = session.fetch(0).item();
class Session {
 public:
  /// Targets are the values to be fetched; the effects among the graph's nodes that they make possible run too.
  Session(Graph& graph, std::vector<Value> targets, const Lanes& lanes = {});
  ~Session();

  /// The memory of a graph input, in plain row-major order, lane after lane, valid until the next bind. Throws Error
  /// for an unknown name.
  void bind(const std::string& input, const void* data);
  /// One step. Throws Error naming the node when its kernel refuses its data. With ContextOptions::check_values also
  /// when a value is not finite (memory is filled with NaN before it is first written, so that an element that a kernel
  /// forgot counts) and when a kernel writes behind a buffer. Gradients are complete when it returns: of several ranks,
  /// the sums over all.
  void run(const StepState& step);
  /// A copy of target i of the last run, plain row-major. Throws Error when another session of the context has run
  /// since.
  Tensor fetch(size_t i, int lane = 0) const;
  const Plan& plan() const { return *plan_; }
  /// Seconds of the last run that went into exchanges with other ranks, waiting included.
  double exchange_seconds() const { return exchange_seconds_; }

 private:
  friend std::vector<Tensor> evaluate(const std::vector<Value>&, const StepState&);
  struct Bound {
    std::vector<View> in, out;
    void* workspace = nullptr;
  };
  Session(Graph& graph, Schedule schedule, const Lanes& lanes);
  int memory_lanes() const { return std::max(lanes_.count, 1); }
  void place();
  char* place_of(const PlanBuffer& buffer, int lane) const;
  void run_launch(size_t launch, const StepState& step, int first_lane, int last_lane);
  View located(int value, int lane) const;
  void run_kernel(size_t launch, const StepState& step, int lane);
  void exchange(size_t launch, const StepState& step);
  void exchange_messages(const Launch& launch, std::span<const std::vector<View>> in, std::span<const View> out,
                         const std::string& name);
  std::vector<std::span<float>> segments_of(const GradientBucket& bucket) const;
  // The debug interpreter, around launch l.
  void poison_new_buffers(int l, int lane);
  void check_guards(int l, int lane) const;
  std::string name_of(const Launch& launch) const;
  void check_finite(const Launch& launch, const Bound& bound) const;

  Graph& graph_;
  Schedule schedule_;
  Lanes lanes_;
  std::shared_ptr<const Plan> plan_;
  char* arena_ = nullptr;                  // the context's, since our last run; one part per lane
  std::vector<std::vector<Bound>> bound_;  // by lane and launch
  std::vector<float> message_, messages_;  // what an exchange sends, and what all ranks sent
  double exchange_seconds_ = 0;
  std::map<std::string, const void*> inputs_;
  bool placed_ = false;
  std::unique_ptr<SessionDevice> on_device_;  // null on cpu
};

}  // namespace convoy
