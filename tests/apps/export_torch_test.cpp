// Networks as Python files: every operator has a form, sizes follow the image, the text is the expected one.
#include <catch2/catch.hpp>
#include <functional>
#include <set>

#include "apps/export_torch.h"
#include "apps/torch_forms.h"
#include "engine/op.h"
#include "engine/ops/registry.h"

using namespace convoy;
using Catch::Matchers::Contains;

namespace {

Value plain_loss(const std::vector<NamedValue>& outputs, Value target) {
  return mixed_softmax_cross_entropy(outputs, target, {.aux = true});
}

/// What a network's forward pass is made of, given as a function.
class TestNetwork : public Network {
 public:
  using Forward = std::function<std::vector<NamedValue>(Builder&, Value)>;
  explicit TestNetwork(Forward forward) : forward_(std::move(forward)) {}
  std::vector<NamedValue> forward(Builder& b, Value image) const override { return forward_(b, image); }

 private:
  Forward forward_;
};

std::string exported(const TestNetwork::Forward& forward, ParamStore& store) {
  if (!store.allocated()) store.allocate();
  const TestNetwork network(forward);
  return export_torch({network, store, "Test", 3, {32, 48}}, plain_loss);
}

/// From `first` up to `last`, without it.
std::string part(const std::string& text, const std::string& first, const std::string& last) {
  const size_t from = text.find(first);
  REQUIRE(from != std::string::npos);
  const size_t to = text.find(last, from);
  REQUIRE(to != std::string::npos);
  return text.substr(from, to - from);
}

}  // namespace

TEST_CASE("every operator of a forward pass has a form in PyTorch") {
  // Leaves, gradients, what several ranks exchange, what is written as a part of batch norm; the loss of detectors, of
  // which there is none yet.
  const std::set<std::string> never = {"input",          "constant",      "parameter",         "buffer",
                                       "store_gradient", "bn_stats",      "sync_bn_stats",     "of_first_rank",
                                       "sum_over_lanes", "pad_channels",  "bn_update_running", "ca_map_transposed",
                                       "box_hardness",   "box_selection", "multibox_loss"};
  for (const OpDef& op : built_in_ops()) {
    INFO(op.name);
    const bool other_form = op.name.find("_backward") != std::string::npos || op.name.starts_with("upsample_") ||
                            op.name.starts_with("global_");
    CHECK(torch_forms().contains(op.name) != (other_form || never.contains(op.name)));
  }
}

TEST_CASE("a network as PyTorch lines") {
  ParamStore store;
  const Scope scope{.store = store, .path = ""};
  const ConvBnAct stem(scope / "stem", 3, 8, ConvOptions::square(3, 2));
  const Conv2d classify(scope / "heads" / 0, 16, 3, ConvOptions::square(1).with_bias());
  const std::string text = exported(
      [&](Builder& b, Value image) {
        const Value x = stem(b, image);
        const auto [pooled, position] =
            max_pool2d(x, {.kernel_h = 3, .kernel_w = 3, .stride_h = 2, .stride_w = 2, .pad_h = 1, .pad_w = 1});
        const Value joined = concat({resize_to(pooled, x), mul_channel(x, sigmoid(global_avg_pool(x)))});
        return std::vector<NamedValue>{{"out0", resize_to(classify(b, dropout(b, "heads.drop", joined, 0.25)), image)}};
      },
      store);
  CHECK(part(text, "class Net", "\n\nTYPES") == R"py(class Net(Part):
    """forward() takes images (N, 3, H, W) and returns a tuple of outputs: the prediction, then auxiliary ones.

    Dropout is on where the module is in training mode and `dropout` is set.
    """

    def __init__(self):
        super().__init__()
        self.dropout = False
        self.parameter("stem.conv.weight", uniform(0.19245008972987526, 8, 3, 3, 3))
        self.parameter("stem.bn.weight", constant(1.0, 8))
        self.parameter("stem.bn.bias", constant(0.0, 8))
        self.put("stem.bn.running_mean", constant(0.0, 8))
        self.put("stem.bn.running_var", constant(1.0, 8))
        self.put("stem.bn.num_batches_tracked", torch.tensor(0))
        self.parameter("heads.0.weight", uniform(0.25, 3, 16, 1, 1))
        self.parameter("heads.0.bias", uniform(0.25, 3))

    def forward(self, image):
        stem_conv = F.conv2d(image, self.stem.conv.weight, stride=2, padding=1)  # stem.conv (2,8,16,24)
        stem_bn = batch_norm(stem_conv, self.stem.bn, self.training, 0.1, 1e-05)  # stem.bn (2,8,16,24)
        del stem_conv
        relu = F.relu(stem_bn, inplace=True)  # (2,8,16,24)
        del stem_bn
        max_pool2d = F.max_pool2d(relu, kernel_size=3, stride=2, padding=1)  # (2,8,8,12)
        interpolate = F.interpolate(max_pool2d, size=relu.shape[2:], mode="bilinear", align_corners=True)  # (2,8,16,24)
        del max_pool2d
        adaptive_avg_pool2d = F.adaptive_avg_pool2d(relu, (1, 1))  # (2,8,1,1)
        sigmoid = torch.sigmoid(adaptive_avg_pool2d)  # (2,8,1,1)
        del adaptive_avg_pool2d
        mul_channel = relu * sigmoid  # (2,8,16,24)
        del relu, sigmoid
        cat = torch.cat((interpolate, mul_channel), 1)  # (2,16,16,24)
        del interpolate, mul_channel
        heads_drop = F.dropout(cat, 0.25, self.training and self.dropout)  # heads.drop (2,16,16,24)
        del cat
        heads_0 = F.conv2d(heads_drop, self.heads[0].weight, self.heads[0].bias)  # heads.0 (2,3,16,24)
        del heads_drop
        interpolate_2 = F.interpolate(heads_0, size=image.shape[2:], mode="bilinear", align_corners=True)  # (2,3,32,48)
        del heads_0
        return interpolate_2,

    forward_training = forward

    def loss(self, outputs, target):
        """Of outputs in training; target (N, H, W) int64, -1 where there is no label."""
        out0, = outputs
        loss = (target != -1).sum()  # loss ()
        loss_out0 = F.cross_entropy(out0, target, ignore_index=-1, reduction="sum") / torch.where(loss == 0, 1, loss)  # loss.out0 ()
        del loss
        return loss_out0
)py");
  CHECK_THAT(text, Contains("Images may have any size"));
}

