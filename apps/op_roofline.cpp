#include "apps/op_roofline.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "apps/op_shapes.h"
#include "kernels/optimizer.h"

namespace convoy {

namespace {

constexpr double kH100Bytes = 3.35e12, kH200Bytes = 4.8e12, kFlops = 67e12, kTensorFlops = 989e12;
constexpr OpSetOptions kSize = {.network = {.name = ""}, .height = 128, .width = 256, .batch = 8};

/// Sums of many products, which tensor cores take in bf16.
bool is_matrix_work(const OpShape& shape) {
  if (!shape.op.starts_with("conv2d") || shape.op == "conv2d_backward_bias") return false;
  return shape.attrs.find("groups=64") == std::string::npos;
}

std::string row(const std::string& name, const std::string& shape, double bytes, double flops, double element_share,
                double peak) {
  const double work = std::max(bytes, 1.0) * element_share;
  const auto microseconds = [&](double bandwidth) { return std::max(work / bandwidth, flops / peak) * 1e6; };
  const auto bound = [&](double bandwidth) { return work / bandwidth > flops / peak ? "memory" : "arithmetic"; };
  const std::string on_h100 = bound(kH100Bytes), on_h200 = bound(kH200Bytes);
  return fmt::format("| {} | {} | {:.2f} | {:.3f} | {:.2f} | {:.2f} | {} |\n", name, shape, work / 1e6, flops / 1e9,
                     microseconds(kH100Bytes), microseconds(kH200Bytes),
                     on_h100 == on_h200 ? on_h100 : on_h100 + ", H200 " + on_h200);
}

constexpr const char* kHead =
    "| operator | attributes and shapes | MB | GFLOP | H100 us | H200 us | bound by |\n|---|---|---|---|---|---|---|\n";

}  // namespace

std::string roofline_document() {
  Context context({.device = DeviceKind::kEmulated});
  const OpSet set(context, kSize);
  std::string text =
      "# Roofline of the CUDA kernels\n\n"
      "**Predictions, not measurements: nothing here was timed on a GPU.** A time is the larger of bytes / bandwidth "
      "and\n"
      "FLOPs / peak; what a kernel takes beyond that (latency of launches, few blocks, caches that miss) is not in "
      "it.\n"
      "Bytes are those of every operand once (`cost_of`, engine/op.h). Peaks: H100 3.35 TB/s, H200 4.8 TB/s, both\n"
      "67 TFLOP/s in fp32 and 989 TFLOP/s in bf16 on tensor cores (dense). Written by `convoy bench op --roofline "
      "FILE`;\n"
      "`convoy bench op` measures the same rows where there is a device.\n\n";
  text += fmt::format("Feature map: batch {}, 64 channels, {} x {}. nhwc: channels last, padded to 8.\n\n", kSize.batch,
                      kSize.height, kSize.width);
  text += "## fp32\n\n" + std::string(kHead);
  std::vector<OpShape> shapes = set.shapes();
  std::stable_sort(shapes.begin(), shapes.end(), [](const OpShape& a, const OpShape& b) { return a.op < b.op; });
  const auto what = [](const OpShape& s) { return s.id.substr(s.op.size() + 1); };
  for (const OpShape& s : shapes) text += row(s.op, what(s), s.cost.bytes, s.cost.flops, 1, kFlops);
  constexpr double kParameters = 25.6e6;
  const auto update = [&](const char* name, double bytes, double flops) {
    return row(name, "25.6 M parameters, as ResNet-50 has", kParameters * bytes, kParameters * flops, 1, kFlops);
  };
  text += update("update_parameters (sgd)", 20, 6) + update("update_parameters (adam, rmsprop, adadelta)", 28, 15) +
          update("update_parameters (adam, with a bf16 copy)", 30, 15) + update("sum_of_squares", 4, 2) +
          update("all_finite", 4, 2);
  text +=
      "\n## bf16: what tensor cores could do of convolutions\n\nHalf the bytes; the peak is that of tensor cores. None "
      "of our kernels uses them: this is what a vendor's library is to reach.\n\n" +
      std::string(kHead);
  for (const OpShape& s : shapes)
    if (is_matrix_work(s)) text += row(s.op, what(s), s.cost.bytes, s.cost.flops, 0.5, kTensorFlops);
  if (!set.missing().empty()) {
    text += "\n## Cases without a kernel on devices\n\n";
    for (const std::string& name : set.missing()) text += "- " + name + "\n";
  }
  return text;
}

}  // namespace convoy
