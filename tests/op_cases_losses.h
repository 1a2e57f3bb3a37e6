// Operator cases of losses. Those that select or sort have few elements: their gradients jump where the order changes.
#pragma once
#include "layers/losses.h"
#include "tests/op_case.h"

namespace convoy::test {

namespace detail {

/// A loss of one output, which is resized to the labels where they are larger.
inline OpCase loss_case(const std::string& name, const Shape& logits, int64_t h, int64_t w, const LossOptions& o,
                        double scale = 2) {
  return {.name = name,
          .inputs = {sym("logits", logits, scale), labels({logits[0], h, w}, logits[1], o.ignore)},
          .build = [=](Graph&, const std::vector<Value>& v) {
            const bool same = logits[2] == h && logits[3] == w;
            const Value full = same ? v[0] : resize_bilinear(v[0], h, w, true);
            return std::vector<Value>{segmentation_loss({{"out0", full}}, v[1], o).loss};
          }};
}

inline OpCase box_case(const std::string& name, const Shape& conf, const MultiboxOptions& o, double positives) {
  const golden::Stream u("positive " + name), v("class " + name);
  OpInput classes{
      .name = "classes", .shape = {conf[0], conf[1]}, .values = {}, .differentiable = false, .dtype = DType::kI32};
  for (uint64_t i = 0; i < static_cast<uint64_t>(conf[0] * conf[1]); ++i)
    classes.values.push_back(
        u[i] < positives ? static_cast<float>(1 + std::floor(v[i] * static_cast<double>(conf[2] - 1))) : 0.0f);
  OpCase c{.name = name, .inputs = {sym("conf", conf, 2), classes}, .build = [o](Graph&, const std::vector<Value>& v) {
             return std::vector<Value>{multibox_loss(v[2], v[0], v[3], v[1], o)};
           }};
  c.inputs.push_back(sym("loc", {conf[0], conf[1], 4}, 3));
  c.inputs.push_back(constant(sym("boxes", {conf[0], conf[1], 4}, 0.5)));
  // Without positives the offsets have no gradient.
  c.inputs[2].differentiable = positives > 0;
  return c;
}

}  // namespace detail

inline void add_loss_op_cases(std::vector<OpCase>& t) {
  using namespace detail;
  const std::vector<float> weights{0.5f, 1.5f, 0.75f, 1.25f, 1.0f};
  t.push_back(loss_case("focal_ce", {2, 19, 7, 9}, 7, 9, {.kind = LossKind::kFocal}));
  t.push_back(loss_case(
      "focal_ce, class weights, gamma 0.5, ignore 255", {2, 5, 6, 7}, 6, 7,
      {.ignore = 255, .kind = LossKind::kFocal, .class_weights = weights, .focal = {.alpha = 0.75, .gamma = 0.5}}));
  t.push_back(loss_case("upsample_focal_ce", {2, 33, 4, 5}, 13, 11,
                        {.kind = LossKind::kFocal, .focal = {.alpha = 1, .gamma = 3.5}}));
  t.push_back(loss_case("focal_of_mean", {2, 19, 7, 9}, 7, 9, {.kind = LossKind::kFocal, .legacy = true}));
  t.push_back(loss_case("ohem, all kept", {2, 5, 7, 9}, 7, 9, {.kind = LossKind::kOhem, .class_weights = weights}));
  t.push_back(
      loss_case("ohem, mined", {2, 19, 7, 9}, 7, 9, {.kind = LossKind::kOhem, .ohem_thresh = 0, .ohem_min_kept = 40}));
  t.push_back(loss_case("ohem, mined behind a resize", {2, 33, 2, 2}, 3, 3,
                        {.kind = LossKind::kOhem, .ohem_thresh = 0, .ohem_min_kept = 9}));
  t.push_back(loss_case("dice_loss", {2, 5, 7, 9}, 7, 9, {.kind = LossKind::kDice}));
  t.push_back(loss_case("dice_loss, labelled classes only, ignore 255", {3, 33, 4, 5}, 4, 5,
                        {.ignore = 255, .kind = LossKind::kDice, .legacy = true}));
  t.push_back(loss_case("dice_loss behind a resize", {1, 3, 4, 5}, 11, 12, {.kind = LossKind::kDice}));
  t.push_back(loss_case("lovasz_loss", {2, 3, 2, 3}, 2, 3, {.kind = LossKind::kLovasz}));
  t.push_back(loss_case("lovasz_loss, 33 classes, ignore 255", {2, 33, 3, 4}, 3, 4,
                        {.ignore = 255, .kind = LossKind::kLovasz}));
  t.push_back(loss_case("lovasz_loss of the batch", {2, 3, 2, 2}, 2, 2, {.kind = LossKind::kLovasz, .legacy = true}));
  t.push_back(binary("bce_with_logits", sym("x", {3, 19}, 4), constant(between("t", {3, 19}, 0, 1)),
                     [](Value x, Value y) { return bce_with_logits(x, y, 0.25); }));
  t.push_back(binary("smooth_l1", sym("x", {3, 8}, 2), constant(sym("t", {3, 8}, 2)),
                     [](Value x, Value y) { return smooth_l1(x, y, 0.5, 1.0 / 24); }));
  t.push_back({.name = "presence of classes",
               .inputs = {sym("logits", {2, 19, 3, 4}, 2), sym("presence", {2, 19}, 2), labels({2, 3, 4}, 19, -1)},
               .build = [](Graph&, const std::vector<Value>& v) {
                 return std::vector<Value>{segmentation_loss({{"out0", v[0]}, {"se", v[1]}}, v[2], {.aux = true}).loss};
               }});
  t.push_back(box_case("multibox_loss", {2, 12, 21}, {}, 0.1));
  t.push_back(box_case("multibox_loss, three classes, weighted offsets", {3, 17, 3},
                       {.negatives_per_positive = 1.5, .alpha = 0.5}, 0.3));
  t.push_back(box_case("multibox_loss without positives", {2, 4, 21}, {.negatives_without_positives = 3}, 0));
}

}  // namespace convoy::test
