#include "nets/backbones/resnet.h"

namespace convoy {

namespace {

ConvOptions kaiming(const ConvOptions& options) {
  return options.with_init(ConvInit::kKaimingFanOut);
}

std::array<int, 4> blocks_per_stage(const std::string& name) {
  if (name == "resnet18") return {2, 2, 2, 2};
  if (name == "resnet34") return {3, 4, 6, 3};
  fail("there is no backbone '{}' yet; use resnet18 or resnet34", name);
}

struct Stage {
  int64_t stride, dilation;
};

std::array<Stage, 4> stages_for(int64_t output_stride) {
  switch (output_stride) {
    case 32:
      return {{{1, 1}, {2, 1}, {2, 1}, {2, 1}}};
    case 16:
      return {{{1, 1}, {2, 1}, {2, 1}, {1, 2}}};
    case 8:
      return {{{1, 1}, {2, 1}, {1, 2}, {1, 4}}};
    default:
      fail("a ResNet has output stride 8, 16 or 32, not {}", output_stride);
  }
}

}  // namespace

BasicBlock::BasicBlock(const Scope& s, int64_t in, int64_t out, int64_t stride, int64_t dilation1, int64_t dilation2)
    : conv1_(s / "conv1", in, out, kaiming(ConvOptions::square(3, stride, dilation1, dilation1))),
      bn1_(s / "bn1", out),
      conv2_(s / "conv2", out, out, kaiming(ConvOptions::square(3, 1, dilation2, dilation2))),
      bn2_(s / "bn2", out) {
  if (stride == 1 && in == out) return;
  downsample_conv_.emplace(s / "downsample" / 0, in, out, kaiming(ConvOptions::square(1, stride)));
  downsample_bn_.emplace(s / "downsample" / 1, out);
}

Value BasicBlock::operator()(Builder& b, Value x) const {
  const Value y = bn2_(b, conv2_(b, relu(bn1_(b, conv1_(b, x)))));
  const Value shortcut = downsample_conv_ ? (*downsample_bn_)(b, (*downsample_conv_)(b, x)) : x;
  return relu(add(y, shortcut));
}

ResNet::ResNet(const Scope& s, const std::string& name, int64_t output_stride, double width)
    : channels_([&] {
        std::array<int64_t, 4> c{64, 128, 256, 512};
        for (int64_t& channels : c) channels = static_cast<int64_t>(static_cast<double>(channels) * width);
        return c;
      }()),
      conv1_(s / "conv1", 3, channels_[0], kaiming(ConvOptions::square(7, 2, 3))),
      bn1_(s / "bn1", channels_[0]) {
  const auto counts = blocks_per_stage(name);
  const auto stages = stages_for(output_stride);
  int64_t in = channels_[0];
  for (size_t i = 0; i < 4; ++i) {
    const int64_t out = channels_[i], dilation = stages[i].dilation;
    for (int k = 0; k < counts[i]; ++k) {
      const int64_t first_dilation = k > 0 ? dilation : dilation == 4 ? 2 : 1;
      stages_[i].emplace_back(s / ("layer" + std::to_string(i + 1)) / k, in, out, k == 0 ? stages[i].stride : 1,
                              first_dilation, dilation);
      in = out;
    }
  }
  register_linear(s / "fc", channels_[3], 1000);
}

Features ResNet::operator()(Builder& b, Value x) const {
  x = relu(bn1_(b, conv1_(b, x)));
  x = max_pool2d(x, {.kernel_h = 3, .kernel_w = 3, .stride_h = 2, .stride_w = 2, .pad_h = 1, .pad_w = 1}).first;
  std::array<Value, 4> c;
  for (size_t i = 0; i < 4; ++i) {
    for (const BasicBlock& block : stages_[i]) x = block(b, x);
    c[i] = x;
  }
  return {c[0], c[1], c[2], c[3]};
}

}  // namespace convoy
