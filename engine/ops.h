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

struct ConvTranspose2dOptions {
  Conv2dOptions geometry;
  int64_t output_pad_h = 0, output_pad_w = 0;  ///< rows and columns added at the end, fewer than the stride
};
/// Transposed convolution: the gradient of a convolution with respect to its input. weight (C, K/groups, kh, kw), bias
/// (K) or empty; height (H - 1) stride - 2 pad + dilation (kh - 1) + 1 + output_pad.
Value conv_transpose2d(Value x, Value weight, Value bias, const ConvTranspose2dOptions& options = {});

struct Conv1dOptions {
  int64_t stride = 1, pad = 0, dilation = 1, groups = 1;
};
/// Cross-correlation of x (N,C,L). weight (K, C/groups, k), bias (K) or empty.
Value conv1d(Value x, Value weight, Value bias, const Conv1dOptions& options = {});
/// x (N,C) times the transpose of weight (K,C), plus bias (K) where there is one.
Value linear(Value x, Value weight, Value bias);

/// Per-channel mean and biased variance over n, h, w. Throws Error when there are fewer than two values per channel.
std::pair<Value, Value> bn_stats(Value x);
/// Moves running_mean and running_var (unbiased) towards the batch's by `momentum` and counts the batch. An effect.
Value bn_update_running(Value x, Value mean, Value var, Value running_mean, Value running_var,
                        Value num_batches_tracked, double momentum);
/// (x - mean) / sqrt(var + eps) * weight + bias. `batch_statistics`: mean and var came from bn_stats(x), and the
/// gradient goes through them; otherwise they are constants.
Value bn_apply(Value x, Value mean, Value var, Value weight, Value bias, double eps, bool batch_statistics);

/// (x - mean) / sqrt(var + eps) * weight + bias with mean and biased variance of each image and group of C/groups
/// channels.
Value group_norm(Value x, Value weight, Value bias, int64_t groups, double eps = 1e-5);
/// x / (sqrt(sum over c of x^2) + eps) * weight, weight (C): SSD's normalisation.
Value l2_norm(Value x, Value weight, double eps = 1e-10);

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

/// x where x > 0, else slope * x. Any shape.
Value leaky_relu(Value x, double slope = 0.01);
/// x * relu6(x + 3) / 6. Any shape.
Value hardswish(Value x);
/// x where x > 0, else slope * x; slope (C) or (1).
Value prelu(Value x, Value slope);
/// Over the channels (dim 1) of an image, or over the last dimension of a value of any rank.
Value softmax(Value x, int dim);
Value log_softmax(Value x, int dim);

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
/// z at the places of a (out_h, out_w) map that index, of max_pool2d, gives for each; zero elsewhere. The last one
/// counts where several have the same place. The step throws Error when an index lies outside of the map.
Value max_unpool2d(Value z, Value index, int64_t out_h, int64_t out_w);
Value avg_pool2d(Value x, const PoolOptions& options);
/// PyTorch's bins: floor(i*H/O) up to ceil((i+1)*H/O), so they may overlap.
Value adaptive_avg_pool2d(Value x, int64_t out_h, int64_t out_w);
inline Value global_avg_pool(Value x) {
  return adaptive_avg_pool2d(x, 1, 1);
}

/// Bilinear resize to a size.
Value resize_bilinear(Value x, int64_t out_h, int64_t out_w, bool align_corners = true);
Value resize_nearest(Value x, int64_t out_h, int64_t out_w);
/// Resizes to floor(H * factor_h), floor(W * factor_w); coordinates go by the factors, not by the sizes.
Value resize_bilinear_by(Value x, double factor_h, double factor_w, bool align_corners = true);
Value resize_nearest_by(Value x, double factor_h, double factor_w);
/// Labels (N,H,W) i32 mixed bilinearly (align_corners) as float32 numbers, the ignore label too, and truncated toward
/// zero: (N,out_h,out_w) i32. What ICNet's loss does.
Value label_resize(Value labels, int64_t out_h, int64_t out_w);

/// x at the places of grid (N,OH,OW,2), x before y, -1..1 over the image: (N,C,OH,OW). Bilinear, or the nearest pixel;
/// zero outside. Gradients go to x and grid.
Value grid_sample(Value x, Value grid, bool align_corners, bool nearest = false);

