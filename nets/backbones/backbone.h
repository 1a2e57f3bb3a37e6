// Backbones: classification networks without their classifier, as encoders of segmentation networks.
#pragma once
#include <array>
#include <memory>
#include <string>
#include <vector>

#include "layers/module.h"
#include "nets/network.h"

namespace convoy {

/// Feature maps of a backbone at growing depth.
struct Features {
  Value c1, c2, c3, c4;
};

class Backbone {
 public:
  virtual ~Backbone() = default;
  /// image (N,3,H,W). c1 has stride 4, c2 stride 8; c3 and c4 as the output stride allows.
  virtual Features operator()(Builder& b, Value image) const = 0;
  /// Channels of c1..c4.
  virtual std::array<int64_t, 4> channels() const = 0;
};

struct BackboneOptions {
  int64_t output_stride = 16;       ///< of c4: 8, 16 or 32; strides of the last stages are traded for dilation
  double width = 1;                 ///< factor of all channel counts
  std::vector<int64_t> multi_grid;  ///< ResNets: dilations of the last stage's blocks in turns; empty: one for all
};

/// Registers a backbone's parameters at `scope`. Throws Error naming the nearest name when there is no such backbone,
/// and for options that this one cannot honour.
std::unique_ptr<Backbone> make_backbone(const std::string& name, const BackboneOptions& options, const Scope& scope);
/// Names of all backbones.
std::vector<std::string> backbone_names();

/// The backbone that a network's options ask for, under `scope` / "encoder" (the prefix of backbone parameters) with
/// the encoder's batch norm eps. Throws Error when the options name none.
std::unique_ptr<Backbone> make_encoder(const NetworkOptions& options, const Scope& scope);

}  // namespace convoy
