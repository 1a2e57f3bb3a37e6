// Atrous spatial pyramid pooling (Chen et al. 2017).
#pragma once
#include <array>
#include <vector>

#include "layers/module.h"

namespace convoy {

/// The map seen at several scales: its global mean, a 1x1 and three dilated separable convolutions side by side, joined
/// by a 1x1 convolution, with Dropout2d(0.1) at the end. (N,in,H,W) to (N,out,H,W).
class Aspp {
 public:
  Aspp(const Scope& s, int64_t in, int64_t out, const std::array<int64_t, 3>& rates);
  /// Training needs a batch of two images or more: the global mean is one value per channel and image.
  Value operator()(Builder& b, Value x) const;

 private:
  std::string path_;
  ConvBnAct conv1x1_;
  std::vector<SeparableConv> dilated_;
  ConvBnAct image_pooling_, project_;
};

/// Dilations of the pyramid where its input has this output stride.
std::array<int64_t, 3> aspp_rates(int64_t output_stride);

}  // namespace convoy
