// Losses over the outputs of a segmentation network.
#pragma once
#include <string>
#include <vector>

#include "engine/ops.h"

namespace convoy {

/// A named result of a network. "out0" is the prediction.
struct NamedValue {
  std::string name;
  Value value;
};

enum class LossKind : uint8_t { kCrossEntropy, kOhem, kLovasz, kFocal, kDice };

struct LossOptions {
  bool aux = false;  ///< further outputs are auxiliary: weighted by aux_weight instead of 1
  double aux_weight = 0.4;
  int64_t ignore = -1;
  LossKind kind = LossKind::kCrossEntropy;
  std::vector<float> class_weights;  ///< of cross entropy, OHEM and focal; none: all 1
  double ohem_thresh = 0.7;
  int64_t ohem_min_kept = 100000;  ///< of the global batch
  FocalOptions focal;
  double presence_weight = 0.2;  ///< of outputs that tell which classes an image has
  /// The reference's definitions where they give other numbers: the focal loss of the mean cross entropy instead of
  /// each pixel's, Dice over the classes up to the largest label of the batch instead of all, Lovasz over the batch as
  /// a whole instead of each image; focal and Dice weight further outputs by aux_weight whatever `aux` says.
  bool legacy = false;
};

/// The weights of Cityscapes' 19 classes that the reference's OHEM uses always.
const std::vector<float>& cityscapes_class_weights();

struct SegmentationLoss {
  Value loss;
  /// OHEM only: 1 where the global batch has fewer labelled pixels than ohem_min_kept and all of them are kept, else 0.
  Value keeps_all;
};

/// The configured loss of the prediction plus the weighted ones of the further outputs, over pixels whose label is not
/// `ignore`. Outputs (N,C,H,W) as large as target (N,H,W); an output (N,C) tells which classes an image has and adds
/// presence_weight times its binary cross entropy (mean over images and classes), as EncNet's does.
///
///   kCrossEntropy  mean of -log p over labelled pixels, weighted by class_weights (then a weighted mean)
///   kOhem          the same over hard pixels alone: those whose p is at most max(ohem_thresh, the ohem_min_kept-th
///                  smallest p of the global batch); all, where fewer than ohem_min_kept are labelled. Each output has
///                  its own hard pixels. (Shrivastava et al. 2016; the threshold is that of OCNet's code.)
///   kFocal         mean of alpha (1-p)^gamma -log p (Lin et al. 2017)
///   kDice          soft Dice of each image and class (Milletari et al. 2016)
///   kLovasz        Lovasz-Softmax of each image over the classes it has (Berman et al. 2018)
///
/// A batch without labelled pixels has loss 0 and gradient 0. With a global batch (Graph::set_global_batch) means are
/// over its pixels and the value is this lane's part of it: the losses of all lanes and ranks add up to that of the
/// global batch, and so do their gradients. Throws Error where class_weights do not fit the classes, and for the legacy
/// Lovasz loss of a batch that is divided.
SegmentationLoss segmentation_loss(const std::vector<NamedValue>& outputs, Value target, const LossOptions& options);

/// segmentation_loss of the kind kCrossEntropy.
inline Value mixed_softmax_cross_entropy(const std::vector<NamedValue>& outputs, Value target,
                                         const LossOptions& options) {
  return segmentation_loss(outputs, target, options).loss;
}

}  // namespace convoy
