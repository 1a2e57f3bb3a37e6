// Attention blocks under the reference's parameter names, and what they compute as functions of plain values.
#pragma once
#include "layers/module.h"

namespace convoy {

/// gamma * (sum over the pixels of the own row and column of softmax(query . key) * value) + x. query, key (N,D,H,W),
/// value and x (N,C,H,W), gamma (1).
Value criss_cross_attention(Value x, Value query, Value key, Value value, Value gamma);
/// x times sigmoid(w2 * relu(w1 * mean(x) + b1) + b2) per image and channel. w1 (D,C), w2 (C,D), or 1x1 convolutions.
Value se_gate(Value x, Value w1, Value b1, Value w2, Value b2);

/// The three projections of attention between pixels, to channels/8, channels/8 and channels: <path>.gamma (starts at
/// 0), .query_conv, .key_conv, .value_conv, all with bias.
class AttentionProjections {
 public:
  AttentionProjections(const Scope& scope, int64_t channels);
  Value gamma(Builder& b) const;
  Value query(Builder& b, Value x) const { return query_(b, x); }
  Value key(Builder& b, Value x) const { return key_(b, x); }
  Value value(Builder& b, Value x) const { return value_(b, x); }

 private:
  std::string gamma_;
  Conv2d query_, key_, value_;
};

/// Attention of each pixel over its row and column (CCNet), times gamma, plus x.
class CrissCrossAttention {
 public:
  CrissCrossAttention(const Scope& scope, int64_t channels);
  Value operator()(Builder& b, Value x) const;

 private:
  std::string path_;
  AttentionProjections projections_;
};

/// Attention of each pixel over all pixels (DANet), times gamma, plus x.
class PositionAttention {
 public:
  PositionAttention(const Scope& scope, int64_t channels);
  Value operator()(Builder& b, Value x) const;

 private:
  std::string path_;
  AttentionProjections projections_;
};

/// Attention of each channel over all channels (DANet), times <path>.gamma (starts at 0), plus x.
class ChannelAttention {
 public:
  explicit ChannelAttention(const Scope& scope);
  Value operator()(Builder& b, Value x) const;

 private:
  std::string path_;
};

/// Encoding by learned codewords (EncNet): <path>.codewords (K,C), <path>.scale (K). x (N,C,H,W) gives (N,K,C).
class Encoding {
 public:
  Encoding(const Scope& scope, int64_t channels, int64_t codewords);
  Value operator()(Builder& b, Value x) const;

 private:
  std::string path_;
};

/// Squeeze and excitation: x times a gate per channel from linear layers <path>.fc.0, to channels/reduction, and
/// <path>.fc.2, back.
class SeGate {
 public:
  SeGate(const Scope& scope, int64_t channels, int64_t reduction);
  Value operator()(Builder& b, Value x) const;

 private:
  std::string path_;
};

}  // namespace convoy
