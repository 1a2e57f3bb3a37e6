#include "nets/heads/aspp.h"

namespace convoy {

Aspp::Aspp(const Scope& s, int64_t in, int64_t out, const std::array<int64_t, 3>& rates)
    : path_(s.path),
      conv1x1_(s / "aspp0", in, out, ConvOptions::square(1)),
      dilated_([&] {
        std::vector<SeparableConv> convs;
        for (size_t i = 0; i < rates.size(); ++i)
          convs.emplace_back(s / ("aspp" + std::to_string(i + 1)), in, out, SeparableConvOptions{.dilation = rates[i]});
        return convs;
      }()),
      image_pooling_(s / "image_pooling", in, out, ConvOptions::square(1)),
      project_(s, out * static_cast<int64_t>(rates.size() + 2), out, ConvOptions::square(1)) {}

Value Aspp::operator()(Builder& b, Value x) const {
  std::vector<Value> parts{resize_to(image_pooling_(b, global_avg_pool(x)), x), conv1x1_(b, x)};
  for (const SeparableConv& conv : dilated_) parts.push_back(conv(b, x));
  return dropout(b, path_ + ".dropout", project_(b, concat(parts)), 0.1, true);
}

std::array<int64_t, 3> aspp_rates(int64_t output_stride) {
  return output_stride == 8 ? std::array<int64_t, 3>{12, 24, 36} : std::array<int64_t, 3>{6, 12, 18};
}

}  // namespace convoy
