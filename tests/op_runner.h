// Runs an operator case through the engine: its outputs, and the gradients of sum over outputs of (output * upstream).
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "engine/param_store.h"
#include "engine/session.h"
#include "tests/op_cases.h"
#include "tests/test_device.h"

namespace convoy::test {

struct OpResult {
  std::vector<std::vector<float>> outputs;
  std::vector<std::vector<float>> gradients;  ///< per input; empty for those that have none
};

/// How the operator is embedded in its graph.
struct OpEmbedding {
  bool slices = false;  ///< image inputs are slices of wider computed values, image outputs parts of a concat
};

class OpRun {
 public:
  explicit OpRun(const OpCase& c, const ContextOptions& options = {}, const OpEmbedding& embedding = {})
      : case_(c), context_(on_test_device(options)), graph_(context_, store_) {
    const Graph::Scope scope(graph_, c.name);
    std::vector<Value> inputs;
    for (const OpInput& in : c.inputs) {
      const Value v = graph_.input(in.name, in.dtype, in.shape);
      if (in.differentiable) wanted_.push_back(v);
      inputs.push_back(embedding.slices && is_image(v) ? inside_wider(v) : v);
    }
    outputs_ = c.build(graph_, inputs);
    if (embedding.slices)
      for (Value& y : outputs_)
        if (is_image(y)) y = part_of_concat(y);
    Value loss;
    for (size_t o = 0; o < outputs_.size(); ++o) {
      const Value part = dot(outputs_[o], graph_.constant(upstream(o)));
      loss = loss ? add(loss, part) : part;
    }
    gradients_ = graph_.differentiate(loss, wanted_);
    values_ = c.inputs;
  }

  /// Values of an input for the runs that follow.
  std::vector<float>& values(size_t input) { return values_[input].values; }

  /// Outputs and gradients by one plan.
  OpResult run() {
    if (!all_) {
      std::vector<Value> targets = outputs_;
      for (const Value& g : gradients_)
        if (g) targets.push_back(g);
      all_ = std::make_unique<Session>(graph_, targets);
    }
    step(*all_);
    OpResult r;
    size_t target = 0;
    for (size_t o = 0; o < outputs_.size(); ++o) r.outputs.push_back(all_->fetch(target++).to_floats());
    fetch_gradients(*all_, target, r);
    return r;
  }

  /// Outputs alone, by the plan of prediction.
  std::vector<std::vector<float>> run_outputs() {
    if (!forward_) forward_ = std::make_unique<Session>(graph_, outputs_);
    step(*forward_);
    std::vector<std::vector<float>> r;
    for (size_t o = 0; o < outputs_.size(); ++o) r.push_back(forward_->fetch(o).to_floats());
    return r;
  }

  /// Gradients alone: nothing forces an intermediate to stay in memory.
  OpResult run_gradients() {
    std::vector<Value> targets;
    for (const Value& g : gradients_)
      if (g) targets.push_back(g);
    Session session(graph_, targets);
    step(session);
    OpResult r;
    fetch_gradients(session, 0, r);
    return r;
  }

  /// The gradient that flows into output o.
  Tensor upstream(size_t o) const {
    const Shape& shape = outputs_[o].shape();
    if (o < case_.upstream.size()) return Tensor::of(shape, case_.upstream[o]);
    const golden::Stream u(case_.name + std::to_string(o));
    std::vector<float> values(static_cast<size_t>(shape.count()));
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(2 * u[i] - 1);
    return Tensor::of(shape, values);
  }

  Context& context() { return context_; }

 private:
  static bool is_image(Value v) { return v.dtype() == DType::kF32 && v.shape().rank() == 4; }

  /// v as the middle channels of a value that the plan computes.
  Value inside_wider(Value v) {
    const Shape& s = v.shape();
    const Value before = filler({s[0], 16, s[2], s[3]}), after = filler({s[0], 16, s[2], s[3]});
    return slice_channels(scale(concat({before, v, after}), 1), 16, s[1]);
  }

  Value part_of_concat(Value y) {
    const Shape s = y.shape();
    return slice_channels(scale(concat({filler({s[0], 16, s[2], s[3]}), y}), 1), 16, s[1]);
  }

  Value filler(const Shape& s) {
    return graph_.constant(Tensor::of(s, std::vector<float>(static_cast<size_t>(s.count()), NAN)));
  }

  void step(Session& session) {
    labels_.clear();
    for (const OpInput& in : values_) {
      if (in.dtype == DType::kI32) {
        labels_.emplace_back(in.values.begin(), in.values.end());
        session.bind(in.name, labels_.back().data());
      } else {
        session.bind(in.name, in.values.data());
      }
    }
    session.run({.seed = 5, .global_step = 3, .first_slot = 2});
  }

  void fetch_gradients(const Session& session, size_t target, OpResult& r) const {
    r.gradients.resize(case_.inputs.size());
    size_t g = 0;
    for (size_t i = 0; i < case_.inputs.size(); ++i) {
      if (!case_.inputs[i].differentiable) continue;
      if (gradients_[g++]) r.gradients[i] = session.fetch(target++).to_floats();
    }
  }

  OpCase case_;
  Context context_;
  ParamStore store_;
  Graph graph_;
  std::vector<Value> wanted_, outputs_, gradients_;
  std::vector<OpInput> values_;
  std::vector<std::vector<int32_t>> labels_;
  std::unique_ptr<Session> all_, forward_;
};

/// Root of the sum of squared differences, relative to that of `b`.
inline double relative_l2(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return INFINITY;
  double difference = 0, reference = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double x = static_cast<double>(a[i]), y = static_cast<double>(b[i]);
    difference += (x - y) * (x - y);
    reference += y * y;
  }
  if (difference == 0) return 0;
  return std::sqrt(difference / std::max(reference, 1e-30));
}

}  // namespace convoy::test
