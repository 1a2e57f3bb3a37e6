#include "nets/backbones/backbone.h"

#include <functional>

#include "io/config.h"
#include "nets/backbones/backbones.h"

namespace convoy {

namespace {

using Make = std::function<std::unique_ptr<Backbone>(const BackboneOptions&, const Scope&)>;
struct Entry {
  std::string name;
  Make make;
};

Make resnet(const ResNetLayout& layout) {
  return [layout](const BackboneOptions& options, const Scope& scope) { return make_resnet(layout, options, scope); };
}

const std::vector<Entry>& backbones() {
  static const std::vector<Entry> entries = {
      {"resnet18", resnet({.blocks = {2, 2, 2, 2}, .bottleneck = false})},
      {"resnet34", resnet({.blocks = {3, 4, 6, 3}, .bottleneck = false})},
      {"resnet50", resnet({.blocks = {3, 4, 6, 3}, .bottleneck = true})},
      {"resnet101", resnet({.blocks = {3, 4, 23, 3}, .bottleneck = true})},
      {"resnet152", resnet({.blocks = {3, 8, 36, 3}, .bottleneck = true})},
      {"resnet50c", resnet({.blocks = {3, 4, 6, 3}, .bottleneck = true, .deep_stem = true})},
      {"resnet101c", resnet({.blocks = {3, 4, 23, 3}, .bottleneck = true, .deep_stem = true})},
      {"resnet152c", resnet({.blocks = {3, 8, 36, 3}, .bottleneck = true, .deep_stem = true})},
      {"xception65", make_xception65},
      {"mobilenet_v2", make_mobilenet_v2},
  };
  return entries;
}

}  // namespace

std::vector<std::string> backbone_names() {
  std::vector<std::string> names;
  for (const Entry& e : backbones()) names.push_back(e.name);
  return names;
}

std::unique_ptr<Backbone> make_backbone(const std::string& name, const BackboneOptions& options, const Scope& scope) {
  CONVOY_CHECK(options.output_stride == 8 || options.output_stride == 16 || options.output_stride == 32,
               "a backbone has output stride 8, 16 or 32, not {} (MODEL.OUTPUT_STRIDE)", options.output_stride);
  for (const Entry& e : backbones())
    if (e.name == name) {
      CONVOY_CHECK(options.multi_grid.empty() || name.starts_with("resnet"),
                   "multi-grid dilations are for ResNets; the backbone is {}", name);
      return e.make(options, scope);
    }
  fail("there is no backbone '{}'{} (MODEL.BACKBONE). Backbones: {}", name, nearest_hint(name, backbone_names()),
       fmt::join(backbone_names(), ", "));
}

std::unique_ptr<Backbone> make_encoder(const NetworkOptions& options, const Scope& scope) {
  CONVOY_CHECK(!options.backbone.empty(), "{} needs a backbone: set MODEL.BACKBONE to one of {}", options.name,
               fmt::join(backbone_names(), ", "));
  Scope encoder = scope / "encoder";
  encoder.bn_eps = options.bn_eps_encoder;
  return make_backbone(
      options.backbone,
      {.output_stride = options.output_stride, .width = options.backbone_scale, .multi_grid = options.multi_grid},
      encoder);
}

}  // namespace convoy
