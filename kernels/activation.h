// Pointwise activations that other kernels fuse.
#pragma once
#include <cstdint>

namespace convoy {

/// kRelu6 is min(max(x,0),6); kSigmoid is 1/(1+exp(-x)). NaN passes through all of them.
enum class Activation : uint8_t { kNone, kRelu, kRelu6, kSigmoid };

}  // namespace convoy
