// Collectives between the lanes and ranks of a global batch. Each has two forms: one message of floats, whose sum is
// formed in the order of ranks, or exact sums (engine/exact_sum.h), which no division of the batch changes.
#include <algorithm>
#include <cmath>

#include "engine/context.h"
#include "engine/exact_sum.h"
#include "engine/ops.h"
#include "engine/ops/common.h"
#include "engine/ops/registry.h"
#include "kernels/device_runtime.h"
#include "kernels/exchange.h"

namespace convoy {

namespace {

using LaneViews = std::span<const std::vector<View>>;

size_t elements(Value v) {
  return static_cast<size_t>(v.shape().count());
}

std::vector<TensorInfo> infer_same(const Node& node) {
  std::vector<TensorInfo> outputs;
  for (const Value& v : node.inputs) {
    CONVOY_CHECK(v.dtype() == DType::kF32, "only f32 values are exchanged, this one is {}", dtype_name(v.dtype()));
    outputs.push_back(info_of(v));
  }
  return outputs;
}

/// One input of every lane as doubles.
std::vector<std::vector<double>> lanes_of(const std::vector<View>& views, size_t count) {
  std::vector<std::vector<double>> lanes;
  for (const View& v : views) lanes.emplace_back(v.f32(), v.f32() + count);
  return lanes;
}

void store_floats(std::span<const double> values, double factor, const View& out) {
  for (size_t i = 0; i < values.size(); ++i) out.f32()[i] = static_cast<float>(values[i] * factor);
}

Kernel prepare_sum(const PrepareArgs& args) {
  const double factor = args.node.attrs.real("factor");
  // Values of the step have one part per rank; the scale must not depend on how many there are.
  constexpr int64_t kMostRanks = 4096;
  const int64_t most_parts = std::max(args.node.attrs.integer("images"), kMostRanks);
  std::vector<size_t> counts;
  size_t floats = 0;
  for (const Value& v : args.node.inputs) {
    counts.push_back(elements(v));
    floats += counts.back();
  }
  if (args.context.options().exact_ranks)
    return {.implementation = "integer sums", .exchange = [=](const ExchangeArgs& a) {
              for (size_t i = 0; i < counts.size(); ++i) {
                std::vector<double> sum(counts[i]);
                exact_sum(a.communicator, lanes_of(a.in[i], counts[i]), most_parts, sum, a.name);
                store_floats(sum, factor, a.out[i]);
              }
            }};
  const auto pack = [=](LaneViews in, float* message) {
    for (size_t i = 0; i < counts.size(); message += counts[i++]) {
      std::fill_n(message, counts[i], 0.0f);
      for (const View& v : in[i])
        for (size_t k = 0; k < counts[i]; ++k) message[k] += v.f32()[k];
    }
  };
  const auto unpack = [=](const float* sum, size_t, int, std::span<const View> out) {
    for (size_t i = 0; i < counts.size(); sum += counts[i++])
      for (size_t k = 0; k < counts[i]; ++k) out[i].f32()[k] = static_cast<float>(factor * sum[k]);
  };
  const auto pack_on_device = [=](OnStream on, LaneViews in, float* message) {
    for (size_t i = 0; i < counts.size(); message += counts[i++])
      CONVOY_CUDA(on, sum_lanes, in[i], static_cast<int64_t>(counts[i]), message);
  };
  const auto unpack_on_device = [=](OnStream on, const float* sum, size_t, int, std::span<const View> out) {
    for (size_t i = 0; i < counts.size(); sum += counts[i++])
      CONVOY_CUDA(on, scale_floats, sum, static_cast<int64_t>(counts[i]), factor, out[i].f32());
  };
  return {.implementation = "sum",
          .message = {.kind = Message::Kind::kSum,
                      .floats = floats,
                      .pack = pack,
                      .unpack = unpack,
                      .pack_on_device = pack_on_device,
                      .unpack_on_device = unpack_on_device}};
}

// Inputs (mean, var), which are statistics of `count` values per channel and lane.
std::vector<TensorInfo> infer_bn_stats(const Node& node) {
  require_shape(node, 1, node.inputs[0].shape());
  return infer_same(node);
}

/// Statistics of a set of values, merged one part after the other (Chan, Golub, LeVeque 1979).
struct Moments {
  double count = 0, mean = 0, m2 = 0;
  void merge(double n, double part_mean, double part_m2) {
    if (n == 0) return;
    const double delta = part_mean - mean, total = count + n;
    mean += delta * n / total;
    m2 += part_m2 + delta * delta * count * n / total;
    count = total;
  }
};

/// A rank's message: count, then the mean of every channel, then M2 (the sum of squared deviations) of every channel.
Message bn_message(size_t channels, double lane_count) {
  const auto pack = [=](LaneViews in, float* message) {
    message[0] = static_cast<float>(lane_count * static_cast<double>(in[0].size()));
    for (size_t c = 0; c < channels; ++c) {
      Moments moments;
      for (size_t lane = 0; lane < in[0].size(); ++lane)
        moments.merge(lane_count, in[0][lane].f32()[c], in[1][lane].f32()[c] * lane_count);
      message[1 + c] = static_cast<float>(moments.mean);
      message[1 + channels + c] = static_cast<float>(moments.m2);
    }
  };
  const auto unpack = [=](const float* all, size_t stride, int ranks, std::span<const View> out) {
    for (size_t c = 0; c < channels; ++c) {
      Moments moments;
      for (int r = 0; r < ranks; ++r) {
        const float* message = all + static_cast<size_t>(r) * stride;
        moments.merge(message[0], message[1 + c], message[1 + channels + c]);
      }
      out[0].f32()[c] = static_cast<float>(moments.mean);
      out[1].f32()[c] = static_cast<float>(moments.m2 / moments.count);
    }
  };
  const auto width = static_cast<int64_t>(channels);
  const auto pack_on_device = [=](OnStream on, LaneViews in, float* message) {
    CONVOY_CUDA(on, bn_merge_lanes, in[0], in[1], lane_count, width, message);
  };
  const auto unpack_on_device = [=](OnStream on, const float* all, size_t stride, int ranks,
                                    std::span<const View> out) {
    CONVOY_CUDA(on, bn_merge_ranks, all, static_cast<int64_t>(stride), ranks, width, out[0].f32(), out[1].f32());
  };
  return {.kind = Message::Kind::kGather,
          .floats = 1 + 2 * channels,
          .pack = pack,
          .unpack = unpack,
          .pack_on_device = pack_on_device,
          .unpack_on_device = unpack_on_device};
}

Kernel prepare_bn_stats(const PrepareArgs& args) {
  const size_t channels = elements(args.node.inputs[0]);
  const int64_t count = args.node.attrs.integer("count"), lanes = args.node.attrs.integer("lanes");
  if (!args.context.options().exact_ranks)
    return {.implementation = "merge", .message = bn_message(channels, static_cast<double>(count))};
  // The mean first; a lane's part of the variance is then a function of the lane and of the mean alone.
  return {.implementation = "integer sums", .exchange = [=](const ExchangeArgs& a) {
            std::vector<double> mean(channels), var(channels);
            exact_sum(a.communicator, lanes_of(a.in[0], channels), lanes, mean, a.name + ", mean");
            for (double& m : mean) m /= static_cast<double>(lanes);
            std::vector<std::vector<double>> parts = lanes_of(a.in[1], channels);
            for (size_t lane = 0; lane < parts.size(); ++lane)
              for (size_t c = 0; c < channels; ++c) {
                const double delta = a.in[0][lane].f32()[c] - mean[c];
                parts[lane][c] += delta * delta;
              }
            exact_sum(a.communicator, parts, lanes, var, a.name + ", variance");
            store_floats(mean, 1, a.out[0]);
            store_floats(var, 1 / static_cast<double>(lanes), a.out[1]);
          }};
}

Kernel prepare_first_rank(const PrepareArgs& args) {
  const size_t first = elements(args.node.inputs[0]), second = elements(args.node.inputs[1]);
  const auto pack = [=](LaneViews in, float* message) {
    std::fill_n(message, first + second, 0.0f);
    if (in[0].empty()) return;
    std::copy_n(in[0][0].f32(), first, message);
    std::copy_n(in[1][0].f32(), second, message + first);
  };
  const auto unpack = [=](const float* all, size_t, int, std::span<const View> out) {
    std::copy_n(all, first, out[0].f32());
    std::copy_n(all + first, second, out[1].f32());
  };
  const auto pack_on_device = [=](OnStream on, LaneViews in, float* message) {
    const auto lane = [](const std::vector<View>& lanes) {
      return std::span(lanes).first(std::min<size_t>(lanes.size(), 1));
    };
    CONVOY_CUDA(on, sum_lanes, lane(in[0]), static_cast<int64_t>(first), message);
    CONVOY_CUDA(on, sum_lanes, lane(in[1]), static_cast<int64_t>(second), message + first);
  };
  const auto unpack_on_device = [=](OnStream on, const float* all, size_t, int, std::span<const View> out) {
    CONVOY_CUDA(on, copy_bytes, all, out[0].data, first * sizeof(float));
    CONVOY_CUDA(on, copy_bytes, all + first, out[1].data, second * sizeof(float));
  };
  return {.implementation = "rank 0's",
          .message = {.kind = Message::Kind::kGather,
                      .floats = first + second,
                      .pack = pack,
                      .unpack = unpack,
                      .pack_on_device = pack_on_device,
                      .unpack_on_device = unpack_on_device}};
}

}  // namespace

std::vector<Value> sum_over_lanes(const std::vector<Value>& values, double factor) {
  CONVOY_CHECK(!values.empty(), "nothing to sum");
  Graph& graph = *values[0].graph;
  if (!graph.global_batch().shared()) return values;
  const Value first =
      graph.append("sum_over_lanes", values, {{"factor", factor}, {"images", graph.global_batch().images}});
  std::vector<Value> sums;
  for (int32_t i = 0; i < static_cast<int32_t>(values.size()); ++i) sums.push_back({&graph, first.node, i});
  return sums;
}

std::pair<Value, Value> sync_bn_stats(Value x, Value mean, Value var) {
  Graph& graph = *x.graph;
  const Shape& shape = x.shape();
  const Value merged =
      graph.append("sync_bn_stats", {mean, var},
                   {{"count", shape[0] * shape[2] * shape[3]}, {"lanes", graph.global_batch().images / shape[0]}});
  return {merged, {&graph, merged.node, 1}};
}

std::pair<Value, Value> of_first_rank(Value a, Value b) {
  const Value first = a.graph->append("of_first_rank", {a, b});
  return {first, {a.graph, first.node, 1}};
}

std::vector<OpDef> exchange_ops() {
  return {
      {.name = "sum_over_lanes",
       .infer = infer_same,
       .layout = layout_plain,
       .prepare_cpu = prepare_sum,
       .takes_slices = false,
       .collective = true},
      {.name = "sync_bn_stats",
       .infer = infer_bn_stats,
       .layout = layout_plain,
       .prepare_cpu = prepare_bn_stats,
       .takes_slices = false,
       .collective = true},
      {.name = "of_first_rank",
       .infer = infer_same,
       .layout = layout_plain,
       .prepare_cpu = prepare_first_rank,
       .takes_slices = false,
       .collective = true},
  };
}

}  // namespace convoy
