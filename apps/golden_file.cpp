#include "apps/golden_file.h"

#include <algorithm>
#include <cmath>

#include "engine/rng.h"
#include "io/file.h"

namespace convoy {

std::vector<int64_t> sample_positions(int64_t count, int64_t numel) {
  std::vector<int64_t> positions;
  for (int64_t k = 0; k < count; ++k)
    positions.push_back(static_cast<int64_t>(static_cast<uint64_t>(k) * 2654435761ull % static_cast<uint64_t>(numel)));
  return positions;
}

constexpr uint64_t kMaxFileBytes = uint64_t{1} << 30;

GoldenFile::GoldenFile(const std::string& path) : path_(path) {
  const std::string text = read_text_file(path, kMaxFileBytes);
  try {
    json_ = nlohmann::json::parse(text);
    CONVOY_CHECK(json_.at("family") == "segmentron",
                 "'{}' holds figures of the family '{}'; segmentation networks ('segmentron') can be verified", path,
                 json_.at("family").get<std::string>());
    case_seed_ = json_.at("case_seed").get<uint64_t>();
    for (const char* key : {"facts", "input", "target", "state", "eval", "frozen", "train"}) json_.at(key);
  } catch (const nlohmann::json::exception& e) {
    fail("'{}' is no file of reference figures: {}", path, e.what());
  }
}

NetworkOptions GoldenFile::network_options() const {
  const auto& facts = json_.at("facts");
  const auto real_or = [&](const char* key, double otherwise) {
    return facts.at(key).is_null() ? otherwise : facts.at(key).get<double>();
  };
  CONVOY_CHECK(facts.at("loss") == "MixSoftmaxCrossEntropyLoss" || facts.at("loss") == "EncNetLoss",
               "'{}' asks for the loss '{}', which does not exist yet", path_, facts.at("loss").get<std::string>());
  NetworkOptions options{.name = facts.at("model_name"),
                         .backbone = facts.at("backbone"),
                         .classes = facts.at("nclass"),
                         .aux = facts.at("aux"),
                         .output_stride = facts.at("output_stride"),
                         .backbone_scale = facts.at("backbone_scale"),
                         .bn_eps_encoder = real_or("bn_eps_for_encoder", 1e-5),
                         .bn_eps_decoder = real_or("bn_eps_for_decoder", 1e-5),
                         .bn_momentum = real_or("bn_momentum", 0.1)};
  if (const auto& sections = facts.at("options"); sections.contains("DEEPLABV3_PLUS")) {
    options.use_aspp = sections.at("DEEPLABV3_PLUS").at("USE_ASPP");
    options.enable_decoder = sections.at("DEEPLABV3_PLUS").at("ENABLE_DECODER");
  }
  if (const auto& sections = facts.at("options"); sections.contains("DANET"))
    if (const auto& grid = sections.at("DANET").at("MULTI_GRID"); grid.is_boolean() && grid.get<bool>())
      options.multi_grid = sections.at("DANET").at("MULTI_DILATION").get<std::vector<int64_t>>();
  return options;
}

LossOptions GoldenFile::loss_options() const {
  const auto& facts = json_.at("facts");
  return {.aux = facts.at("aux"), .aux_weight = facts.at("aux_weight"), .ignore = facts.at("ignore_index")};
}

Shape GoldenFile::input_shape() const {
  const auto extents = json_.at("input").at("shape").get<std::vector<int64_t>>();
  constexpr int64_t kMaxExtent = 8192;
  const bool usable = extents.size() == 4 && extents[1] == 3 &&
                      std::all_of(extents.begin(), extents.end(), [](int64_t e) { return e >= 1 && e <= kMaxExtent; });
  CONVOY_CHECK(usable && extents[0] * extents[2] * extents[3] <= kMaxExtent * kMaxExtent,
               "'{}': the input's shape is [{}]; it must be [N, 3, H, W] with extents from 1 to {}", path_,
               fmt::join(extents, ", "), kMaxExtent);
  return Shape(extents);
}

void GoldenFile::fill_values(const nlohmann::json& row, float* values, int64_t count) const {
  const std::string name = row.at(0), kind = row.at(2);
  const auto& params = row.at(3);
  const ReferenceStream u(name, case_seed_);
  const auto fill_with = [&](auto rule) {
    for (int64_t i = 0; i < count; ++i) values[i] = static_cast<float>(rule(u[static_cast<uint64_t>(i)]));
  };
  if (kind == "weight" || kind == "tweight") {
    const double bound = std::sqrt(3.0 / params.at(0).get<double>());
    fill_with([=](double x) { return (2 * x - 1) * bound; });
  } else if (kind == "bias" || kind == "norm_bias" || kind == "running_mean" || kind == "codewords") {
    const double s = params.at(0);
    fill_with([=](double x) { return (2 * x - 1) * s; });
  } else if (kind == "norm_weight" || kind == "running_var" || kind == "prelu" || kind == "scalar" ||
             kind == "enc_scale" || kind == "l2norm_weight") {
    const double low = params.at(0), span = params.at(1);
    fill_with([=](double x) { return low + span * x; });
  } else {
    fail("'{}': '{}' is of unknown kind '{}'", path_, name, kind);
  }
}

void GoldenFile::fill(ParamStore& store, const std::string& prefix) const {
  size_t next = 0;
  const auto& order = store.state_order();
  for (const auto& row : json_.at("state")) {
    const std::string name = row.at(0), kind = row.at(2);
    if (!name.starts_with(prefix)) continue;
    CONVOY_CHECK(next < order.size(), "'{}': the network has no '{}'", path_, name);
    CONVOY_CHECK(order[next] == name, "'{}': entry {} of the state is '{}' there and '{}' in the network", path_, next,
                 name, order[next]);
    ++next;
    if (kind == "alias") continue;
    const Shape shape(row.at(1).get<std::vector<int64_t>>());
    if (const int64_t p = store.find_parameter(name); p >= 0) {
      const Shape& ours = store.parameters()[static_cast<size_t>(p)].shape;
      CONVOY_CHECK(ours == shape, "'{}': '{}' is {} there and {} in the network", path_, name, shape.str(), ours.str());
      fill_values(row, store.value(p), shape.count());
    } else {
      const int64_t b = store.find_buffer(name);
      CONVOY_CHECK(b >= 0, "'{}': '{}' is neither parameter nor buffer of the network", path_, name);
      const Tensor& value = store.buffers()[static_cast<size_t>(b)].value;
      CONVOY_CHECK(value.shape() == shape, "'{}': '{}' is {} there and {} in the network", path_, name, shape.str(),
                   value.shape().str());
      if (value.dtype() == DType::kI64)
        *value.i64() = 0;
      else
        fill_values(row, value.f32(), shape.count());
    }
  }
  CONVOY_CHECK(next == order.size(), "'{}': the network's '{}' is not in the file", path_, order[next]);
}

std::vector<float> GoldenFile::input() const {
  const Shape shape = input_shape();
  const double offset = json_.at("input").at("offset");
  const ReferenceStream u("input", case_seed_), v("input.offset", case_seed_);
  const int64_t plane = shape[2] * shape[3];
  std::vector<float> values(static_cast<size_t>(shape.count()));
  for (int64_t i = 0; i < shape.count(); ++i)
    values[static_cast<size_t>(i)] = static_cast<float>((1 - offset) * (2 * u[static_cast<uint64_t>(i)] - 1) +
                                                        offset * (2 * v[static_cast<uint64_t>(i / plane)] - 1));
  return values;
}

std::vector<int32_t> GoldenFile::target() const {
  const auto& entry = json_.at("target");
  const Shape shape(entry.at("shape").get<std::vector<int64_t>>());
  const Shape image = input_shape();
  CONVOY_CHECK(shape == Shape({image[0], image[2], image[3]}),
               "'{}': the target's shape {} does not fit the input's {}", path_, shape.str(), image.str());
  const double classes = entry.at("classes");
  const ReferenceStream u("target", case_seed_), ignored("target.ignore", case_seed_);
  std::vector<int32_t> labels(static_cast<size_t>(shape.count()));
  for (size_t i = 0; i < labels.size(); ++i)
    labels[i] = ignored[i] < 0.1 ? -1 : static_cast<int32_t>(std::floor(u[i] * classes));
  return labels;
}

}  // namespace convoy
