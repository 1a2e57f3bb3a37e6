#include "io/augment.h"

#include <algorithm>
#include <cmath>

#include "io/resize.h"

namespace convoy {
namespace {

/// Where a crop takes its pixels from a resized image, and where they lie in the crop; the rest is padding.
struct Placement {
  Window source;         // in the resized image
  int64_t y = 0, x = 0;  // in the crop
};

/// One axis of a placement: the crop begins at `start` of the image (negative: before it).
void place_axis(int64_t start, int64_t image, int64_t crop, int64_t& source, int64_t& length, int64_t& target) {
  source = std::max<int64_t>(0, start);
  target = std::max<int64_t>(0, -start);
  length = std::min(image, start + crop) - source;
}

/// Resizes to (height, width) and cuts the crop whose upper left corner is (y, x), both in one go.
Sample resize_and_crop(const Sample& sample, int64_t height, int64_t width, int64_t y, int64_t x, SizeHW crop) {
  Placement place;
  place_axis(y, height, crop.height, place.source.y, place.source.height, place.y);
  place_axis(x, width, crop.width, place.source.x, place.source.width, place.x);
  Image image = resize_bilinear(sample.image, height, width, place.source);
  LabelMap labels = resize_nearest(sample.labels, height, width, place.source);
  if (image.height == crop.height && image.width == crop.width) {
    return {std::move(image), std::move(labels), sample.name};
  }
  Sample out{{crop.height, crop.width, 3, {}, 8}, {crop.height, crop.width, {}}, sample.name};
  out.image.data.assign(static_cast<size_t>(crop.height * crop.width * 3), 0);
  out.labels.data.assign(static_cast<size_t>(crop.height * crop.width), kIgnoreLabel);
  for (int64_t row = 0; row < image.height; ++row) {
    std::copy_n(image.pixel(row, 0), image.width * 3, out.image.pixel(place.y + row, place.x));
    std::copy_n(labels.data.data() + row * image.width, image.width,
                out.labels.data.data() + (place.y + row) * crop.width + place.x);
  }
  return out;
}

/// Size with the given short side and the aspect ratio kept, the long side rounded down as in the reference.
SizeHW scale_short_side(int64_t height, int64_t width, int64_t short_side) {
  const auto scaled = [short_side](int64_t side, int64_t by) {
    return std::max<int64_t>(
        1, static_cast<int64_t>(static_cast<double>(side) * static_cast<double>(short_side) / static_cast<double>(by)));
  };
  if (height > width) return {scaled(height, width), short_side};
  return {short_side, scaled(width, height)};
}

uint8_t round_to_byte(double value) {
  return static_cast<uint8_t>(std::clamp(value, 0.0, 255.0) + 0.5);
}

/// ITU-R 601-2 luma in 16-bit fixed point.
int luma(const uint8_t* rgb) {
  return (19595 * rgb[0] + 38470 * rgb[1] + 7471 * rgb[2] + 0x8000) >> 16;
}

/// factor * pixel + (1 - factor) * base, the fraction dropped.
uint8_t blend(int base, double factor, uint8_t pixel) {
  const float value = static_cast<float>(base) + static_cast<float>(factor) * static_cast<float>(pixel - base);
  return static_cast<uint8_t>(std::clamp(value, 0.0f, 255.0f));
}

void adjust_brightness(Image& image, double factor) {
  for (uint8_t& value : image.data) value = blend(0, factor, value);
}

void adjust_contrast(Image& image, double factor) {
  int64_t sum = 0;
  const int64_t pixels = image.height * image.width;
  for (int64_t i = 0; i < pixels; ++i) sum += luma(image.data.data() + 3 * i);
  const auto mean = static_cast<int>(static_cast<double>(sum) / static_cast<double>(pixels) + 0.5);
  for (uint8_t& value : image.data) value = blend(mean, factor, value);
}

void adjust_saturation(Image& image, double factor) {
  for (size_t i = 0; i < image.data.size(); i += 3) {
    const int gray = luma(image.data.data() + i);
    for (size_t c = 0; c < 3; ++c) image.data[i + c] = blend(gray, factor, image.data[i + c]);
  }
}

/// Turns the hue by `shift` of the colour circle, value and chroma kept (hexagon model).
void shift_hue(uint8_t* rgb, double shift) {
  const int high = std::max({rgb[0], rgb[1], rgb[2]}), low = std::min({rgb[0], rgb[1], rgb[2]});
  const double chroma = high - low;
  if (chroma == 0) return;
  double sector;  // hue in sixths of the circle
  if (high == rgb[0]) {
    sector = (rgb[1] - rgb[2]) / chroma;
  } else if (high == rgb[1]) {
    sector = 2 + (rgb[2] - rgb[0]) / chroma;
  } else {
    sector = 4 + (rgb[0] - rgb[1]) / chroma;
  }
  const double hue = sector + 6 * shift;
  for (int c = 0; c < 3; ++c) {
    // Channel value = high - chroma * clamp(distance of the hue from the channel's own, less one).
    double distance = std::fmod(hue - 2 * c + 18, 6);
    distance = std::min(distance, 6 - distance);
    rgb[c] = round_to_byte(high - chroma * std::clamp(distance - 1, 0.0, 1.0));
  }
}

constexpr int kBoxPasses = 3;

/// A moving mean over 2 radius + 1 pixels and a part of one more on each side, in fixed point: weights sum up to 2^24.
struct BoxFilter {
  int64_t radius = 0;
  uint32_t inner = 0, outer = 0;
};

/// The box that, applied kBoxPasses times, has the Gaussian's variance (Gwosdek et al., Theoretical foundations of
/// Gaussian convolution by extended box filtering, 2011).
BoxFilter box_filter(double radius) {
  const auto sigma = static_cast<float>(radius);
  const float variance = sigma * sigma / kBoxPasses;
  const float whole = std::floor((std::sqrt(12 * variance + 1) - 1) / 2);
  const float part =
      (2 * whole + 1) * (whole * (whole + 1) - 3 * variance) / (6 * (variance - (whole + 1) * (whole + 1)));
  constexpr uint32_t kOne = 1u << 24;
  BoxFilter filter{static_cast<int64_t>(whole + part), 0, 0};
  filter.inner = static_cast<uint32_t>(static_cast<float>(kOne) / ((whole + part) * 2 + 1));
  filter.outer = (kOne - static_cast<uint32_t>(2 * filter.radius + 1) * filter.inner) / 2;
  return filter;
}

/// Applies the passes to `count` values that lie `stride` apart. The first and last one are repeated outside.
void blur_line(uint8_t* line, int64_t stride, int64_t count, const BoxFilter& filter, std::vector<uint8_t>& scratch) {
  const int64_t reach = filter.radius + 1;
  scratch.resize(static_cast<size_t>(count + 2 * reach));
  for (int pass = 0; pass < kBoxPasses; ++pass) {
    std::fill_n(scratch.begin(), reach, line[0]);
    for (int64_t i = 0; i < count; ++i) scratch[static_cast<size_t>(reach + i)] = line[i * stride];
    std::fill_n(scratch.end() - reach, reach, line[(count - 1) * stride]);
    uint32_t sum = 0;
    for (int64_t k = 0; k < 2 * reach - 1; ++k) sum += scratch[static_cast<size_t>(k)];
    for (int64_t i = 0; i < count; ++i) {
      const uint8_t *first = &scratch[static_cast<size_t>(i)], *last = first + 2 * reach;
      sum += last[-1] - first[0];
      const uint32_t outer = static_cast<uint32_t>(first[0]) + last[0];
      line[i * stride] = static_cast<uint8_t>((sum * filter.inner + outer * filter.outer + (1u << 23)) >> 24);
    }
  }
}

}  // namespace

AugmentOptions augment_options(const Config& config) {
  return {config.train.crop_size, config.train.base_size, config.aug.mirror,
          config.aug.blur_prob,   config.aug.blur_radius, config.aug.color_jitter};
}

Normalization normalization(const Config& config) {
  Normalization out;
  std::copy_n(config.dataset.mean.begin(), 3, out.mean.begin());
  std::copy_n(config.dataset.std_dev.begin(), 3, out.std_dev.begin());
  return out;
}

Sample augment_train(const Sample& sample, const AugmentOptions& options, RandomStream& random) {
  const bool mirrored = random.uniform() < 0.5f && options.mirror;
  const int64_t short_side = random.integer(std::max<int64_t>(1, options.base_size / 2), options.base_size * 2);
  const SizeHW size = scale_short_side(sample.image.height, sample.image.width, short_side);
  const int64_t x = random.integer(0, std::max<int64_t>(0, size.width - options.crop.width));
  const int64_t y = random.integer(0, std::max<int64_t>(0, size.height - options.crop.height));
  Sample out;
  if (mirrored) {
    Sample flipped = sample;
    mirror(flipped);
    out = resize_and_crop(flipped, size.height, size.width, y, x, options.crop);
  } else {
    out = resize_and_crop(sample, size.height, size.width, y, x, options.crop);
  }
  if (options.blur_prob > 0 && random.uniform() < options.blur_prob) {
    gaussian_blur(out.image, options.blur_radius > 0 ? options.blur_radius : random.uniform(0.0, 1.0));
  }
  if (options.color_jitter.enabled()) jitter_colors(out.image, options.color_jitter, random);
  return out;
}

Sample augment_val(const Sample& sample, SizeHW crop) {
  const SizeHW size = scale_short_side(sample.image.height, sample.image.width, std::min(crop.height, crop.width));
  const auto start = [](int64_t image, int64_t cut) {
    return static_cast<int64_t>(std::nearbyint(static_cast<double>(image - cut) / 2));
  };
  return resize_and_crop(sample, size.height, size.width, start(size.height, crop.height),
                         start(size.width, crop.width), crop);
}

void normalize_image(const Image& image, const Normalization& normalization, float* out) {
  const int64_t pixels = image.height * image.width;
  for (size_t c = 0; c < 3; ++c) {
    std::array<float, 256> table;
    for (size_t v = 0; v < 256; ++v) {
      table[v] =
          static_cast<float>((static_cast<double>(v) / 255.0 - normalization.mean[c]) / normalization.std_dev[c]);
    }
    const uint8_t* source = image.data.data() + c;
    float* plane = out + static_cast<int64_t>(c) * pixels;
    for (int64_t i = 0; i < pixels; ++i) plane[i] = table[source[3 * i]];
  }
}

void mirror(Sample& sample) {
  Image& image = sample.image;
  for (int64_t y = 0; y < image.height; ++y) {
    for (int64_t left = 0, right = image.width - 1; left < right; ++left, --right) {
      std::swap_ranges(image.pixel(y, left), image.pixel(y, left) + image.channels, image.pixel(y, right));
    }
    int32_t* row = sample.labels.data.data() + y * image.width;
    std::reverse(row, row + image.width);
  }
}

void gaussian_blur(Image& image, double radius) {
  if (radius <= 0) return;
  const BoxFilter filter = box_filter(radius);
  std::vector<uint8_t> scratch;
  const int64_t row = image.width * image.channels;
  for (int64_t y = 0; y < image.height; ++y)
    for (int64_t c = 0; c < image.channels; ++c)
      blur_line(image.data.data() + y * row + c, image.channels, image.width, filter, scratch);
  for (int64_t i = 0; i < row; ++i) blur_line(image.data.data() + i, row, image.height, filter, scratch);
}

void jitter_colors(Image& image, const ColorJitter& jitter, RandomStream& random) {
  std::array<int, 4> order = {0, 1, 2, 3};
  for (int64_t i = 3; i > 0; --i)
    std::swap(order[static_cast<size_t>(i)], order[static_cast<size_t>(random.integer(0, i))]);
  const auto factor = [&random](double strength) { return random.uniform(std::max(0.0, 1 - strength), 1 + strength); };
  for (const int step : order) {
    if (step == 0 && jitter.brightness > 0) adjust_brightness(image, factor(jitter.brightness));
    if (step == 1 && jitter.contrast > 0) adjust_contrast(image, factor(jitter.contrast));
    if (step == 2 && jitter.saturation > 0) adjust_saturation(image, factor(jitter.saturation));
    if (step == 3 && jitter.hue > 0) {
      const double shift = random.uniform(-jitter.hue, jitter.hue);
      for (size_t i = 0; i < image.data.size(); i += 3) shift_hue(image.data.data() + i, shift);
    }
  }
}

}  // namespace convoy
