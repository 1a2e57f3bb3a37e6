// ResNet (He et al. 2016) in its "v1b" form: the stride sits in the 3x3 convolution.
#pragma once
#include <array>
#include <vector>

#include "layers/module.h"

namespace convoy {

/// Feature maps of a backbone at growing depth.
struct Features {
  Value c1, c2, c3, c4;
};

/// Two 3x3 convolutions and a shortcut. With dilation the first block of a stage dilates its second convolution only.
class BasicBlock {
 public:
  BasicBlock(const Scope& s, int64_t in, int64_t out, int64_t stride, int64_t dilation1, int64_t dilation2);
  Value operator()(Builder& b, Value x) const;

 private:
  Conv2d conv1_;
  BatchNorm2d bn1_;
  Conv2d conv2_;
  BatchNorm2d bn2_;
  std::optional<Conv2d> downsample_conv_;
  std::optional<BatchNorm2d> downsample_bn_;
};

/// ResNet-18 and ResNet-34 as an encoder: c1..c4 are its four stages.
class ResNet {
 public:
  /// `name` is "resnet18" or "resnet34"; output_stride 8, 16 or 32 trades strides of the last stages for dilation.
  /// Throws Error for anything else.
  ResNet(const Scope& s, const std::string& name, int64_t output_stride, double width);
  Features operator()(Builder& b, Value x) const;
  /// Channels of c1..c4.
  const std::array<int64_t, 4>& channels() const { return channels_; }

 private:
  std::array<int64_t, 4> channels_;
  Conv2d conv1_;
  BatchNorm2d bn1_;
  std::array<std::vector<BasicBlock>, 4> stages_;
};

}  // namespace convoy
