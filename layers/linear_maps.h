// Linear maps beyond Conv2d. Initial weights and biases follow PyTorch's default, uniform in +-1/sqrt(fan_in).
#pragma once
#include <string>

#include "layers/module.h"

namespace convoy {

/// Transposed convolution with a square kernel: <path>.weight (C, K/groups, k, k) and, when asked for, <path>.bias (K).
/// Its fan_in is K/groups * k * k, as PyTorch counts it.
class ConvTranspose2d {
 public:
  ConvTranspose2d(const Scope& scope, int64_t in, int64_t out, int64_t kernel,
                  const ConvTranspose2dOptions& options = {}, bool bias = true);
  Value operator()(Builder& b, Value x) const;

 private:
  std::string path_;
  ConvTranspose2dOptions options_;
  bool bias_;
};

/// Convolution over (N,C,L): <path>.weight (K, C/groups, k) and, when asked for, <path>.bias (K).
class Conv1d {
 public:
  Conv1d(const Scope& scope, int64_t in, int64_t out, int64_t kernel, const Conv1dOptions& options = {},
         bool bias = true);
  Value operator()(Builder& b, Value x) const;

 private:
  std::string path_;
  Conv1dOptions options_;
  bool bias_;
};

/// Fully connected layer over (N,C), or over (N,C,1,1), which then gives (N,K,1,1), so that it can make gates:
/// <path>.weight (K, C) and, when asked for, <path>.bias (K).
class Linear {
 public:
  Linear(const Scope& scope, int64_t in, int64_t out, bool bias = true);
  Value operator()(Builder& b, Value x) const;

 private:
  std::string path_;
  bool bias_;
};

/// DUNet's data-dependent upsampling by a factor: <path>.weight (K*factor*factor, C, 1, 1), no bias.
class DupSampling {
 public:
  DupSampling(const Scope& scope, int64_t in, int64_t out, int64_t factor);
  Value operator()(Builder& b, Value x) const;

 private:
  std::string path_;
  int64_t factor_;
};

}  // namespace convoy
