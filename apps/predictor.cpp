#include "apps/predictor.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "apps/progress.h"
#include "apps/tiles.h"
#include "io/resize.h"
#include "kernels/metrics.h"
#include "kernels/scores.h"

namespace convoy {
namespace {

Image cut(const Image& image, const Window& window) {
  if (window.height == image.height && window.width == image.width) return image;
  Image part{window.height, window.width, image.channels,
             std::vector<uint8_t>(static_cast<size_t>(window.height * window.width * image.channels))};
  for (int64_t y = 0; y < window.height; ++y)
    std::memcpy(part.pixel(y, 0), image.pixel(window.y + y, window.x),
                static_cast<size_t>(window.width * image.channels));
  return part;
}

double gibibytes(size_t bytes) {
  return static_cast<double>(bytes) / (1024.0 * 1024 * 1024);
}

}  // namespace

std::string PredictionOptions::text() const {
  std::vector<std::string> parts;
  if (scales != std::vector<double>{1.0}) parts.push_back(fmt::format("scales {}", fmt::join(scales, ", ")));
  if (flip) parts.push_back("mirrored");
  if (crop_size) parts.push_back(fmt::format("padded to or cut into {}x{}", crop_size->height, crop_size->width));
  if (legacy && !parts.empty()) parts.push_back("legacy rules");
  return fmt::format("{}", fmt::join(parts, ", "));
}

PredictionOptions prediction_options(const Config& config) {
  return {.scales = config.test.scales,
          .flip = config.test.flip,
          .crop_size = config.test.crop_size,
          .tile_overlap = config.test.tile_overlap,
          .legacy = config.test.legacy};
}

struct Predictor::Entry {
  Shape shape;
  std::unique_ptr<Graph> graph;
  std::unique_ptr<Session> session;
};

struct Predictor::Pass {
  int64_t height, width;                // of the image at the pass's scale
  int64_t padded_height, padded_width;  // of the network's input
  bool mirrored;
  int64_t x;  // the column of the input where the image begins
};

Predictor::Predictor(Context& context, ParamStore& store, const Network& network, const Normalization& normalization,
                     PredictionOptions options)
    : context_(context), store_(store), network_(network), normalization_(normalization), options_(std::move(options)) {
  CONVOY_CHECK(!options_.scales.empty(), "predictions need at least one scale (TEST.SCALES)");
  for (const double scale : options_.scales)
    CONVOY_CHECK(std::isfinite(scale) && scale > 0, "{} is no scale of images (TEST.SCALES); it is to be above 0",
                 scale);
  CONVOY_CHECK(options_.tile_overlap >= 0 && options_.tile_overlap <= 0.9,
               "{} is no overlap of tiles (TEST.TILE_OVERLAP); it is to be from 0 to 0.9", options_.tile_overlap);
  if (!options_.crop_size) return;
  const int64_t least = fitting_extent(network_, 1);
  CONVOY_CHECK(options_.crop_size->height >= least && options_.crop_size->width >= least,
               "the size ({}, {}) of TEST.CROP_SIZE is too small; the least that the network takes is ({}, {})",
               options_.crop_size->height, options_.crop_size->width, least, least);
}

Predictor::~Predictor() = default;

Predictor::Entry& Predictor::entry_for(const Shape& input) {
  const auto found = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& e) { return e.shape == input; });
  if (found != entries_.end()) {
    entries_.splice(entries_.begin(), entries_, found);
    return entries_.front();
  }
  const size_t kept = 3 * options_.scales.size();
  if (entries_.size() >= kept) entries_.pop_back();
  Entry entry{.shape = input, .graph = std::make_unique<Graph>(context_, store_)};
  Builder builder{*entry.graph, Mode::kEval};
  const auto outputs = network_.forward(builder, entry.graph->input("image", DType::kF32, input));
  const Shape logits = outputs[0].value.shape();
  CONVOY_CHECK(logits[2] == input[2] && logits[3] == input[3],
               "the network makes scores of {}x{} for an image of {}x{}", logits[2], logits[3], input[2], input[3]);
  entry.session = std::make_unique<Session>(*entry.graph, std::vector<Value>{outputs[0].value});
  require_memory(
      entry.session->plan().arena_bytes + static_cast<size_t>(input.count() + logits.count()) * sizeof(float), input);
  entries_.push_front(std::move(entry));
  return entries_.front();
}

void Predictor::require_memory(size_t bytes, const Shape& input) const {
  const size_t available = available_memory_bytes() + context_.arena_bytes() + default_allocator()->use().cached;
  CONVOY_CHECK(bytes <= available,
               "a prediction of {} image(s) of {}x{} needs {:.1f} GiB of memory, {:.1f} GiB are there; set "
               "TEST.CROP_SIZE (HEIGHT, WIDTH) for tiles of that size, or a smaller TEST.BATCH_SIZE or TEST.SCALES",
               input[0], input[2], input[3], gibibytes(bytes), gibibytes(available));
}

