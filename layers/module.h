// The pieces that networks are composed of. A module owns names and shapes of parameters, nothing else: constructing it
// registers them, calling it appends nodes. Names equal the PyTorch state_dict keys of the reference networks.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "engine/ops.h"
#include "engine/param_store.h"

namespace convoy {

/// How a network runs.
enum class Mode : uint8_t {
  kTrain,   ///< batch statistics, running averages updated, dropout on
  kFrozen,  ///< the training outputs and gradients with running statistics, which stay as they are; dropout off
  kEval     ///< as kFrozen, for prediction
};

/// One pass of a network over a graph.
struct Builder {
  Graph& graph;
  Mode mode;
  bool dropout = true;  ///< off for comparisons with reference figures
};

/// Initial weights of convolutions: PyTorch's default (uniform in +-1/sqrt(fan_in)), or Kaiming normal by fan-out with
/// the gain of ReLU (He et al. 2015), standard deviation sqrt(2/fan_out). Biases are always drawn by the default.
enum class ConvInit : uint8_t { kDefault, kKaimingFanOut };

/// Where a module registers its parameters, and the settings it inherits.
struct Scope {
  ParamStore& store;
  std::string path;
  double bn_eps = 1e-5;
  double bn_momentum = 0.1;
  ConvInit conv_init = ConvInit::kDefault;

  /// The scope of a child: "encoder" / "conv1" is "encoder.conv1".
  Scope operator/(const std::string& child) const {
    Scope s = *this;
    s.path = path.empty() ? child : path + "." + child;
    return s;
  }
  Scope operator/(int index) const { return *this / std::to_string(index); }
};

struct ConvOptions {
  int64_t kernel_h = 3, kernel_w = 3;
  Conv2dOptions geometry;
  bool bias = false;

  /// A square kernel; padding that keeps the size at stride 1 unless given.
  static ConvOptions square(int64_t kernel, int64_t stride = 1, std::optional<int64_t> pad = {}, int64_t dilation = 1,
                            int64_t groups = 1);
  ConvOptions with_bias() const;
};

/// Convolution: <path>.weight (K, C/groups, kh, kw) and, when asked for, <path>.bias (K).
class Conv2d {
 public:
  Conv2d(const Scope& scope, int64_t in, int64_t out, const ConvOptions& options);
  Value operator()(Builder& b, Value x) const;

 private:
  std::string path_;
  ConvOptions options_;
};

/// Batch normalisation over (N,H,W): <path>.weight, .bias, .running_mean, .running_var, .num_batches_tracked.
class BatchNorm2d {
 public:
  BatchNorm2d(const Scope& scope, int64_t channels);
  Value operator()(Builder& b, Value x) const;

 private:
  std::string path_;
  double eps_, momentum_;
};

/// Registers <path>.weight (out, in) and <path>.bias (out) of a fully connected layer that is part of a backbone's
/// state but takes no part in segmentation.
void register_linear(const Scope& scope, int64_t in, int64_t out);

/// Convolution, batch norm and activation under the reference's names <path>.conv and <path>.bn.
class ConvBnAct {
 public:
  ConvBnAct(const Scope& scope, int64_t in, int64_t out, const ConvOptions& options,
            Activation act = Activation::kRelu);
  Value operator()(Builder& b, Value x) const;

 private:
  Conv2d conv_;
  BatchNorm2d bn_;
  Activation act_;
};

struct SeparableConvOptions {
  int64_t stride = 1, dilation = 1;  ///< of the depthwise convolution, whose padding is the dilation
  bool relu_first = false;           ///< one ReLU in front of everything instead of one after each batch norm
};

/// Depthwise 3x3 and pointwise 1x1, each with batch norm and ReLU (reference names block.depthwise, block.bn_depth,
/// block.pointwise, block.bn_point).
class SeparableConv {
 public:
  SeparableConv(const Scope& scope, int64_t in, int64_t out, const SeparableConvOptions& options = {});
  Value operator()(Builder& b, Value x) const;

 private:
  bool relu_first_;
  Conv2d depthwise_;
  BatchNorm2d bn_depth_;
  Conv2d pointwise_;
  BatchNorm2d bn_point_;
};

/// Inverted residual of MobileNetV2 (Sandler et al. 2018): 1x1 expansion, depthwise 3x3, linear 1x1 projection, with a
/// shortcut where shapes allow. `expand` 1 leaves out the expansion.
class InvertedResidual {
 public:
  InvertedResidual(const Scope& scope, int64_t in, int64_t out, int64_t stride, int64_t expand, int64_t dilation = 1);
  Value operator()(Builder& b, Value x) const;

 private:
  bool shortcut_;
  std::vector<ConvBnAct> convs_;
  Conv2d project_;
  BatchNorm2d project_bn_;
};

/// Dropout at a module path: does nothing unless the builder trains with dropout.
Value dropout(Builder& b, const std::string& path, Value x, double p, bool whole_channels = false);

/// Bilinear resize of x to the height and width of `like`.
Value resize_to(Value x, Value like, bool align_corners = true);

}  // namespace convoy
