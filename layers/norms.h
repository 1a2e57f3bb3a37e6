// Norms and activations with parameters beyond BatchNorm2d.
#pragma once
#include <string>

#include "layers/module.h"

namespace convoy {

/// Batch normalisation over (N,C) or (N,C,L), parameters and running statistics as BatchNorm2d.
class BatchNorm1d {
 public:
  BatchNorm1d(const Scope& scope, int64_t channels) : norm_(scope, channels) {}
  Value operator()(Builder& b, Value x) const;

 private:
  BatchNorm2d norm_;
};

/// Group normalisation: <path>.weight (C), 1 at the start, and <path>.bias (C), 0.
class GroupNorm {
 public:
  /// min(32, channels) groups, which the reference's GN takes. Throws Error when they do not divide the channels.
  GroupNorm(const Scope& scope, int64_t channels, double eps = 1e-5);
  Value operator()(Builder& b, Value x) const;

 private:
  std::string path_;
  int64_t groups_;
  double eps_;
};

/// SSD's L2 normalisation across channels: <path>.weight (C), `scale` at the start.
class L2Norm {
 public:
  L2Norm(const Scope& scope, int64_t channels, double scale = 20);
  Value operator()(Builder& b, Value x) const;

 private:
  std::string path_;
};

/// Parametric ReLU: <path>.weight (`slopes`), 0.25 at the start; one slope for all channels or one each.
class PRelu {
 public:
  explicit PRelu(const Scope& scope, int64_t slopes = 1);
  Value operator()(Builder& b, Value x) const;

 private:
  std::string path_;
};

}  // namespace convoy
