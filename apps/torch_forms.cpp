#include "apps/torch_forms.h"

#include <fmt/format.h>

#include <cmath>
#include <set>

#include "engine/error.h"
#include "kernels/activation.h"

namespace convoy {

std::string python_real(double value) {
  if (std::isnan(value)) return "math.nan";
  if (std::isinf(value)) return value < 0 ? "-math.inf" : "math.inf";
  return fmt::format("{}", value);
}

std::string TorchCall::pair(const std::string& name, const std::string& height, const std::string& width,
                            int64_t default_value) const {
  const int64_t h = literal(height), w = literal(width);
  if (h == default_value && w == default_value) return {};
  return h == w ? fmt::format(", {}={}", name, h) : fmt::format(", {}=({}, {})", name, h, w);
}

namespace {

std::string write_conv2d(TorchCall& c) {
  return fmt::format("F.conv2d({}, {}{}{}{}{}{})", c.input(0), c.input(1), c.inputs() > 2 ? ", " + c.input(2) : "",
                     c.pair("stride", "stride_h", "stride_w", 1), c.pair("padding", "pad_h", "pad_w", 0),
                     c.pair("dilation", "dilation_h", "dilation_w", 1),
                     c.literal("groups") == 1 ? "" : fmt::format(", groups={}", c.literal("groups")));
}

std::string write_batch_norm(TorchCall& c) {
  return fmt::format("batch_norm({}, {}, {})", c.input(0), c.norm_arguments(), c.real("eps"));
}

std::string write_activation(TorchCall& c) {
  const auto kind = static_cast<Activation>(c.literal("act"));
  const char* in_place = c.may_overwrite(0) ? ", inplace=True" : "";
  switch (kind) {
    case Activation::kNone:
      return c.input(0);
    case Activation::kRelu:
      return fmt::format("F.relu({}{})", c.input(0), in_place);
    case Activation::kRelu6:
      return fmt::format("F.relu6({}{})", c.input(0), in_place);
    case Activation::kSigmoid:
      return fmt::format("torch.sigmoid({})", c.input(0));
  }
  fail("activation {} has no form in PyTorch yet (apps/torch_forms.cpp)", c.literal("act"));
}

std::string write_max_pool(TorchCall& c) {
  return fmt::format("F.max_pool2d({}{}{}{}{}{})", c.input(0), c.pair("kernel_size", "kernel_h", "kernel_w", 0),
                     c.pair("stride", "stride_h", "stride_w", 0), c.pair("padding", "pad_h", "pad_w", 0),
                     c.flag("ceil") ? ", ceil_mode=True" : "", c.reads(1) ? ", return_indices=True" : "");
}

std::string write_avg_pool(TorchCall& c) {
  return fmt::format("F.avg_pool2d({}, {}, stride={}{}{}{})", c.input(0), c.size("kernel_h", "kernel_w"),
                     c.size("stride_h", "stride_w"), c.pair("padding", "pad_h", "pad_w", 0),
                     c.flag("ceil") ? ", ceil_mode=True" : "",
                     c.flag("include_pad") ? "" : ", count_include_pad=False");
}

std::string write_concat(TorchCall& c) {
  std::string parts;
  for (int i = 0; i < c.inputs(); ++i) parts += (i ? ", " : "") + c.input(i);
  return fmt::format("torch.cat(({}), 1)", parts);
}

/// FUNCTION(input 0, input 1, ..., more).
std::string call(TorchCall& c, const std::string& function, const std::string& more = "") {
  std::string arguments;
  for (int i = 0; i < c.inputs(); ++i) arguments += (i ? ", " : "") + c.input(i);
  return fmt::format("{}({}{}{})", function, arguments, more.empty() ? "" : ", ", more);
}

/// As the function of that name.
template <const char* kName>
std::string write_function(TorchCall& c) {
  return call(c, kName);
}

std::string write_slice(TorchCall& c) {
  const int64_t first = c.literal("first");
  return fmt::format("{}[:, {}:{}]", c.input(0), first, first + c.literal("count"));
}

std::string write_dropout(TorchCall& c) {
  return fmt::format("F.dropout{}({}, {}, self.training and self.dropout)", c.flag("whole_channels") ? "2d" : "",
                     c.input(0), c.real("p"));
}

std::string write_label_weight_sum(TorchCall& c) {
  const std::string labelled = fmt::format("({} != {})", c.input(0), c.literal("ignore"));
  if (c.inputs() == 1) return labelled + ".sum()";
  return fmt::format("{}[{}[{}]].sum()", c.input(1), c.input(0), labelled);
}

// Without labels the sum is zero, and so is the loss.
std::string write_softmax_ce(TorchCall& c) {
  return fmt::format("F.cross_entropy({}, {}{}, ignore_index={}, reduction=\"sum\") / torch.where({} == 0, 1, {})",
                     c.input(0), c.input(1), c.inputs() > 3 ? ", " + c.input(3) : "", c.literal("ignore"), c.input(2),
                     c.input(2));
}

std::string write_conv_transpose(TorchCall& c) {
  return call(
      c, "F.conv_transpose2d",
      fmt::format("stride={}, padding={}, output_padding={}, groups={}, dilation={}", c.size("stride_h", "stride_w"),
                  c.size("pad_h", "pad_w"), c.size("output_pad_h", "output_pad_w"), c.literal("groups"),
                  c.size("dilation_h", "dilation_w")));
}

std::string write_resize_by(TorchCall& c, const char* mode) {
  return fmt::format("F.interpolate({}, scale_factor=({}, {}){})", c.input(0), c.real("factor_h"), c.real("factor_w"),
                     mode);
}

std::string write_grid_sample(TorchCall& c) {
  return fmt::format("F.grid_sample({}, {}, mode=\"{}\", align_corners={})", c.input(0), c.input(1),
                     c.flag("nearest") ? "nearest" : "bilinear", c.flag("align_corners") ? "True" : "False");
}

// Order 0 is that of pixel_shuffle; else a pixel's place in the square is the slow part of the channel.
std::string write_depth_to_space(TorchCall& c) {
  return fmt::format("{}({}, {})", c.literal("order") == 0 ? "F.pixel_shuffle" : "spread_corners", c.input(0),
                     c.literal("r"));
}

std::string write_space_to_depth(TorchCall& c) {
  return fmt::format("{}({}, {})", c.literal("order") == 0 ? "F.pixel_unshuffle" : "gather_corners", c.input(0),
                     c.literal("r"));
}

std::string write_focal(TorchCall& c) {
  return call(c, "focal_cross_entropy",
              fmt::format("alpha={}, gamma={}, ignore={}", c.real("alpha"), c.real("gamma"), c.literal("ignore")));
}

std::string write_hard_threshold(TorchCall& c) {
  return fmt::format("hard_threshold({}, {}, {}){}", c.input(0), c.real("thresh"), c.literal("min_kept"),
                     c.reads(1) ? "" : "[0]");
}

std::string write_lovasz(TorchCall& c) {
  return fmt::format("lovasz_softmax({}, {}, {}, {})", c.input(0), c.input(1), c.literal("ignore"),
                     c.flag("per_image") ? "True" : "False");
}

constexpr char kCaWeight[] = "ca_weight", kCaMap[] = "ca_map", kPositionAttention[] = "position_attention",
               kChannelAttention[] = "channel_attention", kEncoding[] = "encnet_encoding", kHardswish[] = "F.hardswish",
               kPrelu[] = "F.prelu";

const std::map<std::string, TorchForm> kForms = {
    {"conv2d", write_conv2d},
    {"bn_apply", write_batch_norm},
    {"activation", write_activation},
    {"add", [](TorchCall& c) { return c.input(0) + " + " + c.input(1); }},
    {"mul", [](TorchCall& c) { return c.input(0) + " * " + c.input(1); }},
    {"scale", [](TorchCall& c) { return c.input(0) + " * " + c.real("factor"); }},
    {"scale_by", [](TorchCall& c) { return c.input(0) + " * " + c.input(1); }},
    {"mul_channel", [](TorchCall& c) { return c.input(0) + " * " + c.input(1); }},
    {"dot", [](TorchCall& c) { return fmt::format("({} * {}).sum()", c.input(0), c.input(1)); }},
    {"max_pool2d", write_max_pool},
    {"avg_pool2d", write_avg_pool},
    {"adaptive_avg_pool2d",
     [](TorchCall& c) { return fmt::format("F.adaptive_avg_pool2d({}, {})", c.input(0), c.size("out_h", "out_w")); }},
    {"resize_bilinear",
     [](TorchCall& c) {
       return fmt::format("F.interpolate({}, size={}, mode=\"bilinear\", align_corners={})", c.input(0),
                          c.size("h", "w"), c.flag("align_corners") ? "True" : "False");
     }},
    {"resize_nearest",
     [](TorchCall& c) { return fmt::format("F.interpolate({}, size={})", c.input(0), c.size("h", "w")); }},
    {"reshape", [](TorchCall& c) { return fmt::format("{}.reshape({})", c.input(0), c.output_shape(0)); }},
    {"concat", write_concat},
    {"slice_channels", write_slice},
    {"ca_weight", write_function<kCaWeight>},
    {"ca_map", write_function<kCaMap>},
    {"position_attention", write_function<kPositionAttention>},
    {"channel_attention", write_function<kChannelAttention>},
    {"encnet_encoding", write_function<kEncoding>},
    {"conv_transpose2d", write_conv_transpose},
    {"group_norm",
     [](TorchCall& c) {
       return fmt::format("F.group_norm({}, {}, {}, {}, {})", c.input(0), c.literal("groups"), c.input(1), c.input(2),
                          c.real("eps"));
     }},
    {"l2_norm", [](TorchCall& c) { return call(c, "l2_norm", c.real("eps")); }},
    {"leaky_relu", [](TorchCall& c) { return call(c, "F.leaky_relu", c.real("slope")); }},
    {"hardswish", write_function<kHardswish>},
    {"prelu", write_function<kPrelu>},
    {"softmax",
     [](TorchCall& c) {
       return call(c, c.flag("log") ? "torch.log_softmax" : "torch.softmax", std::to_string(c.literal("dim")));
     }},
    {"max_unpool2d", [](TorchCall& c) { return call(c, "max_unpool2d", c.integer("h") + ", " + c.integer("w")); }},
    {"resize_bilinear_by", [](TorchCall& c) { return write_resize_by(c, ", mode=\"bilinear\", align_corners=False"); }},
    {"resize_nearest_by", [](TorchCall& c) { return write_resize_by(c, ""); }},
    {"label_resize", [](TorchCall& c) { return call(c, "label_resize", c.size("h", "w")); }},
    {"grid_sample", write_grid_sample},
    {"depth_to_space", write_depth_to_space},
    {"space_to_depth", write_space_to_depth},
    {"channel_shuffle",
     [](TorchCall& c) { return call(c, "torch.channel_shuffle", std::to_string(c.literal("groups"))); }},
    {"dropout", write_dropout},
    {"label_weight_sum", write_label_weight_sum},
    {"softmax_ce", write_softmax_ce},
    {"focal_ce", write_focal},
    // A graph of one process has the same value for the part and the whole.
    {"focal_of_mean",
     [](TorchCall& c) {
       return fmt::format("{} * (-torch.expm1(-{})) ** {} * {}", c.real("alpha"), c.input(0), c.real("gamma"),
                          c.input(0));
     }},
    {"label_probability",
     [](TorchCall& c) { return call(c, "label_probability", std::to_string(c.literal("ignore"))); }},
    {"hard_threshold", write_hard_threshold},
    {"keep_hard_labels",
     [](TorchCall& c) {
       return fmt::format("{}.masked_fill({} > {}, {})", c.input(0), c.input(1), c.input(2), c.literal("ignore"));
     }},
    {"dice_loss",
     [](TorchCall& c) {
       return call(c, "dice_loss", fmt::format("ignore={}, smooth={}", c.literal("ignore"), c.real("smooth")));
     }},
    {"lovasz_loss", write_lovasz},
    {"bce_with_logits",
     [](TorchCall& c) {
       return fmt::format("F.binary_cross_entropy_with_logits({}, {}.to({}.dtype), reduction=\"sum\") * ({})",
                          c.input(0), c.input(1), c.input(0), c.real("scale"));
     }},
    {"smooth_l1",
     [](TorchCall& c) {
       return fmt::format("F.smooth_l1_loss({}, {}, beta={}, reduction=\"sum\") * ({})", c.input(0), c.input(1),
                          c.real("beta"), c.real("scale"));
     }},
    {"label_counts",
     [](TorchCall& c) { return call(c, "has_label", std::to_string(c.literal("classes"))) + ".sum((0, 1, 2))"; }},
    {"class_presence",
     [](TorchCall& c) { return call(c, "has_label", std::to_string(c.literal("classes"))) + ".flatten(1, 2).any(1)"; }},
};

}  // namespace

const std::map<std::string, TorchForm>& torch_forms() {
  return kForms;
}

bool output_is_free(const std::string& op) {
  static const std::set<std::string> free = {"conv2d", "conv_transpose2d", "bn_apply", "add", "concat"};
  return free.contains(op);
}

}  // namespace convoy
