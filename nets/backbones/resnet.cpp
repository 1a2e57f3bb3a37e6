// ResNet (He et al. 2016) in its "v1b" form: the stride sits in the 3x3 convolution.
#include "nets/backbones/backbones.h"

namespace convoy {

namespace {

int64_t scaled(int64_t channels, double width) {
  const auto c = static_cast<int64_t>(static_cast<double>(channels) * width);
  CONVOY_CHECK(c > 0, "MODEL.BACKBONE_SCALE {} leaves no channels of {}", width, channels);
  return c;
}

struct Stage {
  int64_t stride, dilation;
};

std::array<Stage, 4> stages_for(int64_t output_stride) {
  if (output_stride == 32) return {{{1, 1}, {2, 1}, {2, 1}, {2, 1}}};
  if (output_stride == 16) return {{{1, 1}, {2, 1}, {2, 1}, {1, 2}}};
  return {{{1, 1}, {2, 1}, {1, 2}, {1, 4}}};
}

struct BlockShape {
  int64_t in, width, stride;
  int64_t dilation;        // of the first (or only) 3x3 convolution
  int64_t stage_dilation;  // of a basic block's second one
};

constexpr int64_t kExpansion = 4;  // channels behind a bottleneck block, in its widths

/// Convolutions with batch norm, ReLU between them, and a shortcut: two 3x3 ("basic"), or 1x1, 3x3 and 1x1
/// ("bottleneck").
class ResidualBlock {
 public:
  ResidualBlock(const Scope& s, bool bottleneck, const BlockShape& shape) {
    const int64_t out = bottleneck ? shape.width * kExpansion : shape.width;
    const auto conv = [&](int64_t in, int64_t channels, int64_t kernel, int64_t stride, int64_t dilation) {
      const std::string number = std::to_string(convs_.size() + 1);
      const int64_t pad = kernel == 3 ? dilation : 0;
      convs_.emplace_back(s / ("conv" + number), in, channels, ConvOptions::square(kernel, stride, pad, dilation));
      norms_.emplace_back(s / ("bn" + number), channels);
    };
    if (bottleneck) {
      conv(shape.in, shape.width, 1, 1, 1);
      conv(shape.width, shape.width, 3, shape.stride, shape.dilation);
      conv(shape.width, out, 1, 1, 1);
    } else {
      conv(shape.in, out, 3, shape.stride, shape.dilation);
      conv(out, out, 3, 1, shape.stage_dilation);
    }
    if (shape.stride == 1 && shape.in == out) return;
    downsample_conv_.emplace(s / "downsample" / 0, shape.in, out, ConvOptions::square(1, shape.stride));
    downsample_bn_.emplace(s / "downsample" / 1, out);
  }

  Value operator()(Builder& b, Value x) const {
    Value y = x;
    for (size_t i = 0; i < convs_.size(); ++i) {
      if (i > 0) y = relu(y);
      y = norms_[i](b, convs_[i](b, y));
    }
    const Value shortcut = downsample_conv_ ? (*downsample_bn_)(b, (*downsample_conv_)(b, x)) : x;
    return relu(add(y, shortcut));
  }

 private:
  std::vector<Conv2d> convs_;
  std::vector<BatchNorm2d> norms_;
  std::optional<Conv2d> downsample_conv_;
  std::optional<BatchNorm2d> downsample_bn_;
};

class ResNet : public Backbone {
 public:
  ResNet(const ResNetLayout& layout, const BackboneOptions& options, const Scope& s) {
    int64_t in = make_stem(layout.deep_stem, options.width, s);
    const std::array<Stage, 4> stages = stages_for(options.output_stride);
    for (size_t i = 0; i < 4; ++i) {
      const int64_t width = scaled(int64_t{64} << i, options.width);
      const bool grid = i == 3 && !options.multi_grid.empty();
      for (int k = 0; k < layout.blocks[i]; ++k) {
        // The first block of a dilated stage still reads a map of the stage before.
        int64_t dilation = k > 0 ? stages[i].dilation : stages[i].dilation == 4 ? 2 : 1;
        if (grid) dilation = options.multi_grid[static_cast<size_t>(k) % options.multi_grid.size()];
        stages_[i].emplace_back(s / ("layer" + std::to_string(i + 1)) / k, layout.bottleneck,
                                BlockShape{.in = in,
                                           .width = width,
                                           .stride = k == 0 ? stages[i].stride : 1,
                                           .dilation = dilation,
                                           .stage_dilation = stages[i].dilation});
        in = layout.bottleneck ? width * kExpansion : width;
      }
      channels_[i] = in;
    }
    register_linear(s / "fc", scaled(layout.bottleneck ? 512 * kExpansion : 512, options.width), 1000);
  }

  Features operator()(Builder& b, Value x) const override {
    for (size_t i = 0; i < stem_.size(); ++i) x = relu(stem_norms_[i](b, stem_[i](b, x)));
    x = max_pool2d(x, {.kernel_h = 3, .kernel_w = 3, .stride_h = 2, .stride_w = 2, .pad_h = 1, .pad_w = 1}).first;
    std::array<Value, 4> c;
    for (size_t i = 0; i < 4; ++i) {
      for (const ResidualBlock& block : stages_[i]) x = block(b, x);
      c[i] = x;
    }
    return {c[0], c[1], c[2], c[3]};
  }

  std::array<int64_t, 4> channels() const override { return channels_; }

 private:
  /// Returns the channels behind it. Of the deep stem's norms the last one is outside the list of the others.
  int64_t make_stem(bool deep, double width, const Scope& s) {
    const int64_t out = scaled(deep ? 128 : 64, width);
    if (deep) {
      const int64_t middle = scaled(64, width);
      stem_.emplace_back(s / "conv1" / 0, 3, middle, ConvOptions::square(3, 2));
      stem_norms_.emplace_back(s / "conv1" / 1, middle);
      stem_.emplace_back(s / "conv1" / 3, middle, middle, ConvOptions::square(3));
      stem_norms_.emplace_back(s / "conv1" / 4, middle);
      stem_.emplace_back(s / "conv1" / 6, middle, out, ConvOptions::square(3));
    } else {
      stem_.emplace_back(s / "conv1", 3, out, ConvOptions::square(7, 2));
    }
    stem_norms_.emplace_back(s / "bn1", out);
    return out;
  }

  std::array<int64_t, 4> channels_{};
  std::vector<Conv2d> stem_;
  std::vector<BatchNorm2d> stem_norms_;
  std::array<std::vector<ResidualBlock>, 4> stages_;
};

}  // namespace

std::unique_ptr<Backbone> make_resnet(const ResNetLayout& layout, const BackboneOptions& options, const Scope& scope) {
  for (const int64_t dilation : options.multi_grid)
    CONVOY_CHECK(dilation > 0, "multi-grid dilations are positive, found {}", dilation);
  Scope s = scope;
  s.conv_init = ConvInit::kKaimingFanOut;
  return std::make_unique<ResNet>(layout, options, s);
}

}  // namespace convoy
