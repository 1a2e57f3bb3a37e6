// Constructors of the families of backbones, one per file; nets/backbones/backbone.cpp lists the names.
#pragma once
#include "nets/backbones/backbone.h"

namespace convoy {

struct ResNetLayout {
  std::array<int, 4> blocks;  ///< per stage
  bool bottleneck;            ///< blocks of 1x1, 3x3, 1x1 with four times the channels behind them
  bool deep_stem = false;     ///< three 3x3 convolutions instead of one 7x7
};

std::unique_ptr<Backbone> make_resnet(const ResNetLayout& layout, const BackboneOptions& options, const Scope& scope);
std::unique_ptr<Backbone> make_xception65(const BackboneOptions& options, const Scope& scope);
std::unique_ptr<Backbone> make_mobilenet_v2(const BackboneOptions& options, const Scope& scope);

}  // namespace convoy