/// Channels to pixels: y[c, h*factor + a, w*factor + b] = x[(c*factor + a)*factor + b, h, w].
Value pixel_shuffle(Value x, int64_t factor);
/// Data-dependent upsampling: a 1x1 convolution with weight (K*factor*factor, C, 1, 1), whose channel
/// (a*factor + b)*K + k becomes channel k at row offset a, column offset b.
Value dupsampling(Value x, Value weight, int64_t factor);
/// Channel i*(C/groups) + j becomes channel j*groups + i.
Value channel_shuffle(Value x, int64_t groups);

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

struct FocalOptions {
  double alpha = 0.5, gamma = 2;
};
/// The focal loss of each pixel, alpha (1-p)^gamma -log p (Lin et al. 2017, eq. 5), in place of -log p; the rest as
/// above, the fused resize too.
Value focal_cross_entropy(Value logits, Value target, Value normalizer, const FocalOptions& options, int64_t ignore,
                          Value class_weight = {});
/// alpha (1-p)^gamma -log p of the p whose -log is a mean cross entropy, a lane's share of it: `part` is that lane's
/// part of `mean`. Gradient to `part` alone, that of the whole.
Value focal_of_mean(Value part, Value mean, const FocalOptions& options);

/// Probability (N,H,W) that softmax gives to each pixel's class; kNoProbability (kernels/softmax_ce.h) where the target
/// is none. No gradient. Fused with a bilinear resize in front.
Value label_probability(Value logits, Value target, int64_t ignore);
/// Online hard example mining over the global batch: (threshold, 1 where all are kept, else 0). A pixel counts as hard
/// whose probability is at most the threshold: max(thresh, the min_kept-th smallest probability), or 1 (all are kept)
/// where fewer than min_kept pixels have a class.
std::pair<Value, Value> hard_threshold(Value probability, double thresh, int64_t min_kept);
/// target with the label `ignore` where the probability is above the threshold.
Value keep_hard_labels(Value target, Value probability, Value threshold, int64_t ignore);

/// Mean over the images of the global batch, and over all classes, of 1 - (2 sum p t + smooth) / (sum p^2 + sum t +
/// smooth), the soft Dice loss of V-Net (Milletari et al. 2016, eq. 3), over pixels that have a label; a lane's part of
/// it. logits (N,C,H,W), target (N,H,W). With label_counts (C) of the batch only classes up to the last that has labels
/// count.
Value dice_loss(Value logits, Value target, int64_t ignore, double smooth = 1, Value label_counts = {});
/// Lovasz-Softmax (Berman et al. 2018) over the classes that the labels have: mean over the images of the global batch,
/// a lane's part of it; or that of the batch as a whole, which throws Error where the batch is divided.
Value lovasz_softmax_loss(Value logits, Value target, int64_t ignore, bool per_image = true);

/// scale * sum over all elements of the cross entropy of sigmoid(x) with target in [0,1]; equal shapes.
Value bce_with_logits(Value x, Value target, double scale);
/// scale * sum over all elements of d^2/(2 beta), |d| - beta/2 beyond beta; d = x - target; equal shapes.
Value smooth_l1(Value x, Value target, double beta, double scale);
/// How many labels of target (N,H,W) are of each class: (C).
Value label_counts(Value target, int64_t classes);
/// 1 where an image has the class, else 0: (N,C).
Value class_presence(Value target, int64_t classes);

struct MultiboxOptions {
  double negatives_per_positive = 3;
  int64_t negatives_without_positives = 100;  ///< where no image of the global batch has a positive
  double alpha = 1;                           ///< weight of the offsets
};
/// The loss of SSD (Liu et al. 2016, section 2.2): smooth L1 of the positives' offsets and cross entropy of positives
/// and of the hardest negatives, those of the largest probability of any class but background. Their number is summed
/// over images and they are chosen from all images of the global batch (equal ones in the order of images and anchors);
/// divided by the number of positives, an image without any counting one. A lane's part of it. loc, boxes (N,A,4), conf
/// (N,A,C), classes (N,A) i32, 0 is the background.
Value multibox_loss(Value loc, Value conf, Value boxes, Value classes, const MultiboxOptions& options = {});

}  // namespace convoy
