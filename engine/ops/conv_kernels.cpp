#include "engine/ops/conv_kernels.h"

#include <optional>

#include "engine/context.h"
#include "kernels/conv2d_onednn.h"
#include "kernels/depthwise.h"

namespace convoy {

namespace {

using Direction = ConvCall::Direction;

bool is_depthwise(const ConvCall& c) {
  return c.params.groups > 1 && c.params.groups == c.x.c && c.y.c == c.x.c && c.x.layout != Layout::kNchw &&
         c.kernel_h * c.kernel_w <= kMaxDepthwiseTaps;
}

const float* bias_of(const KernelArgs& a) {
  return a.in.size() > 2 ? a.in[2].f32() : nullptr;
}
float* workspace_of(const KernelArgs& a) {
  return static_cast<float*>(a.workspace);
}

Kernel depthwise_kernel(const ConvCall& c, bool on_device) {
  const Conv2dParams p = c.params;
  const int64_t kh = c.kernel_h, kw = c.kernel_w;
  Kernel kernel{.run = {}, .implementation = "depthwise"};
  switch (c.direction) {
    case Direction::kForward:
      kernel.run = [=](const KernelArgs& a) {
        CONVOY_KERNEL(a, depthwise, a.in[0], a.in[1].f32(), kh, kw, bias_of(a), p, a.out[0]);
      };
      break;
    case Direction::kBackwardData:
      kernel.run = [=](const KernelArgs& a) {
        CONVOY_KERNEL(a, depthwise_backward_data, a.in[0], a.in[1].f32(), kh, kw, p, a.out[0]);
      };
      break;
    case Direction::kBackwardWeights:
      kernel.workspace_bytes =
          on_device ? emulated::depthwise_cuda_workspace_bytes(c.y, kh, kw) : depthwise_workspace_bytes(c.y, kh, kw);
      kernel.run = [=](const KernelArgs& a) {
        CONVOY_KERNEL(a, depthwise_backward_weights, a.in[0], a.in[1], kh, kw, p, a.out[0].f32(), workspace_of(a));
      };
      break;
  }
  return kernel;
}

Kernel direct_kernel_on_cpu(const ConvCall& c) {
  const Conv2dParams p = c.params;
  const int64_t kh = c.kernel_h, kw = c.kernel_w;
  Kernel kernel{.run = {}, .implementation = "direct"};
  switch (c.direction) {
    case Direction::kForward:
      kernel.run = [=](const KernelArgs& a) {
        CONVOY_CPU(conv2d_direct, a.in[0], a.in[1].f32(), kh, kw, bias_of(a), p, a.out[0]);
      };
      break;
    case Direction::kBackwardData:
      kernel.run = [=](const KernelArgs& a) {
        CONVOY_CPU(conv2d_direct_backward_data, a.in[0], a.in[1].f32(), kh, kw, p, a.out[0]);
      };
      break;
    case Direction::kBackwardWeights:
      kernel.run = [=](const KernelArgs& a) {
        CONVOY_CPU(conv2d_direct_backward_weights, a.in[0], a.in[1], kh, kw, p, a.out[0].f32());
      };
      break;
  }
  return kernel;
}

Kernel direct_kernel_on_device(const ConvCall& c) {
  const Conv2dParams p = c.params;
  const int64_t kh = c.kernel_h, kw = c.kernel_w;
  Kernel kernel{.run = {}, .implementation = "direct"};
  switch (c.direction) {
    case Direction::kForward:
      kernel.workspace_bytes = emulated::conv2d_direct_cuda_workspace_bytes(c.x, c.y, kh, kw, p.groups);
      kernel.run = [=](const KernelArgs& a) {
        CONVOY_CUDA(a, conv2d_direct, a.in[0], a.in[1].f32(), kh, kw, bias_of(a), p, a.out[0], workspace_of(a));
      };
      break;
    case Direction::kBackwardData:
      kernel.workspace_bytes = emulated::conv2d_direct_cuda_workspace_bytes(c.y, c.x, kh, kw, p.groups);
      kernel.run = [=](const KernelArgs& a) {
        CONVOY_CUDA(a, conv2d_direct_backward_data, a.in[0], a.in[1].f32(), kh, kw, p, a.out[0], workspace_of(a));
      };
      break;
    case Direction::kBackwardWeights:
      kernel.workspace_bytes = emulated::conv2d_direct_weights_cuda_workspace_bytes(c.x, c.y, kh, kw, p);
      kernel.run = [=](const KernelArgs& a) {
        CONVOY_CUDA(a, conv2d_direct_backward_weights, a.in[0], a.in[1], kh, kw, p, a.out[0].f32(), workspace_of(a));
      };
      break;
  }
  return kernel;
}

OneDnnConv::Direction onednn_direction(Direction d) {
  return d == Direction::kForward        ? OneDnnConv::Direction::kForward
         : d == Direction::kBackwardData ? OneDnnConv::Direction::kBackwardData
                                         : OneDnnConv::Direction::kBackwardWeights;
}

std::optional<Kernel> onednn_kernel(const ConvCall& c, int threads) {
  const std::shared_ptr<OneDnnConv> conv =
      OneDnnConv::create(onednn_direction(c.direction), c.x, c.y, c.kernel_h, c.kernel_w, c.params, c.bias, threads);
  if (!conv) return std::nullopt;
  Kernel kernel{.run = {}, .workspace_bytes = conv->workspace_bytes(), .implementation = conv->implementation()};
  switch (c.direction) {
    case Direction::kForward:
      kernel.run = [=](const KernelArgs& a) {
        conv->forward(a.in[0].f32(), a.in[1].f32(), bias_of(a), a.out[0].f32(), a.workspace);
      };
      break;
    case Direction::kBackwardData:
      kernel.run = [=](const KernelArgs& a) {
        conv->backward_data(a.in[0].f32(), a.in[1].f32(), a.out[0].f32(), a.workspace);
      };
      break;
    case Direction::kBackwardWeights:
      kernel.run = [=](const KernelArgs& a) {
        conv->backward_weights(a.in[0].f32(), a.in[1].f32(), a.out[0].f32(), a.workspace);
      };
      break;
  }
  return kernel;
}

/// None where the device's vendor has no library that we use, or none for this shape.
std::optional<Kernel> vendor_kernel(const ConvCall& c, const Context& context) {
  if (context.options().device == DeviceKind::kCpu) return onednn_kernel(c, context.threads());
  return std::nullopt;
}

}  // namespace

Kernel conv_kernel(const ConvCall& c, const Context& context) {
  const bool on_device = context.options().device != DeviceKind::kCpu;
  if (is_depthwise(c)) return depthwise_kernel(c, on_device);
  if (!context.options().direct_conv)
    if (std::optional<Kernel> vendors = vendor_kernel(c, context)) return *std::move(vendors);
  return on_device ? direct_kernel_on_device(c) : direct_kernel_on_cpu(c);
}

}  // namespace convoy