TEST_CASE("a network that does something else for prediction has two passes") {
  ParamStore store;
  const Scope scope{.store = store, .path = ""};
  const Conv2d classify(scope / "classify", 3, 3, ConvOptions::square(1)),
      aux(scope / "aux", 3, 3, ConvOptions::square(1));
  const std::string text = exported(
      [&](Builder& b, Value image) {
        std::vector<NamedValue> outputs{{"out0", classify(b, image)}};
        if (b.mode == Mode::kEval)
          outputs[0].value = sigmoid(outputs[0].value);
        else
          outputs.push_back({"out1", aux(b, image)});
        return outputs;
      },
      store);
  CHECK_THAT(part(text, "def forward_training", "def forward("), Contains("return classify, aux,\n"));
  CHECK_THAT(part(text, "def forward(", "def loss"), Contains("return sigmoid,\n") && Contains("if self.training"));
  CHECK_THAT(part(text, "def loss", "TYPES"), Contains("out0, out1, = outputs"));
}

TEST_CASE("a size that does not follow from the image's is insisted on") {
  ParamStore store;
  const Scope scope{.store = store, .path = ""};
  const Conv2d classify(scope / "classify", 3, 3, ConvOptions::square(1));
  const auto forward = [&](const std::function<int64_t(int64_t)>& height) {
    return exported(
        [&](Builder& b, Value image) {
          const Value small = resize_bilinear(classify(b, image), height(image.shape()[2]), 5);
          return std::vector<NamedValue>{{"out0", resize_to(small, image)}};
        },
        store);
  };
  CHECK_THAT(forward([](int64_t h) { return 2 * h; }),
             Contains("size=(2 * classify.shape[2], 5)") && Contains("any size"));
  CHECK_THAT(forward([](int64_t h) { return h * h % 31; }),
             Contains("size=(1, 5)") && Contains("image.shape[2:] != (32, 48)") && Contains("Images have one size"));
}

TEST_CASE("an operator without a form is an error that names the node") {
  static const bool once = [] {
    register_op({.name = "unheard_of", .infer = [](const Node& n) {
                   return std::vector<TensorInfo>{{DType::kF32, n.inputs[0].shape()}};
                 }});
    return true;
  }();
  (void)once;
  ParamStore store;
  CHECK_THROWS_WITH(exported(
                        [&](Builder& b, Value image) {
                          const Graph::Scope scope(b.graph, "neck.0");
                          return std::vector<NamedValue>{{"out0", b.graph.append("unheard_of", {image})}};
                        },
                        store),
                    Contains("neck.0") && Contains("unheard_of"));
}

TEST_CASE("every registered network has a PyTorch file that takes any size") {
  for (const std::string& name : network_names()) {
    INFO(name);
    ParamStore store;
    const NetworkOptions options = light_options(name);
    const auto network = make_network(options, store);
    const SizeHW size{fitting_extent(*network, 64), fitting_extent(*network, 96)};
    const std::string text = export_torch({*network, store, name, options.classes, size}, plain_loss);
    size_t at = 0;
    for (const std::string& entry : store.state_order()) {
      at = text.find("(\"" + entry + "\", ", at);
      REQUIRE(at != std::string::npos);
    }
    CHECK_THAT(text, Contains("Images may have any size"));
  }
}
