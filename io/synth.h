// Generated data sets, so that everything runs without a download.
#pragma once
#include <cstdint>
#include <string>

namespace convoy {

struct SynthOptions {
  int64_t images = 100;
  int64_t height = 128, width = 256;
  uint64_t seed = 1;
  std::string city = "synth";  ///< the city's name in the Cityscapes layout
  int threads = 0;             ///< 0 = one per core
};

struct SynthSummary {
  int64_t train = 0, val = 0, boxes = 0;
  double void_share = 0;  ///< share of the pixels that carry an ignored id
};

/// Writes street scenes in Cityscapes layout, DIR/{leftImg8bit,gtFine}/{train,val}/CITY/CITY_000000_NNNNNN_*.png with
/// the official label ids of ten classes, and PASCAL-VOC boxes of cars, people and signs in DIR/Annotations with
/// DIR/ImageSets/Main/{train,val}.txt. Every fifth scene is val. The same options give the same bytes.
SynthSummary synthesize(const std::string& folder, const SynthOptions& options);

}  // namespace convoy
