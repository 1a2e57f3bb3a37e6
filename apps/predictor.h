// Images of any size to class maps. Evaluation, prediction and the report's pictures all go through this one object,
// so that they share their preprocessing.
#pragma once
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/session.h"
#include "io/augment.h"
#include "nets/network.h"

namespace convoy {

/// How the scores of an image come about: one pass through the network for each scale, twice with `flip`.
///
/// An image is resized to a scale by the rule of training (io/resize.h: bilinear with antialiasing, on 8 bits). The
/// network's logits are resized back bilinearly (align_corners false, which undoes it), turned into probabilities and
/// averaged over the passes.
struct PredictionOptions {
  std::vector<double> scales = {1.0};  ///< the long side becomes ceil(scale * long side), the short side in proportion
  bool flip = false;                   ///< also mirrored left to right
  /// Images are padded to this size times the scale, each axis on its own, on the right and below. Images that are
  /// larger on an axis are cut into overlapping tiles of this size. None: the whole image at its own size.
  std::optional<SizeHW> crop_size;
  double tile_overlap = 0.25;  ///< least part of a tile that it shares with its neighbour
  /// The rules of SegmenTron, for its published figures: logits are added up, not probabilities; normalised images and
  /// logits are resized with align_corners; the padding that the height needs goes to the width, and that of the width
  /// to the height; a mirrored image has its padding on the left.
  bool legacy = false;

  /// Passes through the network for each image or tile.
  size_t passes() const { return scales.size() * (flip ? 2 : 1); }
  /// "scales 0.5, 1, 1.5, mirrored, padded to 1025x2049"; empty for one pass of the image as it is.
  std::string text() const;
};

/// As configured by the keys TEST.*.
PredictionOptions prediction_options(const Config& config);

class Predictor {
 public:
  /// The context, store and network must outlive the predictor; it reads the store's weights at each call, so a network
  /// in training can be evaluated between steps. Throws Error when the crop is smaller than what the network takes.
  Predictor(Context& context, ParamStore& store, const Network& network, const Normalization& normalization,
            PredictionOptions options = {});
  ~Predictor();

  /// Class maps of images (H,W,3) of one size, at least 1x1. Each is padded on the right and below to a size that fits
  /// the network, by the value that normalises to 0 (the mean colour); the result is cut back. Throws Error when the
  /// machine has not the memory for a pass, before it is claimed.
  std::vector<LabelMap> predict(std::span<const Image> images);
  LabelMap predict(const Image& image) { return predict(std::span(&image, 1))[0]; }

  /// Scores (C,H,W) of one image: probabilities, averaged over all passes; with `legacy` the sum of their logits.
  std::vector<float> scores(const Image& image);

  const PredictionOptions& options() const { return options_; }

 private:
  /// A plan for one shape with its memory.
  struct Entry;
  /// One pass: an image's tile at a scale, mirrored or not.
  struct Pass;
  /// Told of the sums (C,W) of row y of an image when they are complete.
  using RowReader = std::function<void(int64_t image, int64_t y, std::span<const float> sums)>;

  Entry& entry_for(const Shape& input);
  void require_memory(size_t bytes, const Shape& input) const;
  Pass make_pass(int64_t height, int64_t width, double scale, bool mirrored) const;
  Tensor run(std::span<const Image> images, const Pass& pass);
  void write_input(const Image& image, const Pass& pass, float* out) const;
  void sum_scores(std::span<const Image> images, const RowReader& reader);

  Context& context_;
  ParamStore& store_;
  const Network& network_;
  Normalization normalization_;
  PredictionOptions options_;
  std::list<Entry> entries_;  // sessions kept, most recent first: data sets of many sizes do not hold one for each
  std::vector<float> input_;  // (N,3,H,W)
};

}  // namespace convoy
