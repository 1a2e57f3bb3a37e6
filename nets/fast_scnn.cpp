// Fast-SCNN: Fast Semantic Segmentation Network (Poudel, Liwicki, Cipolla 2019).
#include "nets/networks.h"

namespace convoy {

namespace {

/// The image at 1/8 of its size, for both branches.
class LearningToDownsample {
 public:
  explicit LearningToDownsample(const Scope& s)
      : conv_(s / "conv", 3, 32, ConvOptions::square(3, 2, 0)),
        dsconv1_(s / "dsconv1", 32, 48, {.stride = 2}),
        dsconv2_(s / "dsconv2", 48, 64, {.stride = 2}) {}
  Value operator()(Builder& b, Value x) const { return dsconv2_(b, dsconv1_(b, conv_(b, x))); }

 private:
  ConvBnAct conv_;
  SeparableConv dsconv1_, dsconv2_;
};

/// Pools to 1, 2, 3 and 6 bins a side, joined with the map itself (Zhao et al., PSPNet, 2017).
class PyramidPooling {
 public:
  PyramidPooling(const Scope& s, int64_t in) {
    for (size_t i = 0; i < std::size(kBins); ++i)
      convs_.emplace_back(s / "convs" / static_cast<int>(i), in, in / 4, ConvOptions::square(1));
  }
  Value operator()(Builder& b, Value x) const {
    std::vector<Value> parts{x};
    for (size_t i = 0; i < std::size(kBins); ++i)
      parts.push_back(resize_to(convs_[i](b, adaptive_avg_pool2d(x, kBins[i], kBins[i])), x));
    return concat(parts);
  }

 private:
  static constexpr int64_t kBins[] = {1, 2, 3, 6};
  std::vector<ConvBnAct> convs_;
};

class GlobalFeatureExtractor {
 public:
  explicit GlobalFeatureExtractor(const Scope& s)
      : blocks_([&] {
          std::vector<InvertedResidual> blocks;
          const auto stage = [&](const char* name, int64_t in, int64_t out, int64_t stride) {
            for (int i = 0; i < 3; ++i) blocks.emplace_back(s / name / i, i ? out : in, out, i ? 1 : stride, 6);
          };
          stage("bottleneck1", 64, 64, 2);
          stage("bottleneck2", 64, 96, 2);
          stage("bottleneck3", 96, 128, 1);
          return blocks;
        }()),
        ppm_(s / "ppm", 128),
        out_(s / "out", 256, 128, ConvOptions::square(1)) {}
  Value operator()(Builder& b, Value x) const {
    for (const InvertedResidual& block : blocks_) x = block(b, x);
    return out_(b, ppm_(b, x));
  }

 private:
  std::vector<InvertedResidual> blocks_;
  PyramidPooling ppm_;
  ConvBnAct out_;
};

/// Adds the wide shallow branch and the deep one, brought up by a fixed factor of 4.
class FeatureFusion {
 public:
  explicit FeatureFusion(const Scope& s)
      : dwconv_(s / "dwconv", 128, 128, ConvOptions::square(1)),
        conv_low_(s / "conv_lower_res" / 0, 128, 128, ConvOptions::square(1).with_bias()),
        bn_low_(s / "conv_lower_res" / 1, 128),
        conv_high_(s / "conv_higher_res" / 0, 64, 128, ConvOptions::square(1).with_bias()),
        bn_high_(s / "conv_higher_res" / 1, 128) {}
  Value operator()(Builder& b, Value high, Value low) const {
    low = dwconv_(b, resize_bilinear(low, 4 * low.shape()[2], 4 * low.shape()[3]));
    low = bn_low_(b, conv_low_(b, low));
    high = bn_high_(b, conv_high_(b, high));
    return relu(add(high, low));
  }

 private:
  ConvBnAct dwconv_;  // depthwise in the paper, a plain 1x1 in the reference
  Conv2d conv_low_;
  BatchNorm2d bn_low_;
  Conv2d conv_high_;
  BatchNorm2d bn_high_;
};

class Classifier {
 public:
  Classifier(const Scope& s, int64_t classes)
      : path_(s.path),
        dsconv1_(s / "dsconv1", 128, 128),
        dsconv2_(s / "dsconv2", 128, 128),
        conv_(s / "conv" / 1, 128, classes, ConvOptions::square(1).with_bias()) {}
  Value operator()(Builder& b, Value x) const {
    return conv_(b, dropout(b, path_ + ".conv.0", dsconv2_(b, dsconv1_(b, x)), 0.1, true));
  }

 private:
  std::string path_;
  SeparableConv dsconv1_, dsconv2_;
  Conv2d conv_;
};

class AuxHead {
 public:
  AuxHead(const Scope& s, int64_t in, int64_t classes)
      : path_(s.path),
        conv_(s / 0, in, 32, ConvOptions::square(3)),
        bn_(s / 1, 32),
        classify_(s / 4, 32, classes, ConvOptions::square(1).with_bias()) {}
  Value operator()(Builder& b, Value x) const {
    return classify_(b, dropout(b, path_ + ".3", relu(bn_(b, conv_(b, x))), 0.1, true));
  }

 private:
  std::string path_;
  Conv2d conv_;
  BatchNorm2d bn_;
  Conv2d classify_;
};

class FastScnn : public Network {
 public:
  FastScnn(const NetworkOptions& options, const Scope& s)
      : down_(s / "learning_to_downsample"),
        global_(s / "global_feature_extractor"),
        fusion_(s / "feature_fusion"),
        classifier_(s / "classifier", options.classes) {
    if (!options.aux) return;
    aux1_.emplace(s / "auxlayer1", 64, options.classes);
    aux2_.emplace(s / "auxlayer2", 128, options.classes);
  }

  std::vector<NamedValue> forward(Builder& b, Value image) const override {
    const Value high = down_(b, image);
    const Value low = global_(b, high);
    std::vector<NamedValue> outputs{{"out0", resize_to(classifier_(b, fusion_(b, high, low)), image)}};
    if (aux1_) {
      outputs.push_back({"out1", resize_to((*aux1_)(b, high), image)});
      outputs.push_back({"out2", resize_to((*aux2_)(b, low), image)});
    }
    return outputs;
  }

  // The fusion's factor of 4 asks for a 1/8 map that is a multiple of 4. The stem has no padding.
  bool accepts_extent(int64_t extent) const override {
    const int64_t half = (extent - 1) / 2, eighth = ((half + 1) / 2 + 1) / 2;
    return extent >= 3 && eighth % 4 == 0;
  }

 private:
  LearningToDownsample down_;
  GlobalFeatureExtractor global_;
  FeatureFusion fusion_;
  Classifier classifier_;
  std::optional<AuxHead> aux1_, aux2_;
};

}  // namespace

std::unique_ptr<Network> make_fast_scnn(const NetworkOptions& options, const Scope& scope) {
  return std::make_unique<FastScnn>(options, scope);
}

}  // namespace convoy
