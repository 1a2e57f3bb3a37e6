#include "apps/predictor.h"

#include <algorithm>

#include "kernels/metrics.h"

namespace convoy {

struct Predictor::Entry {
  Shape shape;
  std::unique_ptr<Graph> graph;
  std::unique_ptr<Session> session;
  std::vector<float> input;  ///< (N,3,H,W)
};

Predictor::Predictor(Context& context, ParamStore& store, const Network& network, const Normalization& normalization)
    : context_(context), store_(store), network_(network), normalization_(normalization) {}

Predictor::~Predictor() = default;

Predictor::Entry& Predictor::entry_for(const Shape& input) {
  const auto found = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& e) { return e.shape == input; });
  if (found != entries_.end()) {
    entries_.splice(entries_.begin(), entries_, found);
    return entries_.front();
  }
  if (entries_.size() == kKept) entries_.pop_back();  // first, so that its memory serves the new one
  Entry entry{.shape = input, .graph = std::make_unique<Graph>(context_, store_)};
  Builder builder{*entry.graph, Mode::kEval};
  const auto outputs = network_.forward(builder, entry.graph->input("image", DType::kF32, input));
  entry.session = std::make_unique<Session>(*entry.graph, std::vector<Value>{outputs[0].value});
  entry.input.resize(static_cast<size_t>(input.count()));
  entries_.push_front(std::move(entry));
  return entries_.front();
}

std::vector<LabelMap> Predictor::predict(std::span<const Image> images) {
  CONVOY_CHECK(!images.empty(), "no images to predict");
  const int64_t n = static_cast<int64_t>(images.size()), height = images[0].height, width = images[0].width;
  const int64_t padded_h = fitting_extent(network_, height), padded_w = fitting_extent(network_, width);
  Entry& entry = entry_for({n, 3, padded_h, padded_w});

  std::fill(entry.input.begin(), entry.input.end(), 0.0f);
  std::vector<float> normalized(static_cast<size_t>(3 * height * width));
  for (int64_t i = 0; i < n; ++i) {
    const Image& image = images[static_cast<size_t>(i)];
    CONVOY_CHECK(image.height == height && image.width == width, "images of one batch differ in size");
    normalize_image(image, normalization_, normalized.data());
    for (int64_t row = 0; row < 3 * height; ++row)
      std::copy_n(normalized.data() + row * width, width,
                  entry.input.data() + ((i * 3 + row / height) * padded_h + row % height) * padded_w);
  }

  entry.session->bind("image", entry.input.data());
  entry.session->run({});
  const Tensor logits = entry.session->fetch(0);
  std::vector<int32_t> labels(static_cast<size_t>(n * padded_h * padded_w));
  argmax_channels(logits.view(), labels.data());

  std::vector<LabelMap> maps;
  for (int64_t i = 0; i < n; ++i) {
    LabelMap map{height, width, std::vector<int32_t>(static_cast<size_t>(height * width))};
    for (int64_t y = 0; y < height; ++y)
      std::copy_n(labels.data() + (i * padded_h + y) * padded_w, width, map.data.data() + y * width);
    maps.push_back(std::move(map));
  }
  return maps;
}

}  // namespace convoy
