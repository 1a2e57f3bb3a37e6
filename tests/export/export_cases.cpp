// Small networks of the operators that registered networks may lack, as Python files with values to compare with:
//   export_cases DIR     writes DIR/NAME.py and DIR/NAME.safetensors for each
#include <fmt/format.h>

#include <functional>

#include "apps/export_torch.h"
#include "apps/export_values.h"
#include "io/file.h"

using namespace convoy;

namespace {

constexpr int64_t kClasses = 5;

/// A network given as a function of its parameters' store.
class Case : public Network {
 public:
  using Forward = std::function<Value(Graph&, Value)>;
  explicit Case(Forward forward) : forward_(std::move(forward)) {}
  std::vector<NamedValue> forward(Builder& b, Value image) const override {
    return {{"out0", forward_(b.graph, image)}};
  }

 private:
  Forward forward_;
};

void add(ParamStore& store, const std::string& name, const Shape& shape) {
  store.add_parameter(name, shape, {.kind = Initializer::Kind::kNormal, .a = 0.3});
}

Value conv(Graph& g, Value x, const std::string& name, const Conv2dOptions& options = {}) {
  return conv2d(x, g.parameter(name), {}, options);
}

/// Criss-cross, position and channel attention; codewords that gate channels.
Value attention(Graph& g, Value image) {
  const Conv2dOptions half{.stride_h = 2, .stride_w = 2};
  const Value x = conv(g, image, "stem", half), query = conv(g, x, "query"), key = conv(g, x, "key");
  const Value criss_cross = ca_map(softmax(ca_weight(query, key), 1), x);
  const Value sum = add(add(criss_cross, position_attention(query, key, x)), channel_attention(scale(x, 0.1)));
  const Value codes = encnet_encoding(x, g.parameter("codewords"), g.parameter("scales"));
  const int64_t n = image.shape()[0];
  const Value gate = sigmoid(linear(reshape(codes, {n, 3 * 8}), g.parameter("gate.weight"), g.parameter("gate.bias")));
  return resize_to(conv(g, mul_channel(sum, reshape(gate, {n, 8, 1, 1})), "classify"), image);
}

/// Norms, activations, pooling and back, transposed convolution, shuffles, sampling.
Value shapes(Graph& g, Value image) {
  const Value x = conv(g, image, "stem", {.pad_h = 1, .pad_w = 1});
  Value y = prelu(group_norm(x, g.parameter("norm.weight"), g.parameter("norm.bias"), 4), g.parameter("slope"));
  y = hardswish(leaky_relu(l2_norm(y, g.parameter("l2")), 0.1));
  const auto [small, places] = max_pool2d(y, {});
  const Value back = max_unpool2d(small, places, y.shape()[2], y.shape()[3]);
  const Value deconv = conv_transpose2d(
      small, g.parameter("deconv.weight"), g.parameter("deconv.bias"),
      {.geometry = {.stride_h = 2, .stride_w = 2, .pad_h = 1, .pad_w = 1}, .output_pad_h = 1, .output_pad_w = 1});
  const Value shuffled = pixel_shuffle(conv(g, small, "deep"), 2), spread = dupsampling(small, g.parameter("deep"), 2);
  y = add(add(add(back, resize_to(deconv, y)), resize_to(shuffled, y)), resize_to(channel_shuffle(spread, 2), y));
  const Value twice = resize_to(resize_bilinear_by(resize_nearest_by(small, 1.5, 1.5), 0.7, 0.7, false), y);
  const Shape& s = y.shape();
  const Value grid = reshape(scale(conv(g, y, "grid"), 0.5), {s[0], s[2], s[3], 2});
  return conv(g, add(add(y, twice), grid_sample(y, grid, true)), "classify");
}

void write(const std::string& folder, const std::string& name, SizeHW size, ParamStore& store, Case::Forward forward) {
  store.allocate();
  const Case network(std::move(forward));
  const LossFunction loss = [](const std::vector<NamedValue>& outputs, Value target) {
    return mixed_softmax_cross_entropy(outputs, target, {});
  };
  // Written at another size than it is compared at.
  write_text_file(folder + "/" + name + ".py", export_torch({network, store, name, kClasses, {24, 40}}, loss));
  export_values(folder + "/" + name + ".safetensors", {network, store, name, kClasses, size}, 2, loss, {}, 7);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  try {
    ParamStore of_attention;
    add(of_attention, "stem", {8, 3, 2, 2});
    add(of_attention, "query", {4, 8, 1, 1});
    add(of_attention, "key", {4, 8, 1, 1});
    add(of_attention, "codewords", {3, 8});
    add(of_attention, "scales", {3});
    add(of_attention, "gate.weight", {8, 24});
    add(of_attention, "gate.bias", {8});
    add(of_attention, "classify", {kClasses, 8, 1, 1});
    write(argv[1], "attention", {18, 26}, of_attention, attention);

    ParamStore of_shapes;
    add(of_shapes, "stem", {8, 3, 3, 3});
    add(of_shapes, "norm.weight", {8});
    add(of_shapes, "norm.bias", {8});
    add(of_shapes, "slope", {8});
    add(of_shapes, "l2", {8});
    add(of_shapes, "deconv.weight", {8, 8, 3, 3});
    add(of_shapes, "deconv.bias", {8});
    add(of_shapes, "deep", {32, 8, 1, 1});
    add(of_shapes, "grid", {2, 8, 1, 1});
    add(of_shapes, "classify", {kClasses, 8, 1, 1});
    write(argv[1], "shapes", {18, 26}, of_shapes, shapes);
  } catch (const std::exception& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return 1;
  }
}
