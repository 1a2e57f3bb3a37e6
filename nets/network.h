// A network and the list of them.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "layers/losses.h"
#include "layers/module.h"

namespace convoy {

/// What a recipe says about a network. Keys of the reference's MODEL section and a few that belong with it.
struct NetworkOptions {
  std::string name;      ///< "BiSeNet", "DeepLabV3_Plus"; any case
  std::string backbone;  ///< "resnet18"; empty where the network has none
  int64_t classes = 19;
  bool aux = false;  ///< auxiliary heads
  int64_t output_stride = 16;
  double backbone_scale = 1;  ///< widths of the backbone
  /// Dilations of a ResNet's last stage, block by block in turns; empty: those of the output stride.
  std::vector<int64_t> multi_grid;
  double bn_eps_encoder = 1e-5, bn_eps_decoder = 1e-5;
  double bn_momentum = 0.1;
  bool use_aspp = true, enable_decoder = true;  ///< of DeepLabV3_Plus
};

/// A segmentation network: parameters registered in a ParamStore, forward passes appended to any number of graphs.
class Network {
 public:
  virtual ~Network() = default;
  /// image (N,3,H,W). Outputs (N,classes,H,W): "out0" the prediction, then the auxiliary ones. Values are lazy: outputs
  /// that nobody asks for cost nothing.
  virtual std::vector<NamedValue> forward(Builder& b, Value image) const = 0;
  /// Whether an image of this height (or width) fits through the network.
  virtual bool accepts_extent(int64_t extent) const { return extent > 0; }
  /// Prefixes of parameter names that train at the decoder's rate (LR * DECODER_LR_FACTOR); empty: one group.
  virtual std::vector<std::string> decoder_prefixes() const { return {}; }
};

/// The smallest height (or width) that holds `extent` and fits the network: predictors pad to it and crop back.
int64_t fitting_extent(const Network& network, int64_t extent);
/// The largest height (or width) within `extent` that fits the network; 0 where there is none.
int64_t fitting_extent_below(const Network& network, int64_t extent);
/// The smallest power of two whose multiples all fit the network; 0 where there is none up to 128.
int64_t fitting_multiple(const Network& network);

/// Builds a network and registers its parameters. Throws Error naming the nearest name when there is no such network.
std::unique_ptr<Network> make_network(const NetworkOptions& options, ParamStore& store);
/// Canonical names of all networks.
std::vector<std::string> network_names();
/// The lightest configuration of a network that has all its parts, for checks of every network: backbone, auxiliary
/// heads. Throws Error as make_network does.
NetworkOptions light_options(const std::string& name);

}  // namespace convoy
