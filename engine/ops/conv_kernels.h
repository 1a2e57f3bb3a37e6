// Which kernels compute a convolution, on every device.
#pragma once
#include "engine/op.h"
#include "kernels/conv2d.h"

namespace convoy {

/// One direction of a convolution from x (N,C,H,W) to y (N,O,OH,OW).
struct ConvCall {
  enum class Direction : uint8_t {
    kForward,          ///< arguments (x, weight[, bias]), result y
    kBackwardData,     ///< arguments (dy, weight), result dx
    kBackwardWeights,  ///< arguments (x, dy), result dw
  };
  Direction direction;
  View x, y;  ///< geometry
  int64_t kernel_h, kernel_w;
  Conv2dParams params;
  bool bias = false;
};

/// The kernel for it: our own for depthwise convolutions; for dense and grouped ones that of the vendor's library
/// (oneDNN on the CPU), and our plain one where the device has none, where it does not take the shape and under
/// --direct-conv.
Kernel conv_kernel(const ConvCall& call, const Context& context);

}  // namespace convoy