// The sizes follow the reference: the long side times the scale is rounded up, the short side in proportion to nearest.
Predictor::Pass Predictor::make_pass(int64_t height, int64_t width, double scale, bool mirrored) const {
  Pass pass{.height = height, .width = width, .padded_height = 0, .padded_width = 0, .mirrored = mirrored, .x = 0};
  const double long_side = std::ceil(static_cast<double>(std::max(height, width)) * scale);
  constexpr double kMaxSide = 1 << 20;
  CONVOY_CHECK(long_side <= kMaxSide, "the scale {} (TEST.SCALES) makes an image of {}x{} larger than {} pixels a side",
               scale, height, width, kMaxSide);
  const auto scaled = static_cast<int64_t>(long_side);
  const auto in_proportion = [&](int64_t side, int64_t longer) {
    return std::max<int64_t>(
        1, static_cast<int64_t>(static_cast<double>(side) * long_side / static_cast<double>(longer) + 0.5));
  };
  pass.height = height > width ? scaled : in_proportion(height, width);
  pass.width = height > width ? in_proportion(width, height) : scaled;
  CONVOY_CHECK(pass.height <= kMaxImagePixels / pass.width,
               "the scale {} (TEST.SCALES) makes an image of {}x{} one of {}x{}; at most {} pixels are allowed", scale,
               height, width, pass.height, pass.width, kMaxImagePixels);

  int64_t more_height = 0, more_width = 0;
  if (options_.crop_size) {
    const auto missing = [&](int64_t crop, int64_t side) {
      return std::max<int64_t>(0, static_cast<int64_t>(std::ceil(static_cast<double>(crop) * scale)) - side);
    };
    more_height = missing(options_.crop_size->height, pass.height);
    more_width = missing(options_.crop_size->width, pass.width);
    if (options_.legacy) std::swap(more_height, more_width);
  }
  pass.padded_height = fitting_extent(network_, pass.height + more_height);
  pass.padded_width = fitting_extent(network_, pass.width + more_width);
  if (options_.legacy && mirrored) pass.x = pass.padded_width - pass.width;
  return pass;
}

// Normalised and mirrored into `out` (3, padded height, padded width), whose padding holds zeros.
void Predictor::write_input(const Image& image, const Pass& pass, float* out) const {
  const bool resized = pass.height != image.height || pass.width != image.width;
  std::vector<float> pixels(static_cast<size_t>(3 * pass.height * pass.width));
  if (!resized) {
    normalize_image(image, normalization_, pixels.data());
  } else if (!options_.legacy) {
    normalize_image(resize_bilinear(image, pass.height, pass.width), normalization_, pixels.data());
  } else {
    std::vector<float> original(static_cast<size_t>(3 * image.height * image.width));
    normalize_image(image, normalization_, original.data());
    for (int64_t c = 0; c < 3; ++c)
      resize_plane(original.data() + c * image.height * image.width, image.height, image.width, true,
                   pixels.data() + c * pass.height * pass.width, pass.height, pass.width);
  }
  for (int64_t row = 0; row < 3 * pass.height; ++row) {
    float* to = out + (row / pass.height * pass.padded_height + row % pass.height) * pass.padded_width + pass.x;
    const float* from = pixels.data() + row * pass.width;
    if (pass.mirrored)
      std::reverse_copy(from, from + pass.width, to);
    else
      std::copy_n(from, pass.width, to);
  }
}

/// Logits (N,C,H,W) of the padded images.
Tensor Predictor::run(std::span<const Image> images, const Pass& pass) {
  const Shape shape{static_cast<int64_t>(images.size()), 3, pass.padded_height, pass.padded_width};
  Entry& entry = entry_for(shape);
  input_.assign(static_cast<size_t>(shape.count()), 0.0f);
  for (size_t i = 0; i < images.size(); ++i)
    write_input(images[i], pass, input_.data() + i * input_.size() / images.size());
  entry.session->bind("image", input_.data());
  entry.session->run({});
  return entry.session->fetch(0);
}

