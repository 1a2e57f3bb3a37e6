// The head of FCN (Long et al. 2015), which many networks use for their auxiliary output.
#pragma once
#include "layers/module.h"

namespace convoy {

/// 3x3 to a quarter of the channels with batch norm and ReLU, dropout(0.1), 1x1 to the classes. (N,in,H,W) to
/// (N,classes,H,W).
class FcnHead {
 public:
  FcnHead(const Scope& s, int64_t in, int64_t classes)
      : path_(s.path),
        conv_(s / "block" / 0, in, in / 4, ConvOptions::square(3)),
        bn_(s / "block" / 1, in / 4),
        classify_(s / "block" / 4, in / 4, classes, ConvOptions::square(1).with_bias()) {}
  Value operator()(Builder& b, Value x) const {
    return classify_(b, dropout(b, path_ + ".block.3", relu(bn_(b, conv_(b, x))), 0.1));
  }

 private:
  std::string path_;
  Conv2d conv_;
  BatchNorm2d bn_;
  Conv2d classify_;
};

}  // namespace convoy
