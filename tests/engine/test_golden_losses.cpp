// Losses against the reference's figures (tests/golden/ops.json), forward and backward. Where the reference's
// definition is not the default, the case is compared under LossOptions::legacy.
#include <map>

#include "layers/losses.h"
#include "tests/golden_compare.h"

namespace convoy::test {

namespace {

Values loss_of(const std::vector<NamedValue>& outputs, Value target, const LossOptions& options) {
  return {segmentation_loss(outputs, target, options).loss};
}

LossOptions options_of(const nlohmann::json& a, LossKind kind) {
  return {.aux = a.value("aux", false),
          .aux_weight = a.value("aux_weight", 0.4),
          .ignore = a.value("ignore_index", a.value("ignore", -1)),
          .kind = kind};
}

Build two_outputs(const LossOptions& o) {
  return [o](Graph&, const Values& v) { return loss_of({{"out0", v[0]}, {"out1", v[1]}}, v[2], o); };
}

Build one_output(const LossOptions& o) {
  return [o](Graph&, const Values& v) { return loss_of({{"out0", v[0]}}, v[1], o); };
}

Build builder(const golden::OpCase& g) {
  const nlohmann::json& a = g.attrs;
  if (g.op == "ohem_ce") {
    LossOptions o = options_of(a, LossKind::kOhem);
    o.ohem_thresh = a.at("thresh");
    o.ohem_min_kept = a.at("min_kept");
    if (a.at("use_weight").get<bool>()) o.class_weights = cityscapes_class_weights();
    return one_output(o);
  }
  if (g.op == "lovasz_softmax") {
    LossOptions o = options_of(a, LossKind::kLovasz);
    o.legacy = true;
    return one_output(o);
  }
  if (g.op == "focal") {
    LossOptions o = options_of(a, LossKind::kFocal);
    o.focal = {.alpha = a.at("alpha"), .gamma = a.at("gamma")};
    o.legacy = true;
    return two_outputs(o);
  }
  if (g.op == "dice") {
    LossOptions o = options_of(a, LossKind::kDice);
    o.legacy = true;
    return two_outputs(o);
  }
  if (g.op == "encnet_loss") {
    LossOptions o = options_of(a, LossKind::kCrossEntropy);
    o.presence_weight = a.at("se_weight");
    return two_outputs(o);
  }
  if (g.op == "bce_with_logits")
    return [](Graph&, const Values& v) {
      return Values{bce_with_logits(v[0], v[1], 1 / static_cast<double>(v[0].shape().count()))};
    };
  if (g.op == "smooth_l1")
    return [beta = a.at("beta").get<double>()](Graph&, const Values& v) {
      return Values{smooth_l1(v[0], v[1], beta, 1 / static_cast<double>(v[0].shape().count()))};
    };
  REQUIRE(g.op == "multibox");
  return [](Graph& graph, const Values& v) {
    const Shape& shape = v[1].shape();
    const golden::Stream positive("multibox.pos"), classes("multibox.cls"), offsets("multibox.off");
    std::vector<int32_t> labels;
    std::vector<float> boxes;
    for (uint64_t i = 0; i < static_cast<uint64_t>(shape[0] * shape[1]); ++i) {
      labels.push_back(positive[i] < 0.12 ? 1 + static_cast<int32_t>(20 * classes[i]) : 0);
      for (uint64_t k = 4 * i; k < 4 * i + 4; ++k) boxes.push_back(static_cast<float>((2 * offsets[k] - 1) * 2));
    }
    return Values{multibox_loss(v[0], v[1], graph.constant(Tensor::of({shape[0], shape[1], 4}, boxes)),
                                graph.constant(Tensor::of({shape[0], shape[1]}, labels)))};
  };
}

}  // namespace

TEST_CASE("losses have the reference's values", "[device]") {
  const std::map<std::string, int> cases{{"ohem_ce", 4},   {"lovasz_softmax", 1},  {"focal", 1},
                                         {"dice", 1},      {"bce_with_logits", 1}, {"encnet_loss", 1},
                                         {"smooth_l1", 1}, {"multibox", 1}};
  for (const auto& [op, count] : cases) {
    const auto of_op = golden::op_cases_of(op);
    INFO(op);
    CHECK(static_cast<int>(of_op.size()) == count);
    for (const golden::OpCase& g : of_op)
      compare(
          g, builder(g),
          op == "bce_with_logits" || op == "smooth_l1" ? std::vector<std::string>{} : std::vector<std::string>{"t"});
  }
}

}  // namespace convoy::test
