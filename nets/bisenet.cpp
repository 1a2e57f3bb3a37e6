// BiSeNet: Bilateral Segmentation Network (Yu et al. 2018).
#include "nets/backbones/backbone.h"
#include "nets/networks.h"

namespace convoy {

namespace {

constexpr int64_t kWidth = 128;  // channels of both paths

/// Detail at 1/8: three strided convolutions and a 1x1.
class SpatialPath {
 public:
  explicit SpatialPath(const Scope& s)
      : conv7x7_(s / "conv7x7", 3, 64, ConvOptions::square(7, 2)),
        conv3x3_1_(s / "conv3x3_1", 64, 64, ConvOptions::square(3, 2)),
        conv3x3_2_(s / "conv3x3_2", 64, 64, ConvOptions::square(3, 2)),
        conv1x1_(s / "conv1x1", 64, kWidth, ConvOptions::square(1)) {}
  Value operator()(Builder& b, Value x) const { return conv1x1_(b, conv3x3_2_(b, conv3x3_1_(b, conv7x7_(b, x)))); }

 private:
  ConvBnAct conv7x7_, conv3x3_1_, conv3x3_2_, conv1x1_;
};

/// Attention refinement module: features gated by what their mean says.
class AttentionRefinement {
 public:
  AttentionRefinement(const Scope& s, int64_t in)
      : conv3x3_(s / "conv3x3", in, kWidth, ConvOptions::square(3)),
        attention_(s / "channel_attention" / 1, kWidth, kWidth, ConvOptions::square(1)) {}
  Value operator()(Builder& b, Value x) const {
    x = conv3x3_(b, x);
    return mul_channel(x, sigmoid(attention_(b, global_avg_pool(x))));
  }

 private:
  ConvBnAct conv3x3_, attention_;
};

/// Context from the backbone: c4 with the global mean, then c3, each refined at the next larger size.
class ContextPath {
 public:
  ContextPath(const Scope& s, int64_t c3, int64_t c4)
      : global_conv_(s / "global_context" / "gap" / 1, c4, kWidth, ConvOptions::square(1)),
        global_bn_(s / "global_context" / "gap" / 2, kWidth),
        arm4_(s / "arms" / 0, c4),
        arm3_(s / "arms" / 1, c3),
        refine4_(s / "refines" / 0, kWidth, kWidth, ConvOptions::square(3)),
        refine3_(s / "refines" / 1, kWidth, kWidth, ConvOptions::square(3)) {}

  /// The refined maps at the sizes of c3 and c2.
  std::pair<Value, Value> operator()(Builder& b, const Features& f) const {
    const Value global = resize_to(relu(global_bn_(b, global_conv_(b, global_avg_pool(f.c4)))), f.c4);
    const Value at_c3 = refine4_(b, resize_to(add(arm4_(b, f.c4), global), f.c3));
    const Value at_c2 = refine3_(b, resize_to(add(arm3_(b, f.c3), at_c3), f.c2));
    return {at_c3, at_c2};
  }

 private:
  Conv2d global_conv_;
  BatchNorm2d global_bn_;
  AttentionRefinement arm4_, arm3_;
  ConvBnAct refine4_, refine3_;
};

/// Feature fusion module: both paths joined, with channels re-weighted.
class FeatureFusion {
 public:
  explicit FeatureFusion(const Scope& s)
      : conv1x1_(s / "conv1x1", 2 * kWidth, 2 * kWidth, ConvOptions::square(1)),
        squeeze_(s / "channel_attention" / 1, 2 * kWidth, kWidth / 2, ConvOptions::square(1)),
        expand_(s / "channel_attention" / 2, kWidth / 2, 2 * kWidth, ConvOptions::square(1)) {}
  Value operator()(Builder& b, Value spatial, Value context) const {
    const Value x = conv1x1_(b, concat({spatial, context}));
    return add(x, mul_channel(x, sigmoid(expand_(b, squeeze_(b, global_avg_pool(x))))));
  }

 private:
  ConvBnAct conv1x1_, squeeze_, expand_;
};

class Head {
 public:
  Head(const Scope& s, int64_t in, int64_t inner, int64_t classes)
      : path_(s.path),
        conv_(s / "block" / 0, in, inner, ConvOptions::square(3)),
        classify_(s / "block" / 2, inner, classes, ConvOptions::square(1).with_bias()) {}
  Value operator()(Builder& b, Value x) const { return classify_(b, dropout(b, path_ + ".block.1", conv_(b, x), 0.1)); }

 private:
  std::string path_;
  ConvBnAct conv_;
  Conv2d classify_;
};

class BiSeNet : public Network {
 public:
  BiSeNet(const NetworkOptions& options, const Scope& s)
      : encoder_(make_encoder(options, s)),
        spatial_path_(s / "spatial_path"),
        context_path_(s / "context_path", encoder_->channels()[2], encoder_->channels()[3]),
        ffm_(s / "ffm"),
        head_(s / "head", 2 * kWidth, 64, options.classes) {
    if (!options.aux) return;
    aux1_.emplace(s / "auxlayer1", kWidth, 256, options.classes);
    aux2_.emplace(s / "auxlayer2", kWidth, 256, options.classes);
  }

  std::vector<NamedValue> forward(Builder& b, Value image) const override {
    const Value spatial = spatial_path_(b, image);
    const auto [at_c3, at_c2] = context_path_(b, (*encoder_)(b, image));
    std::vector<NamedValue> outputs{{"out0", resize_to(head_(b, ffm_(b, spatial, at_c2)), image)}};
    if (aux1_) {
      outputs.push_back({"out1", resize_to((*aux1_)(b, at_c3), image)});
      outputs.push_back({"out2", resize_to((*aux2_)(b, at_c2), image)});
    }
    return outputs;
  }

  std::vector<std::string> decoder_prefixes() const override {
    return {"spatial_path.", "context_path.", "ffm.", "head.", "auxlayer1.", "auxlayer2."};
  }

 private:
  std::unique_ptr<Backbone> encoder_;
  SpatialPath spatial_path_;
  ContextPath context_path_;
  FeatureFusion ffm_;
  Head head_;
  std::optional<Head> aux1_, aux2_;
};

}  // namespace

std::unique_ptr<Network> make_bisenet(const NetworkOptions& options, const Scope& scope) {
  return std::make_unique<BiSeNet>(options, scope);
}

}  // namespace convoy
