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

std::string TorchCall::real(const std::string& key) const {
  return python_real(node().attrs.real(key));
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

/// NAME(input 0, input 1, ...): a function of torch_python.cpp, or one of PyTorch's own.
template <const char* kName>
std::string write_function(TorchCall& c) {
  std::string arguments;
  for (int i = 0; i < c.inputs(); ++i) arguments += (i ? ", " : "") + c.input(i);
  return fmt::format("{}({})", kName, arguments);
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

constexpr char kCaWeight[] = "ca_weight", kCaMap[] = "ca_map", kPositionAttention[] = "position_attention",
               kChannelAttention[] = "channel_attention", kEncoding[] = "encnet_encoding";

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
    {"dropout", write_dropout},
    {"label_weight_sum", write_label_weight_sum},
    {"softmax_ce", write_softmax_ce},
};

}  // namespace

const std::map<std::string, TorchForm>& torch_forms() {
  return kForms;
}

bool output_is_free(const std::string& op) {
  static const std::set<std::string> free = {"conv2d", "bn_apply", "add", "concat"};
  return free.contains(op);
}

}  // namespace convoy
