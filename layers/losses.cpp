#include "layers/losses.h"

namespace convoy {

namespace {

/// One training step's loss: what its outputs share is made once.
class LossBuilder {
 public:
  LossBuilder(Value target, const LossOptions& options) : graph_(*target.graph), target_(target), options_(options) {}

  SegmentationLoss run(const std::vector<NamedValue>& outputs) {
    const bool legacy_aux = options_.legacy && (options_.kind == LossKind::kFocal || options_.kind == LossKind::kDice);
    const bool aux = options_.aux || legacy_aux;
    const Graph::Scope scope(graph_, "loss");
    prepare(outputs.front().value.shape()[1]);
    for (const NamedValue& output : outputs) {
      const Graph::Scope output_scope(graph_, "loss." + output.name);
      const bool is_presence = output.value.shape().rank() == 2;
      Value part = is_presence ? presence(output.value) : of_pixels(output.value);
      const double weight = is_presence ? options_.presence_weight : aux ? options_.aux_weight : 1;
      if (result_.loss && (is_presence || aux)) part = scale(part, weight);
      result_.loss = result_.loss ? add(result_.loss, part) : part;
    }
    return result_;
  }

 private:
  /// What does not depend on the output.
  void prepare(int64_t classes) {
    const bool weighted = options_.kind == LossKind::kCrossEntropy || options_.kind == LossKind::kOhem ||
                          (options_.kind == LossKind::kFocal);
    if (!options_.class_weights.empty()) {
      const auto count = static_cast<int64_t>(options_.class_weights.size());
      CONVOY_CHECK(weighted, "class weights are for cross entropy, OHEM and focal losses");
      CONVOY_CHECK(count == classes, "{} class weights for {} classes", count, classes);
      class_weight_ = graph_.constant(Tensor::of({count}, options_.class_weights));
    }
    if (options_.kind == LossKind::kCrossEntropy || options_.kind == LossKind::kFocal)
      labelled_ = total(target_, classes);
    if (options_.kind == LossKind::kDice && options_.legacy)
      label_counts_ = sum_over_lanes({label_counts(target_, classes)})[0];
  }

  /// Labels of the global batch, weighted.
  Value total(Value target, int64_t classes) {
    return sum_over_lanes({label_weight_sum(target, classes, options_.ignore, class_weight_)})[0];
  }

  Value of_pixels(Value logits) {
    switch (options_.kind) {
      case LossKind::kCrossEntropy:
        return softmax_cross_entropy(logits, target_, labelled_, options_.ignore, class_weight_);
      case LossKind::kOhem:
        return of_hard_pixels(logits);
      case LossKind::kFocal: {
        if (!options_.legacy)
          return focal_cross_entropy(logits, target_, labelled_, options_.focal, options_.ignore, class_weight_);
        const Value part = softmax_cross_entropy(logits, target_, labelled_, options_.ignore, class_weight_);
        return focal_of_mean(part, sum_over_lanes({part})[0], options_.focal);
      }
      case LossKind::kDice:
        return dice_loss(logits, target_, options_.ignore, 1, label_counts_);
      case LossKind::kLovasz:
        return lovasz_softmax_loss(logits, target_, options_.ignore, !options_.legacy);
    }
    fail("unknown loss");
  }

  Value of_hard_pixels(Value logits) {
    const Value probability = label_probability(logits, target_, options_.ignore);
    const auto [threshold, keeps_all] = hard_threshold(probability, options_.ohem_thresh, options_.ohem_min_kept);
    // How many are labelled is the same for every output.
    if (!result_.keeps_all) result_.keeps_all = keeps_all;
    const Value hard = keep_hard_labels(target_, probability, threshold, options_.ignore);
    return softmax_cross_entropy(logits, hard, total(hard, logits.shape()[1]), options_.ignore, class_weight_);
  }

  Value presence(Value logits) {
    const GlobalBatch& batch = graph_.global_batch();
    const int64_t images = batch.shared() ? batch.images : logits.shape()[0], classes = logits.shape()[1];
    if (!presence_) presence_ = class_presence(target_, classes);
    return bce_with_logits(logits, presence_, 1 / static_cast<double>(images * classes));
  }

  Graph& graph_;
  Value target_;
  const LossOptions& options_;
  Value class_weight_, labelled_, label_counts_, presence_;
  SegmentationLoss result_;
};

}  // namespace

const std::vector<float>& cityscapes_class_weights() {
  static const std::vector<float> weights = {0.8373f, 0.918f,  0.866f,  1.0345f, 1.0166f, 0.9969f, 0.9754f,
                                             1.0489f, 0.8786f, 1.0023f, 0.9539f, 0.9843f, 1.1116f, 0.9037f,
                                             1.0865f, 1.0955f, 1.0865f, 1.1529f, 1.0507f};
  return weights;
}

SegmentationLoss segmentation_loss(const std::vector<NamedValue>& outputs, Value target, const LossOptions& options) {
  CONVOY_CHECK(!outputs.empty(), "the network has no outputs");
  return LossBuilder(target, options).run(outputs);
}

}  // namespace convoy
