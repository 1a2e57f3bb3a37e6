#include <algorithm>
#include <cctype>

#include "io/config.h"
#include "nets/networks.h"

namespace convoy {

namespace {

using Make = std::unique_ptr<Network> (*)(const NetworkOptions&, const Scope&);
struct Entry {
  const char* name;
  Make make;
  const char* light_backbone = "";
  bool aux = true;  ///< whether there are auxiliary heads with that backbone
};
constexpr Entry kNetworks[] = {
    {"BiSeNet", make_bisenet, "resnet18"},
    {"DeepLabV3_Plus", make_deeplabv3_plus, "mobilenet_v2", false},
    {"FastSCNN", make_fast_scnn},
};

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

const Entry& find_network(const std::string& name) {
  for (const Entry& e : kNetworks)
    if (lower(e.name) == lower(name)) return e;
  fail("there is no network '{}'{}. Networks: {}", name, nearest_hint(name, network_names()),
       fmt::join(network_names(), ", "));
}

}  // namespace

int64_t fitting_extent(const Network& network, int64_t extent) {
  constexpr int64_t kSearch = 1024;  // no network asks for multiples beyond this
  for (int64_t fitting = extent; fitting <= extent + kSearch; ++fitting)
    if (network.accepts_extent(fitting)) return fitting;
  fail("the network takes no image extent between {} and {}", extent, extent + kSearch);
}

int64_t fitting_extent_below(const Network& network, int64_t extent) {
  while (extent > 0 && !network.accepts_extent(extent)) --extent;
  return std::max<int64_t>(0, extent);
}

int64_t fitting_multiple(const Network& network) {
  constexpr int64_t kLargest = 128, kProbed = 64 * kLargest;
  for (int64_t multiple = 1; multiple <= kLargest; multiple *= 2) {
    int64_t extent = multiple;
    while (extent <= kProbed && network.accepts_extent(extent)) extent += multiple;
    if (extent > kProbed) return multiple;
  }
  return 0;
}

std::vector<std::string> network_names() {
  std::vector<std::string> names;
  for (const Entry& e : kNetworks) names.emplace_back(e.name);
  return names;
}

std::unique_ptr<Network> make_network(const NetworkOptions& options, ParamStore& store) {
  CONVOY_CHECK(options.classes > 0, "a network needs at least one class, got {}", options.classes);
  auto network =
      find_network(options.name)
          .make(
              options,
              Scope{.store = store, .path = "", .bn_eps = options.bn_eps_decoder, .bn_momentum = options.bn_momentum});
  store.allocate();
  return network;
}

NetworkOptions light_options(const std::string& name) {
  const Entry& e = find_network(name);
  return {.name = e.name, .backbone = e.light_backbone, .aux = e.aux};
}

}  // namespace convoy
