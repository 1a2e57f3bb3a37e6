// What the operators of losses share. A loss yields the gradient of its first input (or several) beside its value: the
// forward kernel has all that is needed for it at hand.
#pragma once
#include "engine/ops.h"
#include "engine/ops/common.h"

namespace convoy {

/// A loss's gradient with respect to one input: output `unit` holds it for a gradient of 1 that arrives.
inline void set_unit_gradient(GradContext& g, int input, int unit) {
  const Value d_loss = g.d_output(), gradient = g.output(unit);
  const Node& upstream = g.graph.node(d_loss.node);
  const bool is_one = upstream.op->name == "constant" && upstream.computed[0].item() == 1.0f;
  g.set(input, is_one ? gradient : scale_by(gradient, d_loss));
}

/// For losses with outputs (loss, gradient of input 0).
inline void grad_by_unit(GradContext& g) {
  set_unit_gradient(g, 0, 1);
}

/// Input i as i32 labels (N,H,W), of the images of logits x (N,C,h,w).
inline const Shape& require_labels(const Node& node, size_t i, const Shape& x) {
  const Shape& t = node.inputs[i].shape();
  CONVOY_CHECK(t.rank() == 3 && t[0] == x[0] && node.inputs[i].dtype() == DType::kI32,
               "the target must be i32 labels (N,H,W) for logits {}, it is {} {}", x.str(),
               dtype_name(node.inputs[i].dtype()), t.str());
  return t;
}
inline void require_same_size(const Shape& x, const Shape& t) {
  CONVOY_CHECK(t[1] == x[2] && t[2] == x[3], "logits {} and labels {} differ in size", x.str(), t.str());
}

/// Throws naming the place of label `bad` of target (N,H,W), when there is one.
inline void require_classes(const int32_t* target, const Shape& t, int64_t bad, int64_t classes, int64_t ignore) {
  CONVOY_CHECK(bad < 0, "label {} of image {} at row {}, column {} is not a class (0..{}) and not the ignore label {}",
               target[bad], bad / (t[1] * t[2]), bad / t[2] % t[1], bad % t[2], classes - 1, ignore);
}

/// The same for the fault of a kernel with target as input 1.
inline auto explain_label(const Shape& t, int64_t classes, int64_t ignore) {
  return [=](std::span<const View> in, int64_t fault) { require_classes(in[1].i32(), t, fault, classes, ignore); };
}

/// Logits blocked, all else plain.
inline void layout_first_blocked(LayoutChoice& c) {
  for (Layout& l : c.in) l = Layout::kNchw;
  c.in[0] = Layout::kBlocked;
}

}  // namespace convoy
