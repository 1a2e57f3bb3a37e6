// The operators as functions: each appends one node (or a few) and returns its value. Shapes are checked at the call.
// Image values are (N,C,H,W) f32.
#pragma once
#include <string>
#include <utility>

#include "engine/graph.h"
#include "kernels/activation.h"
#include "kernels/conv2d.h"

namespace convoy {

using Conv2dOptions = Conv2dParams;
/// Cross-correlation. weight (K, C/groups, kh, kw), bias (K) or empty.
Value conv2d(Value x, Value weight, Value bias, const Conv2dOptions& options = {});

/// Per-channel mean and biased variance over n, h, w. Throws Error when there are fewer than two values per channel.
std::pair<Value, Value> bn_stats(Value x);
/// Moves running_mean and running_var (unbiased) towards the batch's by `momentum` and counts the batch. An effect.
Value bn_update_running(Value x, Value mean, Value var, Value running_mean, Value running_var,
                        Value num_batches_tracked, double momentum);
/// (x - mean) / sqrt(var + eps) * weight + bias. `batch_statistics`: mean and var came from bn_stats(x), and the
/// gradient goes through them; otherwise they are constants.
Value bn_apply(Value x, Value mean, Value var, Value weight, Value bias, double eps, bool batch_statistics);

// Exchange between the lanes and ranks of a global batch (Graph::set_global_batch). Outputs are the same on all of
// them.

/// factor * sum over all lanes of all ranks; f32 values of any shape, each a contribution of one lane (or of a rank,
/// for values that its lanes share). One message. Without a global batch a value is its own sum.
std::vector<Value> sum_over_lanes(const std::vector<Value>& values, double factor = 1);
/// Statistics of bn_stats(x) of all lanes merged (Chan et al. 1979): mean and biased variance of the global batch.
std::pair<Value, Value> sync_bn_stats(Value x, Value mean, Value var);
/// The values that rank 0 has.
std::pair<Value, Value> of_first_rank(Value a, Value b);
/// Values per channel that batch statistics of x are taken over.
int64_t statistics_count(Value x);

Value activation(Value x, Activation kind);
inline Value relu(Value x) {
  return activation(x, Activation::kRelu);
}
inline Value relu6(Value x) {
  return activation(x, Activation::kRelu6);
}
inline Value sigmoid(Value x) {
  return activation(x, Activation::kSigmoid);
}

/// Element-wise, equal shapes.
Value add(Value a, Value b);
Value mul(Value a, Value b);
Value scale(Value x, double factor);
/// x times a scalar value.
Value scale_by(Value x, Value factor);
/// x (N,C,H,W) times gate (N,C,1,1).
Value mul_channel(Value x, Value gate);
/// Scalar sum of a*b over all elements, in double.
Value dot(Value a, Value b);

struct PoolOptions {
  int64_t kernel_h = 2, kernel_w = 2;
  int64_t stride_h = 2, stride_w = 2;
  int64_t pad_h = 0, pad_w = 0;
  bool ceil_mode = false;
  bool count_include_pad = true;  ///< average pooling only
};
/// Maximum and its flat position h*W+w in each plane (i32); the first maximum wins.
std::pair<Value, Value> max_pool2d(Value x, const PoolOptions& options);
Value avg_pool2d(Value x, const PoolOptions& options);
/// PyTorch's bins: floor(i*H/O) up to ceil((i+1)*H/O), so they may overlap.
Value adaptive_avg_pool2d(Value x, int64_t out_h, int64_t out_w);
inline Value global_avg_pool(Value x) {
  return adaptive_avg_pool2d(x, 1, 1);
}

/// Bilinear resize to a size.
Value resize_bilinear(Value x, int64_t out_h, int64_t out_w, bool align_corners = true);
Value resize_nearest(Value x, int64_t out_h, int64_t out_w);

/// The same elements in row-major order under another shape of as many.
Value reshape(Value x, const Shape& shape);
/// (N,...) as a matrix (N, all the rest).
Value flatten(Value x);
/// (N,C) as (N,C,1,1), (N,C,L) as (N,C,1,L); an image stays as it is.
Value as_image(Value x);

/// Joins along channels.
Value concat(const std::vector<Value>& parts);
/// Channels [first, first+count).
Value slice_channels(Value x, int64_t first, int64_t count);

/// Zeroes elements (or whole channels) with probability p and scales the rest by 1/(1-p). The mask is a function of
/// the run's seed, the module path and call, the global step and the image's slot in the global batch.
Value dropout(Value x, double p, bool whole_channels = false);

/// Criss-cross attention in two parts. A pixel attends the W pixels of its row, itself included, then the H-1 others of
/// its column from top to bottom. ca_weight: scalar products (N,H+W-1,H,W) of t with f at the attended pixels, both
/// (N,C,H,W). ca_map: sum over the attended pixels of w (N,H+W-1,H,W) times g (N,C,H,W).
Value ca_weight(Value t, Value f);
Value ca_map(Value w, Value g);
/// Sum over all pixels j of softmax_j(query(i) . key(j)) * value(j); query, key (N,D,H,W), value (N,C,H,W). The
/// H*W x H*W weights never exist.
Value position_attention(Value query, Value key, Value value);
/// Sum over channels c' of softmax_c'(max - x(c) . x(c')) * x(c') for x (N,C,H,W), products over all pixels.
Value channel_attention(Value x);
/// Residuals x(i) - codeword(k) summed over pixels i with weights softmax_k(scale(k)^2 * |x(i) - codeword(k)|^2); the
/// sign of the scale has no effect. x (N,D,H,W), codewords (K,D), scale (K); the result is (N,K,D).
Value encnet_encoding(Value x, Value codewords, Value scale);

/// Number of labels in target (N,H,W) i32 that are not `ignore`; with class_weight (C) the sum of their weights.
Value label_weight_sum(Value target, int64_t classes, int64_t ignore, Value class_weight = {});
/// Sum over labelled pixels of -class_weight[t]*log softmax(logits)[t], divided by `normalizer` (0 when that is 0).
/// logits (N,C,H,W), target (N,H,W) i32. Behind a bilinear resize the two are fused and the full-size logits never
/// exist.
Value softmax_cross_entropy(Value logits, Value target, Value normalizer, int64_t ignore, Value class_weight = {});

}  // namespace convoy
