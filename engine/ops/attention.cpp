// Attention operators: criss-cross in its two parts, position and channel attention, encoding by codewords.
#include "kernels/attention.h"

#include "engine/ops.h"
#include "engine/ops/common.h"
#include "engine/ops/registry.h"

namespace convoy {

namespace {

float* scratch(const KernelArgs& a) {
  return static_cast<float*>(a.workspace);
}

Value output_of(Value v, int32_t i) {
  return {v.graph, v.node, i};
}

// Criss-cross: weights (N,H+W-1,H,W) of images (N,C,H,W).

Shape attended(const Shape& image) {
  return {image[0], image[2] + image[3] - 1, image[2], image[3]};
}

std::vector<TensorInfo> infer_ca_weight(const Node& node) {
  const Shape& t = require_image(node, 0);
  require_shape(node, 1, t);
  return {{DType::kF32, attended(t)}};
}
// Inputs (w, image).
std::vector<TensorInfo> infer_ca_map(const Node& node) {
  require_shape(node, 0, attended(require_image(node, 1)));
  return {info_of(node.inputs[1])};
}

void grad_ca_weight(GradContext& g) {
  if (g.needs(0)) g.set(0, ca_map(g.d_output(), g.input(1)));
  if (g.needs(1)) g.set(1, g.graph.append("ca_map_transposed", {g.d_output(), g.input(0)}));
}
void grad_ca_map(GradContext& g) {
  if (g.needs(0)) g.set(0, ca_weight(g.d_output(), g.input(1)));
  if (g.needs(1)) g.set(1, g.graph.append("ca_map_transposed", {g.input(0), g.d_output()}));
}

// Input 1 is an image in all three.
double criss_cross_flops(const Node& n) {
  const Shape& image = n.inputs[1].shape();
  return 2.0 * static_cast<double>(attended(image).count()) * static_cast<double>(image[1]);
}

template <auto Run>
Kernel prepare_criss_cross(const PrepareArgs& args) {
  return {.run = [](const KernelArgs& a) { Run(a); },
          .workspace_bytes = CONVOY_CPU(criss_cross_workspace_bytes, args.in[1]),
          .implementation = "products by rows and columns"};
}
void run_ca_weight(const KernelArgs& a) {
  CONVOY_CPU(ca_weight, a.in[0], a.in[1], a.out[0], scratch(a));
}
void run_ca_map(const KernelArgs& a) {
  CONVOY_CPU(ca_map, a.in[0], a.in[1], a.out[0], scratch(a));
}
void run_ca_map_transposed(const KernelArgs& a) {
  CONVOY_CPU(ca_map_transposed, a.in[0], a.in[1], a.out[0], scratch(a));
}

template <auto Run>
Kernel prepare_criss_cross_cuda(const PrepareArgs& args) {
  return {.run = [](const KernelArgs& a) { Run(a); },
          .workspace_bytes = emulated::criss_cross_cuda_workspace_bytes(args.in[1], args.out[0]),
          .implementation = "products by rows and columns"};
}
void run_ca_weight_cuda(const KernelArgs& a) {
  CONVOY_CUDA(a, ca_weight, a.in[0], a.in[1], a.out[0], scratch(a));
}
void run_ca_map_cuda(const KernelArgs& a) {
  CONVOY_CUDA(a, ca_map, a.in[0], a.in[1], a.out[0], scratch(a));
}
void run_ca_map_transposed_cuda(const KernelArgs& a) {
  CONVOY_CUDA(a, ca_map_transposed, a.in[0], a.in[1], a.out[0], scratch(a));
}

// Position attention: inputs (query, key, value), outputs (y, log-sum-exp per pixel).

std::vector<TensorInfo> infer_position(const Node& node) {
  const Shape &q = require_image(node, 0), &v = require_image(node, 2);
  require_shape(node, 1, q);
  require_shape(node, 2, {q[0], v[1], q[2], q[3]});
  return {info_of(node.inputs[2]), {DType::kF32, {q[0], q[2] * q[3]}}};
}
// Inputs (dy, query, key, value, y, log-sum-exp).
std::vector<TensorInfo> infer_position_backward(const Node& node) {
  return {info_of(node.inputs[1]), info_of(node.inputs[2]), info_of(node.inputs[3])};
}

void grad_position(GradContext& g) {
  const Value all = g.graph.append("position_attention_backward",
                                   {g.d_output(), g.input(0), g.input(1), g.input(2), g.output(0), g.output(1)});
  for (int i = 0; i < 3; ++i) g.set(i, output_of(all, i));
}

double products_flops(const Shape& q, const Shape& v, int of_queries, int of_values) {
  const auto pixels = static_cast<double>(q[2] * q[3]);
  return 2.0 * static_cast<double>(q[0]) * pixels * pixels * static_cast<double>(of_queries * q[1] + of_values * v[1]);
}
double position_flops(const Node& n) {
  return products_flops(n.inputs[0].shape(), n.inputs[2].shape(), 1, 1);
}
double position_backward_flops(const Node& n) {
  return products_flops(n.inputs[1].shape(), n.inputs[3].shape(), 3, 2);
}

Kernel prepare_position(const PrepareArgs& args) {
  return {.run =
              [](const KernelArgs& a) {
                CONVOY_CPU(position_attention, a.in[0], a.in[1], a.in[2], a.out[0], a.out[1], scratch(a));
              },
          .workspace_bytes = CONVOY_CPU(position_attention_workspace_bytes, args.in[0]),
          .implementation = "tiled"};
}
Kernel prepare_position_backward(const PrepareArgs& args) {
  return {.run =
              [](const KernelArgs& a) {
                CONVOY_CPU(position_attention_backward, a.in[0], a.in[1], a.in[2], a.in[3], a.in[4], a.in[5], a.out[0],
                           a.out[1], a.out[2], scratch(a));
              },
          .workspace_bytes = CONVOY_CPU(position_attention_backward_workspace_bytes, args.in[1], args.in[3]),
          .implementation = "tiled"};
}

Kernel prepare_position_cuda(const PrepareArgs& args) {
  const int64_t strip = emulated::position_attention_strip(args.in[0]);
  return {.run =
              [=](const KernelArgs& a) {
                CONVOY_CUDA(a, position_attention, a.in[0], a.in[1], a.in[2], a.out[0], a.out[1], strip, scratch(a));
              },
          .workspace_bytes = emulated::position_attention_cuda_workspace_bytes(args.in[0], args.out[0], strip),
          .implementation = "strips of queries"};
}
Kernel prepare_position_backward_cuda(const PrepareArgs& args) {
  const int64_t strip = emulated::position_attention_strip(args.in[1]);
  return {.run =
              [=](const KernelArgs& a) {
                CONVOY_CUDA(a, position_attention_backward, a.in[0], a.in[1], a.in[2], a.in[3], a.in[5], a.out[0],
                            a.out[1], a.out[2], strip, scratch(a));
              },
          .workspace_bytes =
              emulated::position_attention_backward_cuda_workspace_bytes(args.out[0], args.out[1], args.out[2], strip),
          .implementation = "strips of queries"};
}

// Channel attention: outputs (y, weights).

std::vector<TensorInfo> infer_channel(const Node& node) {
  const Shape& x = require_image(node, 0);
  return {info_of(node.inputs[0]), {DType::kF32, {x[0], x[1], x[1], 1}}};
}
// Inputs (dy, x, weights).
std::vector<TensorInfo> infer_channel_backward(const Node& node) {
  return {info_of(node.inputs[1])};
}
void grad_channel(GradContext& g) {
  g.set(0, g.graph.append("channel_attention_backward", {g.d_output(), g.input(0), g.output(1)}));
}
double channel_flops(const Node& n) {
  return 4.0 * static_cast<double>(n.outputs[0].shape.count()) * static_cast<double>(n.outputs[0].shape[1]);
}
double channel_backward_flops(const Node& n) {
  return 2 * channel_flops(n);
}
Kernel prepare_channel(const PrepareArgs&) {
  return {.run = [](const KernelArgs& a) { CONVOY_CPU(channel_attention, a.in[0], a.out[0], a.out[1]); },
          .implementation = "products"};
}
Kernel prepare_channel_backward(const PrepareArgs& args) {
  return {.run =
              [](const KernelArgs& a) {
                CONVOY_CPU(channel_attention_backward, a.in[0], a.in[1], a.in[2], a.out[0], scratch(a));
              },
          .workspace_bytes = CONVOY_CPU(channel_attention_backward_workspace_bytes, args.in[1]),
          .implementation = "products"};
}

Kernel prepare_channel_cuda(const PrepareArgs& args) {
  return {
      .run = [](const KernelArgs& a) { CONVOY_CUDA(a, channel_attention, a.in[0], a.out[0], a.out[1], scratch(a)); },
      .workspace_bytes = emulated::channel_attention_cuda_workspace_bytes(args.in[0], args.out[0]),
      .implementation = "products"};
}
Kernel prepare_channel_backward_cuda(const PrepareArgs& args) {
  return {.run =
              [](const KernelArgs& a) {
                CONVOY_CUDA(a, channel_attention_backward, a.in[0], a.in[1], a.in[2], a.out[0], scratch(a));
              },
          .workspace_bytes = emulated::channel_attention_backward_cuda_workspace_bytes(args.in[1], args.out[0]),
          .implementation = "products"};
}

// Encoding: inputs (x, codewords, scale), outputs (y, squared distances).

std::vector<TensorInfo> infer_encoding(const Node& node) {
  const Shape &x = require_image(node, 0), &words = node.inputs[1].shape();
  CONVOY_CHECK(words.rank() == 2 && words[0] > 0 && words[1] == x[1],
               "the codewords must be (K,{}) for an input of {} channels, they are {}", x[1], x[1], words.str());
  require_shape(node, 1, words);
  require_shape(node, 2, {words[0]});
  return {{DType::kF32, {x[0], words[0], words[1]}}, {DType::kF32, {x[0], words[0], x[2], x[3]}}};
}
// Inputs (dy, x, codewords, scale, distances).
std::vector<TensorInfo> infer_encoding_backward(const Node& node) {
  return {info_of(node.inputs[1]), info_of(node.inputs[2]), info_of(node.inputs[3])};
}
void grad_encoding(GradContext& g) {
  const Value all =
      g.graph.append("encnet_encoding_backward", {g.d_output(), g.input(0), g.input(1), g.input(2), g.output(1)});
  for (int i = 0; i < 3; ++i) g.set(i, output_of(all, i));
}
double encoding_flops_of(const Shape& x, const Shape& words, double per_element) {
  return per_element * static_cast<double>(x.count()) * static_cast<double>(words[0]);
}
double encoding_flops(const Node& n) {
  return encoding_flops_of(n.inputs[0].shape(), n.inputs[1].shape(), 5);
}
double encoding_backward_flops(const Node& n) {
  return encoding_flops_of(n.inputs[1].shape(), n.inputs[2].shape(), 8);
}
Kernel prepare_encoding(const PrepareArgs& args) {
  return {.run =
              [](const KernelArgs& a) {
                CONVOY_CPU(encoding, a.in[0], a.in[1], a.in[2].f32(), a.out[0], a.out[1], scratch(a));
              },
          .workspace_bytes = CONVOY_CPU(encoding_workspace_bytes, args.in[0], args.in[1].n),
          .implementation = "products"};
}
Kernel prepare_encoding_backward(const PrepareArgs& args) {
  return {.run =
              [](const KernelArgs& a) {
                CONVOY_CPU(encoding_backward, a.in[0], a.in[1], a.in[2], a.in[3].f32(), a.in[4], a.out[0],
                           a.out[1].f32(), a.out[2].f32(), scratch(a));
              },
          .workspace_bytes = CONVOY_CPU(encoding_backward_workspace_bytes, args.in[1], args.in[2].n),
          .implementation = "products"};
}

Kernel prepare_encoding_cuda(const PrepareArgs& args) {
  return {.run =
              [](const KernelArgs& a) {
                CONVOY_CUDA(a, encoding, a.in[0], a.in[1], a.in[2].f32(), a.out[0], a.out[1], scratch(a));
              },
          .workspace_bytes = emulated::encoding_cuda_workspace_bytes(args.in[0], args.in[1].n),
          .implementation = "products"};
}
Kernel prepare_encoding_backward_cuda(const PrepareArgs& args) {
  return {.run =
              [](const KernelArgs& a) {
                CONVOY_CUDA(a, encoding_backward, a.in[0], a.in[1], a.in[2], a.in[3].f32(), a.in[4], a.out[0],
                            a.out[1].f32(), a.out[2].f32(), scratch(a));
              },
          .workspace_bytes =
              emulated::encoding_backward_cuda_workspace_bytes(args.in[1], args.in[4], args.out[0], args.in[2].n),
          .implementation = "products"};
}

}  // namespace

Value ca_weight(Value t, Value f) {
  return t.graph->append("ca_weight", {t, f});
}
Value ca_map(Value w, Value g) {
  return w.graph->append("ca_map", {w, g});
}
Value position_attention(Value query, Value key, Value value) {
  return query.graph->append("position_attention", {query, key, value});
}
Value channel_attention(Value x) {
  return x.graph->append("channel_attention", {x});
}
Value encnet_encoding(Value x, Value codewords, Value scale) {
  return x.graph->append("encnet_encoding", {x, codewords, scale});
}

std::vector<OpDef> attention_ops() {
  return {
      {.name = "ca_weight",
       .infer = infer_ca_weight,
       .grad = grad_ca_weight,
       .flops = criss_cross_flops,
       .prepare_cpu = prepare_criss_cross<run_ca_weight>,
       .prepare_cuda = prepare_criss_cross_cuda<run_ca_weight_cuda>},
      {.name = "ca_map",
       .infer = infer_ca_map,
       .grad = grad_ca_map,
       .flops = criss_cross_flops,
       .prepare_cpu = prepare_criss_cross<run_ca_map>,
       .prepare_cuda = prepare_criss_cross_cuda<run_ca_map_cuda>},
      {.name = "ca_map_transposed",
       .infer = infer_ca_map,
       .flops = criss_cross_flops,
       .prepare_cpu = prepare_criss_cross<run_ca_map_transposed>,
       .prepare_cuda = prepare_criss_cross_cuda<run_ca_map_transposed_cuda>},
      {.name = "position_attention",
       .infer = infer_position,
       .grad = grad_position,
       .flops = position_flops,
       .prepare_cpu = prepare_position,
       .prepare_cuda = prepare_position_cuda},
      {.name = "position_attention_backward",
       .infer = infer_position_backward,
       .flops = position_backward_flops,
       .prepare_cpu = prepare_position_backward,
       .prepare_cuda = prepare_position_backward_cuda},
      {.name = "channel_attention",
       .infer = infer_channel,
       .grad = grad_channel,
       .flops = channel_flops,
       .prepare_cpu = prepare_channel,
       .prepare_cuda = prepare_channel_cuda},
      {.name = "channel_attention_backward",
       .infer = infer_channel_backward,
       .flops = channel_backward_flops,
       .prepare_cpu = prepare_channel_backward,
       .prepare_cuda = prepare_channel_backward_cuda},
      {.name = "encnet_encoding",
       .infer = infer_encoding,
       .grad = grad_encoding,
       .flops = encoding_flops,
       .prepare_cpu = prepare_encoding,
       .prepare_cuda = prepare_encoding_cuda},
      {.name = "encnet_encoding_backward",
       .infer = infer_encoding_backward,
       .flops = encoding_backward_flops,
       .prepare_cpu = prepare_encoding_backward,
       .prepare_cuda = prepare_encoding_backward_cuda},
  };
}

}  // namespace convoy
