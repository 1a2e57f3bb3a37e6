// Reference figures of one network: what the file says, and the numbers it asks a network to be filled with.
#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "engine/param_store.h"
#include "nets/network.h"

namespace convoy {

/// A file of reference figures for a segmentation network. Members mirror the file; figures stay JSON.
class GoldenFile {
 public:
  /// Throws Error naming the file and what is missing or malformed in it.
  explicit GoldenFile(const std::string& path);

  const std::string& path() const { return path_; }
  const nlohmann::json& json() const { return json_; }
  /// The configuration that the figures were made with. Throws Error for a loss that does not exist yet.
  NetworkOptions network_options() const;
  LossOptions loss_options() const;
  Shape input_shape() const;

  /// Checks that names and shapes of parameters and buffers equal the file's rows, in order, and sets all values.
  /// Throws Error naming the first row that differs. With a prefix those rows whose names begin with it are all that
  /// the store has.
  void fill(ParamStore& store, const std::string& prefix = "") const;
  std::vector<float> input() const;
  std::vector<int32_t> target() const;

 private:
  void fill_values(const nlohmann::json& row, float* values, int64_t count) const;

  std::string path_;
  nlohmann::json json_;
  uint64_t case_seed_ = 0;
};

/// Positions of the `count` sampled elements in a tensor of `numel`: (k * 2654435761) mod numel.
std::vector<int64_t> sample_positions(int64_t count, int64_t numel);

}  // namespace convoy