// Tile by tile from top to bottom. Only the rows that one row of tiles covers are held; `reader` gets each row when the
// tiles below do not reach it.
void Predictor::sum_scores(std::span<const Image> images, const RowReader& reader) {
  const int64_t height = images[0].height, width = images[0].width;
  const SizeHW tile = options_.crop_size.value_or(SizeHW{height, width});
  const AxisTiles rows = cut_axis(height, tile.height, options_.tile_overlap);
  const AxisTiles columns = cut_axis(width, tile.width, options_.tile_overlap);
  std::vector<std::vector<float>> bands(images.size());
  int64_t row_size = 0;  // classes * width, known after the first pass
  std::vector<Image> tiles(images.size());

  for (size_t r = 0; r < rows.starts.size(); ++r) {
    const int64_t top = rows.starts[r];
    const int64_t next_top = r + 1 < rows.starts.size() ? rows.starts[r + 1] : top + rows.tile;
    for (size_t c = 0; c < columns.starts.size(); ++c) {
      const int64_t left = columns.starts[c];
      for (size_t i = 0; i < images.size(); ++i) tiles[i] = cut(images[i], {top, left, rows.tile, columns.tile});
      for (const double scale : options_.scales)
        for (const bool mirrored : {false, true}) {
          if (mirrored && !options_.flip) continue;
          const Pass pass = make_pass(rows.tile, columns.tile, scale, mirrored);
          const Tensor logits = run(tiles, pass);
          const View view = logits.view();
          row_size = view.c * width;
          if (bands[0].empty())
            require_memory(images.size() * static_cast<size_t>(rows.tile * row_size) * sizeof(float),
                           {static_cast<int64_t>(images.size()), 3, height, width});
          for (size_t i = 0; i < images.size(); ++i) {
            bands[i].resize(static_cast<size_t>(rows.tile * row_size));
            const ScoreSource source{.logits = view.f32() + static_cast<int64_t>(i) * view.image_stride(),
                                     .classes = view.c,
                                     .padded_height = view.h,
                                     .padded_width = view.w,
                                     .x = pass.x,
                                     .height = pass.height,
                                     .width = pass.width,
                                     .mirrored = mirrored,
                                     .align_corners = options_.legacy};
            add_scores(source, rows.tile, columns.tile, rows.weights[r].data(), columns.weights[c].data(),
                       options_.legacy, {.sums = bands[i].data(), .width = width, .y = 0, .x = left});
          }
        }
    }
    for (size_t i = 0; i < images.size(); ++i) {
      for (int64_t y = top; y < next_top; ++y)
        reader(static_cast<int64_t>(i), y,
               std::span(bands[i]).subspan(static_cast<size_t>((y - top) * row_size), static_cast<size_t>(row_size)));
      const auto kept = std::copy(bands[i].begin() + (next_top - top) * row_size, bands[i].end(), bands[i].begin());
      std::fill(kept, bands[i].end(), 0.0f);
    }
  }
}

std::vector<LabelMap> Predictor::predict(std::span<const Image> images) {
  CONVOY_CHECK(!images.empty(), "no images to predict");
  const int64_t height = images[0].height, width = images[0].width;
  std::vector<LabelMap> maps;
  for (const Image& image : images) {
    CONVOY_CHECK(image.height == height && image.width == width, "images of one batch differ in size");
    maps.push_back({height, width, std::vector<int32_t>(static_cast<size_t>(height * width))});
  }
  const auto& crop = options_.crop_size;
  const bool tiled = crop && (height > crop->height || width > crop->width);
  const bool as_it_is = options_.scales == std::vector<double>{1.0} && !options_.flip;
  if (tiled || !as_it_is) {
    sum_scores(images, [&](int64_t i, int64_t y, std::span<const float> sums) {
      argmax_row(sums.data(), static_cast<int64_t>(sums.size()) / width, width,
                 maps[static_cast<size_t>(i)].data.data() + y * width);
    });
    return maps;
  }
  const Pass pass = make_pass(height, width, 1, false);
  const Tensor logits = run(images, pass);
  std::vector<int32_t> labels(images.size() * static_cast<size_t>(pass.padded_height * pass.padded_width));
  argmax_channels(logits.view(), labels.data());
  for (size_t i = 0; i < images.size(); ++i)
    for (int64_t y = 0; y < height; ++y)
      std::copy_n(labels.data() + (static_cast<int64_t>(i) * pass.padded_height + y) * pass.padded_width, width,
                  maps[i].data.data() + y * width);
  return maps;
}

std::vector<float> Predictor::scores(const Image& image) {
  std::vector<float> scores;
  const float share = options_.legacy ? 1.0f : 1.0f / static_cast<float>(options_.passes());
  sum_scores(std::span(&image, 1), [&](int64_t, int64_t y, std::span<const float> sums) {
    const auto width = static_cast<size_t>(image.width), row = static_cast<size_t>(y);
    scores.resize(sums.size() * static_cast<size_t>(image.height));
    for (size_t i = 0; i < sums.size(); ++i)
      scores[(i / width * static_cast<size_t>(image.height) + row) * width + i % width] = sums[i] * share;
  });
  return scores;
}

}  // namespace convoy
