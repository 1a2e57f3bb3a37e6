// Dense convolutions by oneDNN, prepared once per plan. kernels/conv2d_onednn.cpp is the only file that knows oneDNN.
#pragma once
#include <memory>
#include <string>

#include "kernels/conv2d.h"

namespace convoy {

/// "2.6.3"; empty where oneDNN is not compiled in.
std::string onednn_version();

/// One direction of one convolution. The weights outside are plain O x C/groups x KH x KW; activations are dense views
/// in Layout::kBlocked, or kNchw for the image at a network's input. Everything oneDNN wants otherwise is reordered
/// inside the workspace, which run-time calls receive: nothing is allocated per call beyond small handles.
///
/// Results do not depend on `threads`: where oneDNN's own partition would change the order of a sum, the work is cut
/// into slices (of images, or of output channels for a single image) by the shape alone, each computed by one thread.
class OneDnnConv {
 public:
  enum class Direction { kForward, kBackwardData, kBackwardWeights };

  /// Prepares one direction. x (N,C,H,W) and y (N,O,OH,OW) give geometry only. `threads` is the number that will run
  /// it. Returns null where oneDNN has nothing but reference code for the shape, or is not compiled in; the caller
  /// then uses kernels/conv2d.h.
  static std::unique_ptr<OneDnnConv> create(Direction direction, const View& x, const View& y, int64_t kernel_h,
                                            int64_t kernel_w, const Conv2dParams& params, bool bias, int threads);
  ~OneDnnConv();
  OneDnnConv(const OneDnnConv&) = delete;
  OneDnnConv& operator=(const OneDnnConv&) = delete;

  /// Bytes that `workspace` of the calls below must hold, aligned to 64.
  size_t workspace_bytes() const;
  /// oneDNN's name of the implementation, and what is reordered or sliced around it.
  std::string implementation() const;

  /// y = conv(x, w) + bias. bias: O values; null exactly where create() was told so.
  void forward(const float* x, const float* w, const float* bias, float* y, void* workspace) const;
  /// dx from dy.
  void backward_data(const float* dy, const float* w, float* dx, void* workspace) const;
  /// dw (plain) from x and dy.
  void backward_weights(const float* x, const float* dy, float* dw, void* workspace) const;

 private:
  struct Impl;
  explicit OneDnnConv(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace convoy
