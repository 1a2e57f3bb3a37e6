// DeepLabV3+: Encoder-Decoder with Atrous Separable Convolution (Chen et al. 2018).
#include "nets/backbones/backbone.h"
#include "nets/heads/aspp.h"
#include "nets/heads/fcn_head.h"
#include "nets/networks.h"

namespace convoy {

namespace {

/// Pyramid over c4, joined at the size of c1 with c1 reduced to a few channels; both parts can be left out, and without
/// the decoder everything stays at the size of c4.
class DeepLabHead {
 public:
  DeepLabHead(const NetworkOptions& options, const Scope& s, int64_t c1, int64_t c4) {
    int64_t in = c4;
    if (options.use_aspp) {
      aspp_.emplace(s / "aspp", c4, kWidth, aspp_rates(options.output_stride));
      in = kWidth;
    }
    if (options.enable_decoder) {
      c1_block_.emplace(s / "c1_block", c1, kC1Width, ConvOptions::square(1));
      in += kC1Width;
    }
    convs_.emplace_back(s / "block" / 0, in, kWidth);
    convs_.emplace_back(s / "block" / 1, kWidth, kWidth);
    classify_.emplace(s / "block" / 2, kWidth, options.classes, ConvOptions::square(1).with_bias());
  }

  Value operator()(Builder& b, Value c1, Value c4) const {
    Value x = aspp_ ? (*aspp_)(b, c4) : c4;
    if (c1_block_) x = concat({resize_to(x, c1), (*c1_block_)(b, c1)});
    for (const SeparableConv& conv : convs_) x = conv(b, x);
    return (*classify_)(b, x);
  }

 private:
  static constexpr int64_t kWidth = 256, kC1Width = 48;
  std::optional<Aspp> aspp_;
  std::optional<ConvBnAct> c1_block_;
  std::vector<SeparableConv> convs_;
  std::optional<Conv2d> classify_;
};

class DeepLabV3Plus : public Network {
 public:
  DeepLabV3Plus(const NetworkOptions& options, const Scope& s)
      : encoder_(make_encoder(options, s)),
        head_(options, s / "head", encoder_->channels()[0], encoder_->channels()[3]) {
    if (!options.aux) return;
    const int64_t c3 = encoder_->channels()[2];
    CONVOY_CHECK(c3 == kAuxChannels,
                 "the auxiliary head of {} reads {} channels, which xception65 has and {} (with {}) has not; set "
                 "SOLVER.AUX to False",
                 options.name, kAuxChannels, options.backbone, c3);
    aux_.emplace(s / "auxlayer", c3, options.classes);
  }

  std::vector<NamedValue> forward(Builder& b, Value image) const override {
    const Features f = (*encoder_)(b, image);
    std::vector<NamedValue> outputs{{"out0", resize_to(head_(b, f.c1, f.c4), image)}};
    if (aux_) outputs.push_back({"out1", resize_to((*aux_)(b, f.c3), image)});
    return outputs;
  }

  std::vector<std::string> decoder_prefixes() const override { return {"head.", "auxlayer."}; }

 private:
  static constexpr int64_t kAuxChannels = 728;
  std::unique_ptr<Backbone> encoder_;
  DeepLabHead head_;
  std::optional<FcnHead> aux_;
};

}  // namespace

std::unique_ptr<Network> make_deeplabv3_plus(const NetworkOptions& options, const Scope& scope) {
  return std::make_unique<DeepLabV3Plus>(options, scope);
}

}  // namespace convoy
