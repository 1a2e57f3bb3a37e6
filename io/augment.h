// From a decoded sample to network input: the train, val and testval pipelines. All randomness comes from the stream
// that is passed in, in a fixed order of draws.
#pragma once
#include <array>

#include "engine/rng.h"
#include "io/config.h"
#include "io/dataset.h"

namespace convoy {

struct AugmentOptions {
  SizeHW crop{769, 769};
  int64_t base_size = 1024;
  bool mirror = true;
  double blur_prob = 0, blur_radius = 0;  ///< radius 0 = drawn from U[0,1) when the blur fires
  ColorJitter color_jitter;
};

/// x -> (x / 255 - mean) / std per channel.
struct Normalization {
  std::array<double, 3> mean = {.5, .5, .5}, std_dev = {.5, .5, .5};
};

AugmentOptions augment_options(const Config& config);
Normalization normalization(const Config& config);

/// train, in this order: mirror with probability 1/2; resize so that the short side is an integer drawn from
/// [floor(base/2), floor(2 base)], bilinear image and nearest labels; pad each axis on the right or bottom to the crop
/// (image 0, labels ignore); uniform random crop; Gaussian blur; colour jitter. The result has the crop's size.
Sample augment_train(const Sample& sample, const AugmentOptions& options, RandomStream& random);

/// val: the short side becomes min(crop), then a centre crop; what lies outside the image is 0 and ignore.
Sample augment_val(const Sample& sample, SizeHW crop);

/// Writes an (H,W,3) image as normalised float (3,H,W).
void normalize_image(const Image& image, const Normalization& normalization, float* out);

/// The parts, on 8-bit RGB in place.
void mirror(Sample& sample);
/// Gaussian of standard deviation `radius` pixels as three moving means along each axis, edges repeated, rounded to
/// bytes after each: the numbers of the reference's blur.
void gaussian_blur(Image& image, double radius);
/// Brightness, contrast, saturation by factors U[max(0, 1 - v), 1 + v] and a hue shift U[-v, v], in random order. A
/// factor f makes a pixel f * pixel + (1 - f) * base, fraction dropped, with the base black, the image's mean luma, the
/// pixel's luma.
void jitter_colors(Image& image, const ColorJitter& jitter, RandomStream& random);

}  // namespace convoy
