// COCO's instances_*.json as label maps. The file is read once, as a stream: what is kept is the outlines of the wanted
// categories (about 200 MiB for train2017 and 20 categories).
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "io/image.h"

namespace convoy {

struct CocoImage {
  int64_t id = 0, height = 0, width = 0;
  std::string file_name;
};

class CocoAnnotations {
 public:
  /// Reads `path`; instances of other categories than `categories` are left out. Throws Error naming the file and,
  /// where there is one, the annotation: no JSON, missing keys, unknown images, polygons of less than three points.
  CocoAnnotations(const std::string& path, const std::vector<int64_t>& categories);

  const std::vector<CocoImage>& images() const { return images_; }  ///< by id
  uint64_t checksum() const { return checksum_; }                   ///< CRC-64 of the file

  /// Category ids (H,W), 0 where no instance lies; of instances that overlap, the first of the file. An instance
  /// without outline covers nothing. May be called from several threads. Throws Error naming file and annotation.
  LabelMap rasterize(size_t image) const;

 private:
  friend class CocoReader;

  /// One instance: polygons first..last-1, or run lengths first..last-1.
  struct Instance {
    int64_t id = 0, image = 0, category = 0;
    bool run_lengths = false;
    size_t first = 0, last = 0;
    int64_t height = 0, width = 0;  // of the run lengths
  };

  void arrange();

  std::string path_;
  uint64_t checksum_ = 0;
  std::vector<CocoImage> images_;
  std::vector<Instance> instances_;      // by image, then in the file's order
  std::vector<size_t> image_instances_;  // image i has instances [i] to [i + 1]
  std::vector<double> coordinates_;      // of all polygons
  std::vector<size_t> polygons_ = {0};   // polygon p has coordinates [p] to [p + 1]
  std::vector<uint32_t> run_lengths_;
};

}  // namespace convoy
