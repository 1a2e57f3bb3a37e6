// Images of any size to class maps. Evaluation, prediction and the report's pictures all go through this one object,
// so that they share their preprocessing.
#pragma once
#include <list>
#include <memory>
#include <span>
#include <vector>

#include "engine/session.h"
#include "io/augment.h"
#include "nets/network.h"

namespace convoy {

class Predictor {
 public:
  /// The context, store and network must outlive the predictor; it reads the store's weights at each call, so a network
  /// in training can be evaluated between steps.
  Predictor(Context& context, ParamStore& store, const Network& network, const Normalization& normalization);
  ~Predictor();

  /// Class maps of images (H,W,3) of one size, at least 1x1. Each image is padded on the right and below to a size that
  /// fits the network, by the value that normalises to 0 (the mean colour); the result is cut back.
  std::vector<LabelMap> predict(std::span<const Image> images);
  LabelMap predict(const Image& image) { return predict(std::span(&image, 1))[0]; }

 private:
  /// A plan for one shape with its memory.
  struct Entry;
  Entry& entry_for(const Shape& input);

  /// Sessions kept, most recent first: data sets of many sizes do not hold memory for each.
  static constexpr size_t kKept = 3;

  Context& context_;
  ParamStore& store_;
  const Network& network_;
  Normalization normalization_;
  std::list<Entry> entries_;
};

}  // namespace convoy
