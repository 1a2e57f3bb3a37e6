// Augmentation of a decoded sample in one pass: mirror, scale, crop with padding, colour jitter, normalise, layout.
// What is random is drawn by the host and handed over as numbers.
#pragma once
#include <array>

#include "kernels/cuda_stream.h"
#include "kernels/isa.h"
#include "kernels/view.h"

namespace convoy {

/// Which source pixels one axis of the crop is made of: positions [place, place + length) of the crop, the rest is
/// padding. The arrays have `length` entries (weights: length * taps) and come from augment_tables
/// (kernels/augment_axis.h); they lie where the kernel runs.
struct AugmentAxis {
  int64_t source = 0;  ///< pixels of the decoded image
  int64_t place = 0, length = 0, taps = 0;
  const int32_t *first = nullptr, *weights = nullptr, *nearest = nullptr;
};

struct ColorStep {
  enum class Kind : uint8_t { kBrightness, kContrast, kSaturation, kHue };
  Kind kind = Kind::kBrightness;
  double amount = 1;  ///< factor; kHue: turn in sixths of the colour circle
};

/// At most one step of each kind, in order. Contrast blends with the crop's mean luma, padding included.
struct Augmentation {
  AugmentAxis rows, columns;
  bool mirrored = false;
  int steps = 0;
  std::array<ColorStep, 4> step = {};
  const float* normalized = nullptr;     ///< (3,256): network input of each byte of each channel
  const int32_t* label_table = nullptr;  ///< (256): label of each byte; where the kernel runs, as `normalized`
  int32_t ignore = -1;                   ///< label of padding
};

}  // namespace convoy

// augment   image (H,W,3) and labels (H,W) of bytes -> out, an image (1,3,h,w) as large as the crop, and out_labels
//           (h,w). labels and out_labels may be null. Padding is black before the colour steps. luma_sum: one number of
//           scratch.
// The same bytes as the pipeline of io/augment.h to the last bit: mirror, then the resizes of io/resize.h (both
// antialiased passes rounded to bytes in fixed point; nearest labels), crop with padding on any side, the colour steps
// in 8 bits with the reference's roundings, the table of normalisation. The hue step computes in double, where a
// compiler that fuses products and sums may come to another last bit and so, very rarely, to a neighbouring byte.
// Not done: Gaussian blur.
CONVOY_CPU_KERNELS(
    /// out: blocked fp32.
    void augment(const uint8_t* image, const uint8_t* labels, const Augmentation& augmentation, const View& out,
                 int32_t* out_labels, int64_t* luma_sum);)
CONVOY_CUDA_KERNELS(
    /// out: nhwc, fp32, fp16 or bf16. Throws std::invalid_argument on another layout, dtype or shape.
    void augment(cudaStream_t stream, const uint8_t* image, const uint8_t* labels, const Augmentation& augmentation,
                 const View& out, int32_t* out_labels, int64_t* luma_sum);)
