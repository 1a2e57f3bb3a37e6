// Xception-65 (Chollet 2017) with the changes of DeepLabV3+ (Chen et al. 2018): strided separable convolutions instead
// of pooling, batch norm behind every depthwise convolution.
#include "nets/backbones/backbones.h"

namespace convoy {

namespace {

enum class Shortcut : uint8_t { kConv, kSum, kNone };

struct BlockOptions {
  std::array<int64_t, 4> channels;  ///< in, and behind each of the three separable convolutions
  int64_t stride = 1, dilation = 1;
  Shortcut shortcut = Shortcut::kConv;
};

/// Three separable convolutions, the stride in the last one. ReLU comes first in each where there is a shortcut.
class XceptionBlock {
 public:
  XceptionBlock(const Scope& s, const BlockOptions& o) : shortcut_(o.shortcut) {
    const auto& c = o.channels;
    if (shortcut_ == Shortcut::kConv) {
      shortcut_conv_.emplace(s / "conv", c[0], c[3], ConvOptions::square(1, o.stride));
      shortcut_bn_.emplace(s / "bn", c[3]);
    }
    for (size_t i = 0; i < 3; ++i)
      convs_.emplace_back(
          s / ("sep_conv" + std::to_string(i + 1)), c[i], c[i + 1],
          SeparableConvOptions{
              .stride = i == 2 ? o.stride : 1, .dilation = o.dilation, .relu_first = shortcut_ != Shortcut::kNone});
  }

  struct Result {
    Value second;  // behind the second separable convolution
    Value out;
  };
  Result operator()(Builder& b, Value x) const {
    const Value second = convs_[1](b, convs_[0](b, x));
    const Value y = convs_[2](b, second);
    switch (shortcut_) {
      case Shortcut::kConv:
        return {second, add(y, (*shortcut_bn_)(b, (*shortcut_conv_)(b, x)))};
      case Shortcut::kSum:
        return {second, add(y, x)};
      case Shortcut::kNone:
        break;
    }
    return {second, y};
  }

 private:
  Shortcut shortcut_;
  std::optional<Conv2d> shortcut_conv_;
  std::optional<BatchNorm2d> shortcut_bn_;
  std::vector<SeparableConv> convs_;
};

class Xception65 : public Backbone {
 public:
  Xception65(int64_t output_stride, const Scope& s)
      : conv1_(s / "conv1", 3, 32, ConvOptions::square(3, 2)),
        bn1_(s / "bn1", 32),
        conv2_(s / "conv2", 32, 64, ConvOptions::square(3)),
        bn2_(s / "bn2", 64) {
    const bool os8 = output_stride == 8, os16 = output_stride == 16, os32 = output_stride == 32;
    const auto block = [&](const BlockOptions& o) {
      blocks_.emplace_back(s / ("block" + std::to_string(blocks_.size() + 1)), o);
    };
    block({.channels = {64, 128, 128, 128}, .stride = 2});
    block({.channels = {128, 256, 256, 256}, .stride = 2});
    block({.channels = {256, 728, 728, 728}, .stride = os8 ? 1 : 2});
    for (int i = 0; i < kMiddleBlocks; ++i)
      block({.channels = {728, 728, 728, 728}, .dilation = os8 ? 2 : 1, .shortcut = Shortcut::kSum});
    block({.channels = {728, 728, 1024, 1024}, .stride = os32 ? 2 : 1, .dilation = os8 ? 2 : 1});
    block({.channels = {1024, 1536, 1536, 2048}, .dilation = os8 ? 4 : os16 ? 2 : 1, .shortcut = Shortcut::kNone});
  }

  Features operator()(Builder& b, Value x) const override {
    x = relu(bn1_(b, conv1_(b, x)));
    x = relu(bn2_(b, conv2_(b, x)));
    Features f;
    for (size_t i = 0; i < blocks_.size(); ++i) {
      const auto [second, out] = blocks_[i](b, x);
      if (i == 1) f.c1 = second;
      if (i == 2) f.c2 = second;
      if (i + 3 == blocks_.size()) f.c3 = out;
      x = out;
    }
    f.c4 = x;
    return f;
  }

  std::array<int64_t, 4> channels() const override { return {256, 728, 728, 2048}; }

 private:
  static constexpr int kMiddleBlocks = 16;
  Conv2d conv1_;
  BatchNorm2d bn1_;
  Conv2d conv2_;
  BatchNorm2d bn2_;
  std::vector<XceptionBlock> blocks_;
};

}  // namespace

std::unique_ptr<Backbone> make_xception65(const BackboneOptions& options, const Scope& scope) {
  CONVOY_CHECK(options.width == 1, "xception65 has one width; MODEL.BACKBONE_SCALE is {}, set it to 1", options.width);
  return std::make_unique<Xception65>(options.output_stride, scope);
}

}  // namespace convoy
