// MobileNetV2 (Sandler et al. 2018) without its last 1x1 convolution.
#include "nets/backbones/backbones.h"

namespace convoy {

namespace {

/// Blocks of equal width; the stride is that of the first one.
struct Group {
  int64_t expand, channels;
  int blocks;
  int64_t stride;
};

class MobileNetV2 : public Backbone {
 public:
  MobileNetV2(const BackboneOptions& options, const Scope& s)
      : width_(options.width),
        in_(width_ > 1 ? scaled(32) : 32),
        conv1_(s / "conv1", 3, in_, ConvOptions::square(3, 2), Activation::kRelu6) {
    const int64_t dilation4 = options.output_stride == 8 ? 2 : 1, dilation5 = options.output_stride == 8    ? 4
                                                                              : options.output_stride == 16 ? 2
                                                                                                            : 1;
    add_stage(s / "block1", {{1, 16, 1, 1}}, 1);
    add_stage(s / "block2", {{6, 24, 2, 2}}, 1);
    add_stage(s / "block3", {{6, 32, 3, 2}}, 1);
    add_stage(s / "block4", {{6, 64, 4, 2}, {6, 96, 3, 1}}, dilation4);
    add_stage(s / "block5", {{6, 160, 3, 2}, {6, 320, 1, 1}}, dilation5);
  }

  Features operator()(Builder& b, Value x) const override {
    x = conv1_(b, x);
    std::vector<Value> maps;
    for (const std::vector<InvertedResidual>& stage : stages_) {
      for (const InvertedResidual& block : stage) x = block(b, x);
      maps.push_back(x);
    }
    return {maps[1], maps[2], maps[3], maps[4]};
  }

  std::array<int64_t, 4> channels() const override { return {scaled(24), scaled(32), scaled(96), scaled(320)}; }

 private:
  int64_t scaled(int64_t channels) const {
    const auto c = static_cast<int64_t>(static_cast<double>(channels) * width_);
    CONVOY_CHECK(c > 0, "MODEL.BACKBONE_SCALE {} leaves no channels of {}", width_, channels);
    return c;
  }

  /// As in the reference, only the first block of a group takes the dilation, and then has stride 1.
  void add_stage(const Scope& s, const std::vector<Group>& groups, int64_t dilation) {
    std::vector<InvertedResidual>& blocks = stages_.emplace_back();
    for (const Group& group : groups)
      for (int i = 0; i < group.blocks; ++i) {
        const int64_t out = scaled(group.channels);
        blocks.emplace_back(s / static_cast<int>(blocks.size()), in_, out, i == 0 && dilation == 1 ? group.stride : 1,
                            group.expand, i == 0 ? dilation : 1);
        in_ = out;
      }
  }

  double width_;
  int64_t in_;  // channels behind what has been built so far
  ConvBnAct conv1_;
  std::vector<std::vector<InvertedResidual>> stages_;
};

}  // namespace

std::unique_ptr<Backbone> make_mobilenet_v2(const BackboneOptions& options, const Scope& scope) {
  Scope s = scope;
  s.conv_init = ConvInit::kKaimingFanOut;
  return std::make_unique<MobileNetV2>(options, s);
}

}  // namespace convoy
