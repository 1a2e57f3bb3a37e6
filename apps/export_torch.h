// A network as a plain Python file for PyTorch: one operation per line, the same parameter names.
#pragma once
#include <string>

#include "apps/torch_trace.h"

namespace convoy {

struct TorchExport {
  const Network& network;
  ParamStore& store;  ///< the network's
  std::string title;  ///< what the file calls the network
  int64_t classes = 0;
  SizeHW size;  ///< of the images that the comments speak of
};

/// Python source of a class Net with the network's parameters and buffers under their own names and in their order, its
/// forward pass line by line from the unfused graph, and its loss. Run as a program the file measures itself or
/// compares itself with values that export_values wrote. It needs PyTorch alone. Extents that follow from the image's
/// size are written so; where one cannot be (or the network takes one size only) the file insists on `size`. Throws
/// Error naming the node when an operator has no form in PyTorch, and where `size` does not fit the network.
std::string export_torch(const TorchExport& what, const LossFunction& loss);

}  // namespace convoy
